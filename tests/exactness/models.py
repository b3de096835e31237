"""The networks that must train to the same bits, one difficulty each."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.nn import functional as F

from lowtide import models
from lowtide.engine.bits import same_bits

Build = Callable[[], tuple[nn.Module, list[Any], Callable[[Any], torch.Tensor] | None]]


@dataclass(frozen=True)
class Case:
    """A model, the batches of consecutive steps, and the loss."""

    name: str
    build: Build
    graphs: int = 1


CASES: list[Case] = []


def case(function: Build) -> Build:
    """Register a case under the function's name."""
    CASES.append(Case(function.__name__, function))
    return function


def assert_same_bits(model: nn.Module, plain: nn.Module) -> None:
    """Gradients and buffers of both are the same, bit by bit."""
    for (name, p), q in zip(model.named_parameters(), plain.parameters(), strict=True):
        assert (p.grad is None) == (q.grad is None), name
        assert p.grad is None or same_bits(p.grad, q.grad), name
    for (name, b), c in zip(model.named_buffers(), plain.buffers(), strict=True):
        assert same_bits(b, c), name


def images(count: int = 3, *shape: int) -> list[torch.Tensor]:
    """Batches of random images."""
    return [torch.randn(*shape) for _ in range(count)]


def square(output: torch.Tensor) -> torch.Tensor:
    """A loss whose gradient is not constant."""
    return (output.float() ** 2).mean()


def built_in(name: str, **options: Any) -> Any:
    """A built-in example with three batches that differ in their values."""
    example = models.build(name, **options)
    batches = [example.batch]
    for shift in (1, 2):
        if isinstance(example.batch, dict):
            batch = {
                k: v.roll(shift, -1) if v.dim() else v for k, v in example.batch.items()
            }
        else:
            batch = example.batch.roll(shift, -1)
        batches.append(batch)
    return example.model, batches, example.loss


@case
def mlp() -> Any:
    net = nn.Sequential(
        nn.Linear(32, 64), nn.GELU(), nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, 8)
    )
    return net, images(3, 16, 32), square


@case
def resnet() -> Any:
    return built_in("resnet18", batch=2, image=64, classes=10)


class _Dense(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.convs = nn.ModuleList(
            nn.Conv2d(8 + 8 * i, 8, 3, padding=1) for i in range(4)
        )
        self.norms = nn.ModuleList(nn.BatchNorm2d(8 + 8 * i) for i in range(4))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for conv, norm in zip(self.convs, self.norms, strict=True):
            x = torch.cat([x, conv(F.relu(norm(x)))], 1)
        return x.mean((2, 3))


@case
def dense_concatenation() -> Any:
    return _Dense(), images(3, 4, 8, 12, 12), square


@case
def unet_skips() -> Any:
    return built_in("unet", batch=1, image=32, width=8, depth=2)


class _Branches(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a = nn.Conv2d(8, 8, 1)
        self.b = nn.Sequential(nn.Conv2d(8, 4, 1), nn.ReLU(), nn.Conv2d(4, 8, 3, 1, 1))
        self.c = nn.Sequential(nn.MaxPool2d(3, 1, 1), nn.Conv2d(8, 8, 1))
        self.d = nn.Sequential(nn.AvgPool2d(3, 1, 1), nn.Conv2d(8, 8, 1))
        self.norm = nn.BatchNorm2d(32)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for _ in range(2):
            y = torch.cat([self.a(x), self.b(x), self.c(x), self.d(x)], 1)
            x = F.relu(self.norm(y)).view(y.shape[0], 4, 8, *y.shape[2:]).sum(1)
        return x


@case
def inception_branches() -> Any:
    return _Branches(), images(3, 2, 8, 10, 10), square


@case
def gpt2() -> Any:
    return built_in("gpt2", batch=2, sequence=16, layers=2, width=32, heads=2, vocab=99)


@case
def bert() -> Any:
    return built_in("bert", batch=2, sequence=16, layers=2, width=32, heads=2, vocab=99)


@case
def llama() -> Any:
    return built_in(
        "llama", batch=2, sequence=16, layers=2, width=32, heads=4, kv_heads=4, vocab=99
    )


@case
def llama_with_grouped_heads() -> Any:
    """With sdpa, this model itself takes another kernel when it is compiled."""
    size = {"layers": 2, "width": 32, "heads": 4, "kv_heads": 2, "vocab": 99}
    return built_in("llama", batch=2, sequence=16, attention="eager", **size)


@case
def t5() -> Any:
    return built_in("t5", batch=2, sequence=12, layers=2, width=32, heads=2, vocab=99)


@case
def vit() -> Any:
    return built_in("vit", batch=2, image=32, patch=8, layers=2, width=32, heads=2)


class _Experts(nn.Module):
    """Routes each token to its best of four experts, all run on all tokens."""

    def __init__(self) -> None:
        super().__init__()
        self.gate = nn.Linear(16, 4)
        self.experts = nn.ModuleList(nn.Linear(16, 16) for _ in range(4))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        weight, place = torch.topk(self.gate(x).softmax(-1), 2)
        out = torch.zeros_like(x)
        for number, expert in enumerate(self.experts):
            share = (weight * (place == number)).sum(-1, keepdim=True)
            out = out + share * F.silu(expert(x))
        return out


@case
def mixture_of_experts() -> Any:
    return nn.Sequential(_Experts(), _Experts()), images(3, 4, 6, 16), square


class _Recurrent(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.enter, self.again = nn.Linear(8, 16), nn.Linear(16, 16)
        self.gate, self.out = nn.Linear(24, 16), nn.Linear(16, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = x.new_zeros(x.shape[0], 16)
        for t in range(x.shape[1]):
            new = torch.tanh(self.enter(x[:, t]) + self.again(h))
            gate = torch.sigmoid(self.gate(torch.cat([x[:, t], h], 1)))
            h = gate * new + (1 - gate) * h
        return self.out(h)


@case
def recurrent() -> Any:
    return _Recurrent(), images(3, 4, 6, 8), square


@case
def dropout_everywhere() -> Any:
    blocks: list[nn.Module] = [nn.Dropout(0.1)]
    for p in (0.5, 0.2, 0.7):
        blocks += [nn.Linear(24, 24), nn.ReLU(), nn.Dropout(p)]
    return nn.Sequential(*blocks, nn.AlphaDropout(0.3)), images(3, 8, 24), square


class _RandomOps(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Linear(16, 16), nn.Linear(16, 16)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = torch.tanh(self.a(x)) * torch.rand_like(x)
        x = x + 0.1 * torch.randn(x.shape)
        x = F.rrelu(self.b(x), training=True) * torch.bernoulli(torch.full_like(x, 0.4))
        return F.dropout(x, 0.5) * torch.randint(0, 3, x.shape)


@case
def other_random_ops() -> Any:
    return _RandomOps(), images(3, 6, 16), square


def _normed() -> nn.Sequential:
    layers: list[nn.Module] = []
    for channels in (3, 8, 8):
        layers += [nn.Conv2d(channels, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU()]
    return nn.Sequential(*layers)


@case
def batch_norm_training() -> Any:
    return _normed(), images(3, 4, 3, 8, 8), square


@case
def batch_norm_frozen() -> Any:
    """The statistics are frozen, as when fine-tuning; the rest trains."""
    net = _normed()
    for module in net:
        if isinstance(module, nn.BatchNorm2d):
            module.eval()
    return net, images(3, 4, 3, 8, 8), square


@case
def batch_norm_without_statistics() -> Any:
    net = nn.Sequential(
        nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8, track_running_stats=False), nn.ReLU(),
        nn.Conv2d(8, 8, 3), nn.InstanceNorm2d(8), nn.GroupNorm(2, 8),
    )  # fmt: skip
    return net, images(3, 4, 3, 10, 10), square


class _Tied(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(50, 16)
        self.middle = nn.Linear(16, 16)
        self.head = nn.Linear(16, 50, bias=False)
        self.head.weight = self.embed.weight

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        return self.head(torch.tanh(self.middle(self.embed(tokens))))


@case
def tied_weights() -> Any:
    tokens = [torch.randint(0, 50, (4, 7)) for _ in range(3)]
    return _Tied(), tokens, square


class _InPlace(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Conv2d(3, 8, 3), nn.Conv2d(8, 8, 3)
        self.relu = nn.ReLU(inplace=True)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.relu(self.a(x))
        y = self.b(y)
        y += 1
        y.mul_(2).clamp_(-3, 3)
        y[:, 0] = 0
        return self.relu(y)


@case
def in_place_ops() -> Any:
    return _InPlace(), images(3, 2, 3, 9, 9), square


class _Views(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.qkv = nn.Linear(16, 48)
        self.out = nn.Linear(16, 16)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        q, k, v = self.qkv(x).chunk(3, -1)
        q = q.view(*q.shape[:2], 2, 8).transpose(1, 2)
        k = k.view(*k.shape[:2], 2, 8).permute(0, 2, 3, 1)
        v = v.reshape(*v.shape[:2], 2, 8).transpose(1, 2)
        y = (q @ k).softmax(-1) @ v
        y = y.transpose(1, 2).flatten(2)
        return self.out(y)[:, 1:, ::2].unfold(1, 2, 1).diagonal(dim1=1, dim2=2)


@case
def views_and_slices() -> Any:
    return _Views(), images(3, 2, 6, 16), square


class _Several(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.lift = nn.Linear(8, 24)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.lift(x)
        values, places = y.topk(6)
        low, high = torch.aminmax(y, dim=-1, keepdim=True)
        parts = torch.split(y, [4, 8, 12], -1)
        spread, mean = torch.var_mean(parts[1], dim=-1, keepdim=True)
        ordered, _ = parts[2].sort(-1)
        return values * places + low * high + ordered[..., :6] * spread + mean


@case
def ops_with_several_outputs() -> Any:
    return _Several(), images(3, 4, 8), square


class _Attention(nn.Module):
    def __init__(self, drop: float) -> None:
        super().__init__()
        self.attention = nn.MultiheadAttention(16, 2, dropout=drop, batch_first=True)
        self.drop = drop

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x + self.attention(x, x, x, need_weights=False)[0]
        q = x.unflatten(-1, (2, 8)).transpose(1, 2)
        y = F.scaled_dot_product_attention(q, q, q, dropout_p=self.drop, is_causal=True)
        return x + y.transpose(1, 2).flatten(2)


@case
def scaled_dot_product_attention() -> Any:
    return nn.Sequential(_Attention(0.0), _Attention(0.0)), images(3, 2, 8, 16), square


@case
def attention_with_dropout() -> Any:
    return nn.Sequential(_Attention(0.2), _Attention(0.2)), images(3, 2, 8, 16), square


class _Bag(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(40, 12, padding_idx=0)
        self.bag = nn.EmbeddingBag(40, 12, mode="mean")

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        return self.words(tokens).mean(1) * self.bag(tokens)


@case
def embeddings() -> Any:
    return _Bag(), [torch.randint(0, 40, (4, 5)) for _ in range(3)], square


class _Autocast(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Linear(16, 32), nn.Linear(32, 16)
        self.norm = nn.LayerNorm(32)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        with torch.autocast("cpu", dtype=torch.bfloat16):
            return self.b(F.gelu(self.norm(self.a(x))))


@case
def bf16_autocast() -> Any:
    return nn.Sequential(_Autocast(), _Autocast()), images(3, 8, 16), square


@case
def float64() -> Any:
    net = nn.Sequential(nn.Linear(16, 32), nn.Softplus(), nn.Linear(32, 4)).double()
    return net, [x.double() for x in images(3, 8, 16)], square


@case
def channels_last() -> Any:
    net = _normed().to(memory_format=torch.channels_last)
    batches = images(3, 4, 3, 8, 8)
    return net, [x.to(memory_format=torch.channels_last) for x in batches], square


class _Outputs(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.trunk = nn.Linear(8, 16)
        self.heads = nn.ModuleList(nn.Linear(16, 4) for _ in range(3))

    def forward(self, x: torch.Tensor) -> dict[str, Any]:
        h = torch.tanh(self.trunk(x))
        first, second, third = (head(h) for head in self.heads)
        return {"first": first, "rest": (second, third.detach()), "hidden": h}


@case
def several_outputs() -> Any:
    def loss(out: dict[str, Any]) -> torch.Tensor:
        return square(out["first"]) + out["rest"][0].sum() + out["hidden"].abs().mean()

    return _Outputs(), images(3, 4, 8), loss


class _LossAndLogits(_Outputs):
    def forward(self, x: torch.Tensor) -> dict[str, Any]:
        h = torch.tanh(self.trunk(x))
        logits = F.dropout(self.heads[0](h), 0.3) * self.heads[1](h)
        return {"loss": square(logits), "logits": logits}


@case
def loss_beside_logits() -> Any:
    return _LossAndLogits(), images(3, 4, 8), None


@case
def logits_beside_the_loss_are_differentiated() -> Any:
    def loss(out: dict[str, Any]) -> torch.Tensor:
        return out["loss"] + out["logits"].abs().sum()

    return _LossAndLogits(), images(3, 4, 8), loss


@case
def outputs_of_which_one_is_used() -> Any:
    return _Outputs(), images(3, 4, 8), lambda out: square(out["first"])


class _Named(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Linear(8, 8), nn.Linear(6, 8)

    def forward(self, *, left: torch.Tensor, right: dict[str, Any]) -> torch.Tensor:
        return torch.sigmoid(self.a(left)) * self.b(right["x"]) * right["scale"]


@case
def dict_inputs() -> Any:
    batches = [
        {"left": torch.randn(4, 8), "right": {"x": torch.randn(4, 6), "scale": 0.5}}
        for _ in range(3)
    ]
    return _Named(), batches, square


@case
def inputs_requiring_gradients() -> Any:
    batches = [x.requires_grad_() for x in images(3, 4, 16)]
    return (
        nn.Sequential(nn.Linear(16, 16), nn.Tanh(), nn.Linear(16, 4)),
        batches,
        square,
    )


@case
def frozen_layers() -> Any:
    net = nn.Sequential(
        nn.Linear(16, 16), nn.ReLU(), nn.Linear(16, 16), nn.ReLU(), nn.Linear(16, 4)
    )
    net[0].requires_grad_(False)
    net[2].weight.requires_grad_(False)
    return net, images(3, 4, 16), square


class _Swish(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        ctx.save_for_backward(x)
        return x * x.sigmoid()

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> torch.Tensor:
        (x,) = ctx.saved_tensors
        s = x.sigmoid()
        return grads[0] * (s + x * s * (1 - s))


class _Custom(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Linear(12, 12), nn.Linear(12, 12)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.b(_Swish.apply(self.a(x)))  # type: ignore[no-any-return]


@case
def custom_autograd_function() -> Any:
    return nn.Sequential(_Custom(), _Custom()), images(3, 4, 12), square


class _Shared(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.block = nn.Sequential(nn.Linear(12, 12), nn.BatchNorm1d(12), nn.ReLU())

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.block(x) + self.block(self.block(x) * 2)


@case
def shared_submodule() -> Any:
    return _Shared(), images(3, 6, 12), square


class _Break(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a, self.b, self.c = (nn.Linear(12, 12) for _ in range(3))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = torch.tanh(self.a(x))
        torch._dynamo.graph_break()
        x = x * torch.relu(self.b(x)) + 1
        torch._dynamo.graph_break()
        return self.c(torch.sin(x))


@case
def graph_break() -> Any:
    return _Break(), images(3, 4, 12), square


class _Decides(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Linear(12, 12), nn.Linear(12, 12)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = torch.tanh(self.a(x))
        if x.sum() > 0:
            return torch.relu(self.b(x))
        return torch.sigmoid(self.b(x)) * x


@case
def control_flow_on_values() -> Any:
    batches = images(3, 4, 12)
    return _Decides(), batches, square


@case
def batch_size_changes() -> Any:
    net = nn.Sequential(
        nn.Linear(16, 32), nn.BatchNorm1d(32), nn.ReLU(), nn.Linear(32, 4)
    )
    return net, [torch.randn(n, 16) for n in (8, 5, 8)], square


class _State(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.lin = nn.Linear(12, 12)
        self.register_buffer("count", torch.zeros((), dtype=torch.long))
        self.register_buffer("average", torch.zeros(12))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.lin(x) + self.average
        self.count += 1
        self.average.mul_(0.9).add_(y.detach().mean(0), alpha=0.1)
        return torch.tanh(y)


@case
def mutated_buffers() -> Any:
    return _State(), images(3, 4, 12), square


@case
def loss_outside_on_logits() -> Any:
    net = nn.Sequential(
        nn.Embedding(60, 16), nn.Linear(16, 16), nn.GELU(), nn.Linear(16, 60)
    )
    tokens = [torch.randint(0, 60, (4, 9)) for _ in range(3)]
    target = torch.randint(0, 60, (36,))
    return net, tokens, lambda out: F.cross_entropy(out.flatten(0, 1), target)

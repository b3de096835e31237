"""Where capture, left alone, computes other numbers than eager."""

from __future__ import annotations

import copy
import threading
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch._subclasses import FakeTensorMode
from torch.utils import _pytree as pytree

import lowtide
from lowtide.engine.capture import layouts
from lowtide.engine.capture.eager import tracing_as_eager
from tests.exactness.ops import difference

Run = Callable[[nn.Module], torch.Tensor]


def step(model: nn.Module, run: Run) -> dict[str, torch.Tensor | None]:
    torch.manual_seed(1)
    loss = run(model)
    loss.backward()
    seen: dict[str, torch.Tensor | None] = {"loss": loss.detach()}
    seen |= {f"grad of {name}": p.grad for name, p in model.named_parameters()}
    seen |= {f"buffer {name}": b.clone() for name, b in model.named_buffers()}
    seen["generator"] = torch.get_rng_state()
    return seen


def assert_as_eager(model: nn.Module, run: Run, steps: int = 2) -> None:
    """Train with everything recomputed and compare with eager, bit for bit."""
    torch._dynamo.reset()
    plain = copy.deepcopy(model)
    lowtide.optimize(model, budget="1 GiB", planner="recompute_all", time_limit=1)
    for number in range(steps):
        expected = step(plain, run)
        found = difference(step(model, run), expected)
        assert not found, f"step {number}: {found}"
        plain.zero_grad()
        model.zero_grad()


class After(nn.Module):
    """A convolution and something behind it."""

    def __init__(self, function: Callable[[torch.Tensor], torch.Tensor]) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 6, 3)
        self.function = function

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.function(self.conv(x))


IMAGES = torch.randn(2, 3, 14, 14, generator=torch.Generator().manual_seed(3))

# Ops for which torch has Python kernels that tracing would prefer.
DECOMPOSED: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "linear": lambda h: F.interpolate(h.flatten(2), scale_factor=2, mode="linear"),
    "bilinear": lambda h: F.interpolate(h, scale_factor=1.7, mode="bilinear"),
    "bilinear_aligned": lambda h: F.interpolate(
        h, size=(31, 17), mode="bilinear", align_corners=True
    ),
    "bilinear_antialiased": lambda h: F.interpolate(
        h, size=(7, 5), mode="bilinear", antialias=True
    ),
    "bicubic": lambda h: F.interpolate(h, scale_factor=2, mode="bicubic"),
    "trilinear": lambda h: F.interpolate(
        h.unsqueeze(1), scale_factor=2, mode="trilinear"
    ),
    "nearest": lambda h: F.interpolate(h, scale_factor=2),
    "multi_margin_loss": lambda h: F.multi_margin_loss(
        h.flatten(1), torch.tensor([1, 2])
    ),
    "multilabel_margin_loss": lambda h: F.multilabel_margin_loss(
        h.flatten(1), torch.full((2, 864), -1).index_fill(1, torch.tensor([0]), 3)
    ),
    "hardshrink": lambda h: F.softshrink(F.hardshrink(h)),
    "batched_matmul": lambda h: h @ h.transpose(-1, -2)[:, :1],
    "cumprod": lambda h: h.cumprod(1),
}


@pytest.mark.parametrize("name", DECOMPOSED)
def test_ops_run_the_kernels_of_eager(name: str) -> None:
    model = After(DECOMPOSED[name])
    assert_as_eager(model, lambda m: m(IMAGES).square().sum())


@pytest.mark.parametrize("zeros", [0, 1, 3])
@pytest.mark.parametrize("along", [False, True])
def test_products_are_differentiated_as_eager(zeros: int, along: bool) -> None:
    factors = IMAGES.clone()
    factors[0, 0, 0, :zeros] = 0.0

    def product(h: torch.Tensor) -> torch.Tensor:
        scaled = h.mean((0, 2, 3)).sum() * factors
        return scaled.prod(3) if along else scaled[0, 0, :2].prod()

    assert_as_eager(After(product), lambda m: m(IMAGES).square().sum())


# 0.15 and 0.42 are shares whose scale in 64 bits is not that of 32 bits.
@pytest.mark.parametrize("p", [0.0, 0.1, 0.15, 0.42, 0.5, 1.0])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_dropout_draws_and_scales_as_eager(p: float, dtype: torch.dtype) -> None:
    model = After(nn.Dropout(p)).to(dtype)
    x = IMAGES.to(dtype)
    assert_as_eager(model, lambda m: m(x).square().sum())


@pytest.mark.parametrize(
    "layer",
    [nn.Dropout(0.3), nn.Dropout2d(0.3), nn.AlphaDropout(0.3)],
    ids=lambda layer: type(layer).__name__,
)
@pytest.mark.parametrize("channels_last", [False, True])
def test_random_layers_draw_as_eager(layer: nn.Module, channels_last: bool) -> None:
    model, images = After(layer), IMAGES
    if channels_last:
        model.to(memory_format=torch.channels_last)  # pyright: ignore[reportCallIssue]
        images = images.contiguous(memory_format=torch.channels_last)
    assert_as_eager(model, lambda m: m(images).square().sum())


class Unused(nn.Module):
    """Draws random numbers for something that nobody uses, as CANINE's judges do."""

    def __init__(self) -> None:
        super().__init__()
        self.layer, self.other = nn.Linear(8, 8), nn.Linear(8, 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.layer(x)
        F.dropout(self.other(x), 0.3)
        return F.dropout(x, 0.3)


def test_random_numbers_that_nobody_uses_are_drawn_all_the_same() -> None:
    x = torch.randn(4, 8)
    assert_as_eager(Unused(), lambda model: model(x).square().mean())


def test_dropout_keeps_a_mask_of_bytes() -> None:
    model = After(nn.Dropout(0.3))
    profile = lowtide.profile(model, IMAGES, loss=torch.sum, how="estimate")
    (draws,) = [op for op in profile.ops if "dropout" in op.target and op.once]
    assert draws.target == "aten.native_dropout.default"
    assert "bool" in {profile.storages[s].dtype for s in draws.writes}


# Autocast.


class Reused(nn.Module):
    """Layers that are used several times, with autocast inside if asked for."""

    def __init__(self, layer: nn.Module, times: int, inside: str = "") -> None:
        super().__init__()
        self.layer, self.times, self.inside = layer, times, inside
        self.last = nn.Linear(8, 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.inside == "whole":
            with torch.autocast("cpu", torch.bfloat16):
                return self.body(x)
        if self.inside == "each":
            for _ in range(self.times):
                with torch.autocast("cpu", torch.bfloat16):
                    x = torch.tanh(self.layer(x))
            return x
        if self.inside == "nested":
            with torch.autocast("cpu", torch.bfloat16):
                x = self.layer(x)
                with torch.autocast("cpu", torch.bfloat16):
                    x = torch.tanh(self.layer(x))
                with torch.autocast("cpu", enabled=False):
                    x = torch.tanh(self.layer(x.float()))
                return self.last(self.layer(x))
        return self.body(x)

    def body(self, x: torch.Tensor) -> torch.Tensor:
        for _ in range(self.times):
            x = torch.tanh(self.layer(x))
        return self.last(x)


LAYERS = {
    "linear": (lambda: nn.Linear(8, 8), (64, 8)),
    "conv": (lambda: nn.Conv2d(4, 4, 3, padding=1), (3, 4, 8, 8)),
}


@pytest.mark.parametrize(
    ("kind", "times"),
    [
        pytest.param("linear", 2, marks=pytest.mark.slow),
        ("linear", 3),
        ("conv", 2),
    ],
)
@pytest.mark.parametrize("inside", ["", "whole", "each", "nested"])
@pytest.mark.parametrize("outside", [False, True])
def test_autocast_casts_as_eager(
    kind: str, times: int, inside: str, outside: bool
) -> None:
    make, shape = LAYERS[kind]
    x = torch.randn(shape, generator=torch.Generator().manual_seed(4))

    def run(model: nn.Module) -> torch.Tensor:
        with torch.autocast("cpu", torch.bfloat16, enabled=outside):
            y = model(x)
        return y.float().square().sum()

    assert_as_eager(Reused(make(), times, inside), run)


def test_autocast_without_a_cache_casts_each_time() -> None:
    x = torch.randn(64, 8, generator=torch.Generator().manual_seed(5))

    def run(model: nn.Module) -> torch.Tensor:
        with torch.autocast("cpu", torch.bfloat16, cache_enabled=False):
            y = model(x)
        return y.float().square().sum()

    assert_as_eager(Reused(nn.Linear(8, 8), 3), run)


# The context manager.


def kernels() -> dict[Any, Any]:
    ops = torch.ops.aten
    return {
        op: dict(op.py_kernels)
        for op in (ops.dropout.default, ops.upsample_bilinear2d.vec, ops.matmul.default)
    }


def test_tracing_leaves_no_trace() -> None:
    before = kernels()
    with tracing_as_eager():
        assert not kernels()[torch.ops.aten.matmul.default]
        with tracing_as_eager():
            assert not kernels()[torch.ops.aten.matmul.default]
        assert not kernels()[torch.ops.aten.matmul.default]
    assert kernels() == before
    with pytest.raises(ZeroDivisionError), tracing_as_eager():
        raise ZeroDivisionError
    assert kernels() == before


def test_one_thread_traces_at_a_time() -> None:
    entered = threading.Event()

    def enter() -> None:
        with tracing_as_eager():
            entered.set()

    with tracing_as_eager():
        other = threading.Thread(target=enter)
        other.start()
        assert not entered.wait(0.2)
    other.join()
    assert entered.is_set()


# The layout of gradients.

BATCH = torch.randn(257, 129, generator=torch.Generator().manual_seed(6))
WEIGHT = torch.randn(65, 257, generator=torch.Generator().manual_seed(7))

LOSSES: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "transposed": lambda y: (y.t() * WEIGHT).sum(),
    "expanded": lambda y: y.sum(),
    "expanded_rows": lambda y: (y.sum(0) * WEIGHT[:, 0]).sum(),
    "strided": lambda y: (y[:, ::2] * WEIGHT.t()[:, ::2]).sum(),
    "as_expected": lambda y: y.square().sum(),
}


def mlp() -> nn.Module:
    return nn.Sequential(nn.Linear(129, 97), nn.Tanh(), nn.Linear(97, 65))


@pytest.mark.parametrize("name", LOSSES)
def test_gradients_keep_their_layout(name: str) -> None:
    assert_as_eager(mlp(), lambda m: LOSSES[name](m(BATCH)))


def test_layouts_may_change_from_step_to_step() -> None:
    torch._dynamo.reset()
    model = mlp()
    plain = copy.deepcopy(model)
    lowtide.optimize(model, budget="1 GiB", planner="recompute_all", time_limit=1)
    for name in (*LOSSES, *LOSSES):
        loss = LOSSES[name]
        expected = step(plain, lambda m, loss=loss: loss(m(BATCH)))
        actual = step(model, lambda m, loss=loss: loss(m(BATCH)))
        assert not difference(actual, expected), name


class Block(nn.Module):
    """A residual block as in image generators: norm, convolution, attention."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.norm1 = nn.GroupNorm(4, channels)
        self.conv1 = nn.Conv2d(channels, channels, 3, padding=1)
        self.norm2 = nn.GroupNorm(4, channels)
        self.qkv = nn.Linear(channels, 3 * channels)
        self.out = nn.Linear(channels, channels)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x + self.conv1(F.silu(self.norm1(x)))
        rows = self.norm2(x).flatten(2).transpose(1, 2)
        q, k, v = self.qkv(rows).chunk(3, -1)
        rows = self.out(F.scaled_dot_product_attention(q, k, v))
        return x + rows.transpose(1, 2).reshape(x.shape)


class Hourglass(nn.Module):
    """Down and up again, with a skip connection."""

    def __init__(self, last: nn.Module) -> None:
        super().__init__()
        self.first = nn.Conv2d(3, 8, 3, padding=1)
        self.high = Block(8)
        self.down = nn.Conv2d(8, 16, 3, stride=2, padding=1)
        self.low = Block(16)
        self.up = nn.Conv2d(16, 8, 3, padding=1)
        self.join = nn.Conv2d(16, 8, 1)
        self.last = last

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        high = self.high(self.first(x))
        low = self.low(self.down(high))
        up = self.up(F.interpolate(low, scale_factor=2.0, mode="nearest"))
        return self.last(F.silu(self.join(torch.cat([up, high], 1))))


@pytest.mark.parametrize(
    "memory_format", [torch.contiguous_format, torch.channels_last]
)
@pytest.mark.parametrize("loss", ["permuted", "expanded", "plain"])
def test_image_networks_keep_the_layout_of_eager(
    memory_format: torch.memory_format, loss: str
) -> None:
    model = Hourglass(nn.Conv2d(8, 3, 3, padding=1))
    model.to(memory_format=memory_format)  # pyright: ignore[reportCallIssue]
    generator = torch.Generator().manual_seed(8)
    x = torch.randn(2, 3, 16, 16, generator=generator)
    x = x.contiguous(memory_format=memory_format)
    target = torch.randn(2, 16, 16, 3, generator=generator)
    losses: dict[str, Run] = {
        "permuted": lambda m: (m(x).permute(0, 2, 3, 1) * target).sum(),
        "expanded": lambda m: m(x).sum(),
        "plain": lambda m: F.mse_loss(m(x), target.permute(0, 3, 1, 2)),
    }
    assert_as_eager(model, losses[loss])


@pytest.mark.parametrize("inside", [False, True])
def test_a_backward_under_autocast_is_cast_as_eager(inside: bool) -> None:
    x = torch.randn(64, 8, generator=torch.Generator().manual_seed(9))
    model = Reused(nn.Linear(8, 8), 2, "nested")
    plain = copy.deepcopy(model)
    torch._dynamo.reset()
    lowtide.optimize(model, budget="1 GiB", planner="recompute_all", time_limit=1)

    def train(m: nn.Module) -> dict[str, torch.Tensor | None]:
        with torch.autocast("cpu", torch.bfloat16, enabled=inside):
            loss = m(x).float().square().sum()
        with torch.autocast("cpu", torch.bfloat16):
            loss.backward()
        return {name: p.grad for name, p in m.named_parameters()}

    assert not difference(train(model), train(plain))


class Across(nn.Module):
    """Sequences whose features are normalised where channels of images would be."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.BatchNorm1d(48)
        self.out = nn.Linear(48, 11)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.out(self.norm(x.transpose(1, 2)).transpose(1, 2))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_transposed_batch_norm_is_followed_by_what_eager_runs(dtype) -> None:
    # Its result is contiguous, so the layer behind it is a product and then a sum.
    x = torch.randn(4, 32, 48).to(dtype).requires_grad_()
    assert_as_eager(Across().to(dtype), lambda m: m(x).float().logsumexp(-1).mean())


def _norm_arguments(x: torch.Tensor) -> tuple[Any, ...]:
    ones, zeros = torch.ones(x.shape[1]), torch.zeros(x.shape[1])
    return x, ones, zeros, zeros.clone(), zeros.clone(), True, 0.1, 1e-5


def _norm_backward(g: torch.Tensor, x: torch.Tensor) -> tuple[Any, ...]:
    ones = torch.ones(x.shape[1])
    return g, x, ones, ones, ones, ones, ones, True, 1e-5, [True] * 3


aten = torch.ops.aten
LAYOUTS: dict[Any, Callable[[torch.Tensor, torch.Tensor], tuple[Any, ...]]] = {
    aten.native_batch_norm.default: lambda g, x: _norm_arguments(x),
    aten._native_batch_norm_legit.default: lambda g, x: _norm_arguments(x),
    aten._native_batch_norm_legit_functional.default: lambda g, x: _norm_arguments(x),
    aten._native_batch_norm_legit.no_stats: lambda g, x: (
        *_norm_arguments(x)[:3],
        *_norm_arguments(x)[5:],
    ),
    aten.native_batch_norm_backward.default: _norm_backward,
    aten.log_sigmoid_forward.default: lambda g, x: (x,),
    aten.native_layer_norm_backward.default: lambda g, x: (
        *(g, x, x.shape[-1:]),
        *(torch.zeros(*x.shape[:-1], 1), torch.ones(*x.shape[:-1], 1)),
        *(torch.ones(x.shape[-1]), torch.zeros(x.shape[-1])),
        [True] * 3,
    ),
    aten.mse_loss_backward.default: lambda g, x: (torch.ones(()), x, g, 1),
    aten.smooth_l1_loss_backward.default: lambda g, x: (torch.ones(()), x, g, 1, 1.0),
    aten.huber_loss_backward.default: lambda g, x: (torch.ones(()), x, g, 1, 1.0),
    aten._log_softmax_backward_data.default: lambda g, x: (g, x, 1, torch.float32),
}


@pytest.mark.parametrize("op", LAYOUTS, ids=str)
@pytest.mark.parametrize("layout", ["transposed", "contiguous", "channels_last"])
def test_results_are_described_as_kernels_lay_them_out(op, layout) -> None:
    assert {*LAYOUTS} == {*layouts._CONTIGUOUS, *layouts._LIKE_IMAGES}
    x = torch.randn(3, 4, 5, 6)
    x = {
        "transposed": x.transpose(1, 2).contiguous().transpose(1, 2),
        "contiguous": x,
        "channels_last": x.to(memory_format=torch.channels_last),
    }[layout]
    arguments = LAYOUTS[op](torch.ones_like(x), x)
    with FakeTensorMode() as mode, tracing_as_eager():
        fakes = pytree.tree_map_only(torch.Tensor, mode.from_tensor, arguments)
        foreseen = op(*fakes)
    made = op(*arguments)
    pairs = zip(pytree.tree_leaves(made), pytree.tree_leaves(foreseen), strict=True)
    assert [m.stride() for m, _ in pairs if m.numel() > 1] == [
        f.stride() for f in pytree.tree_leaves(foreseen) if f.numel() > 1
    ]


class Normed(nn.Module):
    """A residual stream through norms that cast to the type it has, cut into pieces."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(64, 64) for _ in range(3))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            torch._dynamo.graph_break()
            wide = x.to(torch.float32)
            scale = torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + 1e-6)
            x = x + torch.tanh(layer((wide * scale).to(x.dtype)))
        return x.square().mean()


def test_a_cast_to_the_same_type_is_no_use_of_its_own() -> None:
    torch.manual_seed(0)
    x = torch.randn(32, 64)
    assert_as_eager(Normed(), lambda model: model(x))

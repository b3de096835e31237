"""What libraries of models seldom hold: odd numbers, odd losses, odd weights."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from torch.nn import functional as F

from benchmarks.zoo.cases import Build, Example, add

WIDTH = 128


def odd(build: Build) -> Build:
    """Register a model under the function's name."""
    add(f"odd/{build.__name__}", build)
    return build


def square(output: Any) -> torch.Tensor:
    """A loss whose gradient is not constant."""
    value = output[0] if isinstance(output, tuple) else output
    return value.float().square().mean()


def rows(*shape: int) -> list[Any]:
    """Two batches of random numbers."""
    return [(torch.randn(*shape),) for _ in range(2)]


def tokens(*shape: int, vocabulary: int = 512) -> list[Any]:
    """Two batches of random tokens."""
    return [(torch.randint(vocabulary, shape),) for _ in range(2)]


def perceptron(depth: int = 4, width: int = WIDTH) -> nn.Sequential:
    """Some linear layers."""
    layers: list[nn.Module] = []
    for _ in range(depth):
        layers += [nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width)]
    return nn.Sequential(*layers)


@odd
def mlp() -> Example:
    return Example(perceptron(), rows(512, WIDTH), square)


@odd
def mlp_loss_inside() -> Example:
    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.body = perceptron()

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.body(x).square().mean()

    return Example(Net(), rows(512, WIDTH))


@odd
def tied_weights() -> Example:
    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.table = nn.Embedding(2048, WIDTH)
            self.body = perceptron()
            self.head = nn.Linear(WIDTH, 2048, bias=False)
            self.head.weight = self.table.weight

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.head(self.body(self.table(x)))

    targets = torch.randint(2048, (512,))
    return Example(Net(), tokens(512), lambda y: F.cross_entropy(y, targets))


@odd
def layer_called_twice() -> Example:
    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.body = perceptron(1)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            for _ in range(4):
                x = x + self.body(x)
            return x

    return Example(Net(), rows(512, WIDTH), square)


@odd
def sparse_embedding() -> Example:
    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.table = nn.Embedding(2048, WIDTH, sparse=True)
            self.body = perceptron()

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.body(self.table(x))

    def sgd(parameters: Any) -> torch.optim.Optimizer:
        return torch.optim.SGD(parameters, lr=0.1)

    return Example(Net(), tokens(512), square, sgd)


@odd
def batch_norm_without_momentum() -> Example:
    layers: list[nn.Module] = [nn.Conv2d(3, 16, 3, padding=1)]
    for _ in range(4):
        layers += [
            nn.BatchNorm2d(16, momentum=None),
            nn.ReLU(),
            nn.Conv2d(16, 16, 3, padding=1),
        ]
    return Example(nn.Sequential(*layers), rows(8, 3, 48, 48), square)


@odd
def one_hot() -> Example:
    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first = nn.Linear(64, WIDTH)
            self.body = perceptron()

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.body(self.first(F.one_hot(x, 64).float()))

    return Example(Net(), tokens(512, vocabulary=64), square)


@odd
def complex_numbers() -> Example:
    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weights = nn.ParameterList(
                nn.Parameter(torch.randn(WIDTH, 65, dtype=torch.complex64) / 8)
                for _ in range(3)
            )
            self.body = perceptron(1)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            for weight in self.weights:
                spectrum = torch.fft.rfft(x.transpose(1, 2)) * weight
                mixed = torch.fft.irfft(spectrum, n=x.shape[1]).transpose(1, 2)
                x = x + self.body(mixed)
            return x

    return Example(Net(), rows(4, 128, WIDTH), square)


@odd
def transformer_with_mask() -> Example:
    layer = nn.TransformerEncoderLayer(WIDTH, 4, 4 * WIDTH, batch_first=True)

    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.body = nn.TransformerEncoder(layer, 3)

        def forward(self, x: torch.Tensor, padding: torch.Tensor) -> torch.Tensor:
            causal = nn.Transformer.generate_square_subsequent_mask(x.shape[1])
            return self.body(x, mask=causal, src_key_padding_mask=padding)

    padding = torch.zeros(8, 64, dtype=torch.bool)
    padding[:, 50:] = True
    return Example(Net(), [(*x, padding) for x in rows(8, 64, WIDTH)], square)


@odd
def transformer_both_halves() -> Example:
    net = nn.Transformer(WIDTH, 4, 2, 2, 4 * WIDTH, batch_first=True)
    mask = nn.Transformer.generate_square_subsequent_mask(48)
    batches = [
        {
            "src": torch.randn(8, 64, WIDTH),
            "tgt": torch.randn(8, 48, WIDTH),
            "tgt_mask": mask,
        }
        for _ in range(2)
    ]
    return Example(net, batches, square)


@odd
def cache_among_outputs() -> Example:
    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.keys = nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in range(4))
            self.body = perceptron(1)

        def forward(self, x: torch.Tensor) -> Any:
            cache = []
            for layer in self.keys:
                key = layer(x)
                x = x + F.scaled_dot_product_attention(self.body(x), key, key)
                cache.append((key, key.transpose(0, 1)))
            return x, tuple(cache)

    return Example(Net(), rows(8, 64, WIDTH), square)


@odd
def contrastive_loss_outside() -> Example:
    targets = torch.arange(512)

    def loss(output: torch.Tensor) -> torch.Tensor:
        near = F.normalize(output) @ F.normalize(output.flip(1)).T
        return F.cross_entropy(near / 0.1, targets)

    return Example(perceptron(), rows(512, WIDTH), loss)


@odd
def large_vocabulary_outside() -> Example:
    targets = torch.randint(8192, (256,))
    net = nn.Sequential(perceptron(2), nn.Linear(WIDTH, 8192))
    return Example(net, rows(256, WIDTH), lambda y: F.cross_entropy(y, targets))


@odd
def mse_inside() -> Example:
    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.body = perceptron()

        def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
            return F.mse_loss(self.body(x), y)

    batches = [
        (*x, *y) for x, y in zip(rows(512, WIDTH), rows(512, WIDTH), strict=True)
    ]
    return Example(Net(), batches)


@odd
def binary_cross_entropy() -> Example:
    targets = torch.rand(2048, WIDTH).round()
    net = nn.Sequential(perceptron(2), nn.Sigmoid())
    return Example(net, rows(2048, WIDTH), lambda y: F.binary_cross_entropy(y, targets))


@odd
def half_precision_region() -> Example:
    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.body = perceptron()

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            with torch.autocast("cpu", dtype=torch.bfloat16):
                for _ in range(2):
                    x = x + self.body(x)
                with torch.autocast("cpu", enabled=False):
                    return self.body(x.float())

    return Example(Net(), rows(256, WIDTH), square)


@odd
def half_precision_convolutions() -> Example:
    layers: list[nn.Module] = [nn.Conv2d(3, 32, 3, padding=1)]
    for _ in range(4):
        layers += [nn.BatchNorm2d(32), nn.ReLU(), nn.Conv2d(32, 32, 3, padding=1)]
    net = nn.Sequential(*layers).to(torch.bfloat16)
    batches = [(x.to(torch.bfloat16),) for (x,) in rows(4, 3, 64, 64)]
    return Example(net, batches, square)


@odd
def double_precision() -> Example:
    batches = [(x.double(),) for (x,) in rows(256, WIDTH)]
    return Example(perceptron().double(), batches, square)


@odd
def channels_last() -> Example:
    layers: list[nn.Module] = [nn.Conv2d(3, 32, 3, padding=1)]
    for _ in range(4):
        layers += [nn.BatchNorm2d(32), nn.ReLU(), nn.Conv2d(32, 32, 3, padding=1)]
    net = nn.Sequential(*layers).to(memory_format=torch.channels_last)
    batches = [
        (x.to(memory_format=torch.channels_last),) for (x,) in rows(4, 3, 64, 64)
    ]
    return Example(net, batches, square)


@odd
def convolutions_in_time() -> Example:
    layers: list[nn.Module] = [nn.Conv1d(16, 64, 3, padding=1)]
    for power in range(5):
        wide = 2**power
        layers += [nn.GELU(), nn.Conv1d(64, 64, 3, padding=wide, dilation=wide)]
    return Example(nn.Sequential(*layers), rows(4, 16, 1024), square)


@odd
def u_net() -> Example:
    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            wide = (16, 32, 64)
            self.down = nn.ModuleList(
                nn.Conv2d(a, b, 3, padding=1)
                for a, b in zip((3, *wide), wide, strict=False)
            )
            self.up = nn.ModuleList(
                nn.Conv2d(a + b, b, 3, padding=1) for a, b in ((64, 32), (32, 16))
            )

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            skips = []
            for conv in self.down:
                x = conv(x).relu()
                skips.append(x)
                x = F.max_pool2d(x, 2)
            x = skips.pop()
            for conv in self.up:
                x = F.interpolate(x, scale_factor=2, mode="bilinear")
                x = conv(torch.cat([x, skips.pop()], 1)).relu()
            return x

    return Example(Net(), rows(4, 3, 64, 64), square)


@odd
def dropout() -> Example:
    layers: list[nn.Module] = []
    for rate in (0.0, 0.1, 0.5, 1.0):
        layers += [perceptron(1), nn.Dropout(rate), nn.AlphaDropout(0.1)]
    return Example(nn.Sequential(*layers), rows(512, WIDTH), square)

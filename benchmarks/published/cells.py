"""NASNet, AmoebaNet and DARTS for CIFAR-10: networks stacked from searched cells.

A cell reads the outputs of the two cells before it. Each of its points is the sum of
two operations on earlier values, and some of the points, joined, are its output. One
third and two thirds of the way up sits a cell that halves the resolution and doubles
the channels; all others keep both.

The cells are the published search results, in the form in which DARTS (Liu, Simonyan,
Yang 2019) compares them: NASNet-A (Zoph et al. 2018), AmoebaNet-A (Real et al. 2019)
and the second-order DARTS cell, all with the same stem, 20 cells, 36 channels and no
drop-path. The published memory figures are of these networks, their loss being the sum
of the outputs.

    lowtide profile benchmarks/published/cells.py:darts_cifar --batch 8
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn


@dataclass(frozen=True, slots=True)
class CellDesign:
    """The wiring of one cell.

    Values 0 and 1 are the outputs of the last but one and of the last cell; value 2 + k
    is point k. A point is a pair of (operation, value it reads); `output` lists the
    values that are joined.
    """

    points: tuple[tuple[tuple[str, int], tuple[str, int]], ...]
    output: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Design:
    """The two cells that a network is stacked from."""

    normal: CellDesign
    reduction: CellDesign


_NASNET = Design(
    normal=CellDesign(
        points=(
            (("separable_5", 1), ("separable_3", 0)),
            (("separable_5", 0), ("separable_3", 0)),
            (("average_pool", 1), ("skip", 0)),
            (("average_pool", 0), ("average_pool", 0)),
            (("separable_3", 1), ("skip", 1)),
        ),
        output=(2, 3, 4, 5, 6),
    ),
    reduction=CellDesign(
        points=(
            (("separable_5", 1), ("separable_7", 0)),
            (("max_pool", 1), ("separable_7", 0)),
            (("average_pool", 1), ("separable_5", 0)),
            (("skip", 3), ("average_pool", 2)),
            (("separable_3", 2), ("max_pool", 1)),
        ),
        output=(4, 5, 6),
    ),
)
_AMOEBANET = Design(
    normal=CellDesign(
        points=(
            (("average_pool", 0), ("max_pool", 1)),
            (("separable_3", 0), ("separable_5", 2)),
            (("separable_3", 0), ("average_pool", 3)),
            (("separable_3", 1), ("skip", 1)),
            (("skip", 0), ("average_pool", 1)),
        ),
        output=(4, 5, 6),
    ),
    reduction=CellDesign(
        points=(
            (("average_pool", 0), ("separable_3", 1)),
            (("max_pool", 0), ("separable_7", 2)),
            (("separable_7", 0), ("average_pool", 1)),
            (("max_pool", 0), ("max_pool", 1)),
            (("factored_7", 0), ("separable_3", 5)),
        ),
        output=(3, 4, 6),
    ),
)
_DARTS = Design(
    normal=CellDesign(
        points=(
            (("separable_3", 0), ("separable_3", 1)),
            (("separable_3", 0), ("separable_3", 1)),
            (("separable_3", 1), ("skip", 0)),
            (("skip", 0), ("dilated_3", 2)),
        ),
        output=(2, 3, 4, 5),
    ),
    reduction=CellDesign(
        points=(
            (("max_pool", 0), ("max_pool", 1)),
            (("skip", 2), ("max_pool", 1)),
            (("max_pool", 0), ("skip", 2)),
            (("skip", 2), ("max_pool", 1)),
        ),
        output=(2, 3, 4, 5),
    ),
)


def _pointwise(channels_in: int, channels_out: int) -> nn.Sequential:
    return nn.Sequential(
        nn.ReLU(),
        nn.Conv2d(channels_in, channels_out, 1, bias=False),
        nn.BatchNorm2d(channels_out),
    )


def _depthwise(
    channels: int, kernel: int, stride: int, dilation: int = 1
) -> tuple[nn.Module, ...]:
    """A convolution of each channel by itself, then one across channels."""
    return (
        nn.ReLU(),
        nn.Conv2d(
            channels,
            channels,
            kernel,
            stride=stride,
            padding=dilation * (kernel // 2),
            dilation=dilation,
            groups=channels,
            bias=False,
        ),
        nn.Conv2d(channels, channels, 1, bias=False),
        nn.BatchNorm2d(channels),
    )


def _factored(channels: int, stride: int) -> nn.Sequential:
    """A 7x7 convolution as a row followed by a column."""
    row = nn.Conv2d(
        channels, channels, (1, 7), stride=(1, stride), padding=(0, 3), bias=False
    )
    column = nn.Conv2d(
        channels, channels, (7, 1), stride=(stride, 1), padding=(3, 0), bias=False
    )
    return nn.Sequential(nn.ReLU(), row, column, nn.BatchNorm2d(channels))


class Halving(nn.Module):
    """Halves the resolution by two 1x1 convolutions that see different pixels."""

    def __init__(self, channels_in: int, channels_out: int) -> None:
        super().__init__()
        half = channels_out // 2
        self.relu = nn.ReLU()
        self.even = nn.Conv2d(channels_in, half, 1, stride=2, bias=False)
        self.odd = nn.Conv2d(channels_in, channels_out - half, 1, stride=2, bias=False)
        self.norm = nn.BatchNorm2d(channels_out)

    def forward(self, features: Tensor) -> Tensor:
        """The features at half the height and width."""
        active = self.relu(features)
        parts = (self.even(active), self.odd(active[:, :, 1:, 1:]))
        return self.norm(torch.cat(parts, dim=1))


def _operation(name: str, channels: int, stride: int) -> nn.Module:
    match name.split("_"):
        case ["skip"]:
            return nn.Identity() if stride == 1 else Halving(channels, channels)
        case ["max", "pool"]:
            return nn.MaxPool2d(3, stride=stride, padding=1)
        case ["average", "pool"]:
            return nn.AvgPool2d(3, stride=stride, padding=1, count_include_pad=False)
        case ["separable", size]:
            # Twice, as all three papers do; only the first one may halve.
            return nn.Sequential(
                *_depthwise(channels, int(size), stride),
                *_depthwise(channels, int(size), 1),
            )
        case ["dilated", size]:
            return nn.Sequential(*_depthwise(channels, int(size), stride, dilation=2))
        case ["factored", "7"]:
            return _factored(channels, stride)
        case _:
            raise AssertionError(name)


class Cell(nn.Module):
    """One cell: two values in, one out."""

    def __init__(
        self,
        design: CellDesign,
        *,
        channels_in: tuple[int, int],
        channels: int,
        halves: bool,
        follows_halving: bool,
    ) -> None:
        super().__init__()
        self.design = design
        # After a cell that halved, the older input still has the larger resolution.
        align = Halving if follows_halving else _pointwise
        self.align = nn.ModuleList(
            (align(channels_in[0], channels), _pointwise(channels_in[1], channels))
        )
        self.operations = nn.ModuleList(
            _operation(name, channels, stride=2 if halves and value < 2 else 1)
            for point in design.points
            for name, value in point
        )
        self.channels_out = channels * len(design.output)

    def forward(self, before_last: Tensor, last: Tensor) -> Tensor:
        """The joined output points."""
        values = [self.align[0](before_last), self.align[1](last)]
        operations = iter(self.operations)
        for (_, left), (_, right) in self.design.points:
            values.append(
                next(operations)(values[left]) + next(operations)(values[right])
            )
        return torch.cat([values[index] for index in self.design.output], dim=1)


class CellNetwork(nn.Module):
    """A stem, `layers` cells and a classifier."""

    def __init__(self, design: Design, *, width: int, layers: int, classes: int):
        super().__init__()
        stem = 3 * width
        self.stem = nn.Sequential(
            nn.Conv2d(3, stem, 3, padding=1, bias=False), nn.BatchNorm2d(stem)
        )
        halving_cells = {layers // 3, 2 * layers // 3}
        self.cells = nn.ModuleList()
        channels_in, channels = (stem, stem), width
        for index in range(layers):
            halves = index in halving_cells
            channels *= 2 if halves else 1
            cell = Cell(
                design.reduction if halves else design.normal,
                channels_in=channels_in,
                channels=channels,
                halves=halves,
                follows_halving=index - 1 in halving_cells,
            )
            self.cells.append(cell)
            channels_in = (channels_in[1], cell.channels_out)
        self.pool = nn.AdaptiveAvgPool2d(1)
        self.classifier = nn.Linear(channels_in[1], classes)

    def forward(self, images: Tensor) -> Tensor:
        """Scores of the classes."""
        before_last = last = self.stem(images)
        for cell in self.cells:
            before_last, last = last, cell(before_last, last)
        return self.classifier(self.pool(last).flatten(1))


Step = tuple[nn.Module, Tensor, Callable[[Tensor], Tensor]]


def nasnet_cifar(**sizes: int) -> Step:
    """NASNet-A cells."""
    return _step(_NASNET, **sizes)


def amoebanet_cifar(**sizes: int) -> Step:
    """AmoebaNet-A cells."""
    return _step(_AMOEBANET, **sizes)


def darts_cifar(**sizes: int) -> Step:
    """DARTS cells (second order)."""
    return _step(_DARTS, **sizes)


def _step(
    design: Design,
    *,
    batch: int = 8,
    image: int = 32,
    classes: int = 10,
    width: int = 36,
    layers: int = 20,
) -> Step:
    """The network, square colour images, and the sum as its loss."""
    torch.manual_seed(0)
    model = CellNetwork(design, width=width, layers=layers, classes=classes)
    return model, torch.randn(batch, 3, image, image), torch.sum

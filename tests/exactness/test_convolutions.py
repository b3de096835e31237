"""The two gradients of a convolution are two ops, with the bits of one."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

import lowtide


class Block(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.first = nn.Conv2d(width, width, 3, padding=1)
        self.norm = nn.BatchNorm2d(width)
        self.beside = nn.Conv2d(width, width, 1, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.relu(self.norm(self.first(x))) + self.beside(x)


def network() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(
        *(nn.Conv2d(3, 16, 3, padding=1), Block(16), nn.MaxPool2d(2)),
        *(nn.ConvTranspose2d(16, 8, 2, stride=2), nn.Conv2d(8, 8, 3, groups=8)),
        *(nn.Flatten(1), nn.Linear(8 * 14 * 14, 4)),
    )


@pytest.mark.parametrize(
    ("dtype", "layout", "apart"),
    [
        # The first one has no gradient for what it convolves.
        (torch.float32, torch.contiguous_format, 4),
        (torch.bfloat16, torch.contiguous_format, 4),
        # The weight of a kernel of one number has no layout of its own.
        (torch.float32, torch.channels_last, 2),
    ],
    ids=["plain", "16 bits", "channels last"],
)
def test_gradients_of_a_convolution_are_apart(
    dtype: torch.dtype, layout: Any, apart: int
) -> None:
    model = network().to(dtype).to(memory_format=layout)
    batch = torch.randn(4, 3, 16, 16).to(dtype).to(memory_format=layout)
    step = lowtide.profile(model, batch)
    gradients = [op for op in step.ops if "convolution_backward" in op.target]
    assert len(gradients) == 5 + apart
    result = lowtide.verify(model, batch, budget=step.floor_bytes)
    assert result.ok, result.differences
    assert result.measured_peak_bytes <= result.predicted_peak_bytes


def test_what_was_convolved_is_gone_before_its_gradient_is_there() -> None:
    """At its lowest peak, one of them is beside the gradient of the result."""
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Conv2d(4, 64, 3, padding=1), nn.Conv2d(64, 4, 3, padding=1)
    )
    batch = torch.randn(4, 4, 32, 32)
    step = lowtide.profile(model, batch, how="estimate")
    inner = max(step.sizes[s] for op in step.ops for s in op.writes)
    assert step.floor_bytes - step.resident_bytes < 1.5 * inner
    assert step.eager_peak_bytes - step.resident_bytes > 2 * inner

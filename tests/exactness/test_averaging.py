"""Batch norms whose momentum is another number in each step are part of one graph."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import lowtide
from lowtide.engine.bits import same_bits
from lowtide.engine.capture import momentum


@pytest.fixture(autouse=True)
def _seeded():
    torch._dynamo.reset()
    torch.manual_seed(0)


def block(channels: int) -> nn.Sequential:
    return nn.Sequential(
        nn.Conv2d(channels, 8, 3, padding=1),
        nn.BatchNorm2d(8, momentum=None),
        nn.ReLU(),
    )


def values_of(model: nn.Module) -> list[torch.Tensor]:
    gradients = [p.grad for p in model.parameters() if p.grad is not None]
    return [b.clone() for b in (*model.buffers(), *gradients)]


def trained(model: nn.Module, x: torch.Tensor) -> list[torch.Tensor]:
    found: list[torch.Tensor] = []
    for number in range(4):
        model.zero_grad()
        model(x * (number + 1)).square().mean().backward()
        found += values_of(model)
    return found


@pytest.mark.judges_plans
@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last])
def test_a_cumulative_average_is_planned_as_one_graph(layout: torch.memory_format):
    model = nn.Sequential(block(3), block(8), block(8)).to(memory_format=layout)
    x = torch.randn(4, 3, 24, 24).contiguous(memory_format=layout)
    plain = trained(copy.deepcopy(model), x)
    lowtide.optimize(model, budget="75%", time_limit=0.5)
    ours = trained(model, x)
    call = lowtide.planned(model)
    assert call is not None
    assert (call.watch.graphs, call.watch.forwards) == (1, 4)
    again = [call.steps[-1].ops[number] for number in call.plans[-1].recomputed]
    assert any(op.name.startswith("_native_batch_norm") for op in again)
    assert len(plain) == len(ours) == 4 * (9 + 12)
    assert all(map(same_bits, plain, ours))


class Late(nn.Module):
    """Its count goes on between where it is looked at and where that is used."""

    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Linear(8, 8)
        self.register_buffer("count", torch.ones((), dtype=torch.long))
        self.register_buffer("mean", torch.zeros(8))
        self.register_buffer("variance", torch.ones(8))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        share = 3.0 / (2.0 + self.count.item())
        self.count.add_(1)
        return F.batch_norm(
            self.net(x), self.mean, self.variance, training=True, momentum=share
        )


@pytest.mark.filterwarnings("ignore::lowtide.errors.LowtideWarning")
def test_a_count_that_goes_on_is_used_as_it_was():
    model, x = Late(), torch.randn(16, 8)
    plain = trained(copy.deepcopy(model), x)
    lowtide.optimize(model, budget="100%", time_limit=0.1)
    ours = trained(model, x)
    assert all(map(same_bits, plain, ours))


class Looking(nn.Module):
    """Normalises without gradients, in a graph of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.net = nn.BatchNorm1d(8, momentum=None), nn.Linear(8, 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        with torch.no_grad():
            x = self.norm(x)
        return self.net(x) if self.where(x) else self.net(-x)

    def where(self, x: torch.Tensor) -> bool:
        return True


class Deciding(Looking):
    """A value decides what is behind it, so that it is in a graph of its own."""

    def where(self, x: torch.Tensor) -> bool:
        return bool(x[0, 0] > 0)


@pytest.mark.filterwarnings("ignore::lowtide.errors.LowtideWarning")
@pytest.mark.parametrize("build", [Looking, Deciding])
def test_a_norm_without_gradients_counts_too(build: type[Looking]):
    model, x = build(), torch.randn(16, 8)
    plain = trained(copy.deepcopy(model), x)
    lowtide.optimize(model, budget="100%", time_limit=0.1)
    assert all(map(same_bits, plain, trained(model, x)))


def test_a_norm_in_a_graph_that_runs_as_it_is():
    mean, variance = torch.randn(8), torch.rand(8)
    means, variances = mean.clone(), variance.clone()
    x = torch.randn(16, 8)
    expected = F.batch_norm(x, mean, variance, training=True, momentum=1 / 3)
    third = torch.tensor(1 / 3, dtype=torch.float64)
    given = {"running_var": variances, "training": True}
    ours = momentum._batch_norm_by(third, x, means, **given)
    assert same_bits(expected, ours)
    assert same_bits(mean, means)
    assert same_bits(variance, variances)

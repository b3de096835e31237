"""What is learned in the first steps is planned with soon, and captured once."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn

import lowtide
from lowtide.engine.bits import same_bits

WIDTH = 16


@pytest.fixture(autouse=True)
def _seeded():
    torch._dynamo.reset()
    torch.manual_seed(0)


class Changing(nn.Module):
    """Says in its first call that it will do with less, and is cut in two there.

    The first part hands over a value that the second only looks at.
    """

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)
        self.extra: nn.Module | None = nn.Tanh()
        self.register_buffer("seen", torch.zeros(()))

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        hidden = self.first(x)
        looked_at = torch.tanh(hidden)
        if self.extra is not None:
            print("this will do without")
            self.extra = None
        self.seen = looked_at.detach().mean()
        output = self.last(torch.tanh(hidden))
        return output.square().mean(), output


def test_what_parts_of_a_step_were_surprised_by_is_not_held_against_the_whole():
    model, x = Changing(), torch.randn(32, WIDTH)
    twin = copy.deepcopy(model)
    lowtide.optimize(model, budget="100%", time_limit=0.1)
    call = lowtide.planned(model)
    assert call is not None
    graphs: list[int] = []
    for _ in range(4):
        for each in (twin, model):
            each.zero_grad()
            each(x)[0].backward()
        graphs.append(call.watch.graphs)
        assert all(map(same_bits, gradients_of(twin), gradients_of(model)))
        assert same_bits(twin.seen, model.seen)
    # Two parts, and the whole in the second step.
    assert graphs == [2, 3, 3, 3]
    assert call.watch.surprises == 1


class Deciding(nn.Module):
    """A value decides what is behind it, and how many rows of it there are."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        hidden = torch.tanh(self.first(x))
        if hidden.sum().item() < -1e9:
            return hidden.mean()
        chosen = hidden[hidden[:, 0] > 0]
        return torch.tanh(self.last(chosen)).square().sum()


@pytest.mark.filterwarnings("ignore::lowtide.errors.LowtideWarning")
def test_graphs_are_planned_together_without_being_captured_again():
    model, x = Deciding(), torch.randn(32, WIDTH)
    twin = copy.deepcopy(model)
    lowtide.optimize(model, budget="100%", time_limit=0.1)
    call = lowtide.planned(model)
    assert call is not None
    graphs: list[int] = []
    for _ in range(3):
        for each in (twin, model):
            each.zero_grad()
            each(x).backward()
        graphs.append(call.watch.graphs)
        assert all(map(same_bits, gradients_of(twin), gradients_of(model)))
    # As many as in the first step, which are planned together by now.
    assert graphs == graphs[:1] * 3
    assert len(call.planning.foreseen) == graphs[0]
    assert call.planning.decide_foreseen is not None


def gradients_of(model: nn.Module) -> list[torch.Tensor]:
    return [p.grad for p in model.parameters() if p.grad is not None]

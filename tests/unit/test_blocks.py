"""Steps of many equal blocks, of which one is captured; ranks that are not there."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import lowtide
from lowtide.step.blocks import blocks_of, few_blocks

WIDTH = 64


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(WIDTH)
        self.up, self.down = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.down(torch.tanh(self.up(self.norm(x))))


class Net(nn.Module):
    def __init__(self, depth: int) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(8, WIDTH), nn.Linear(WIDTH, 8)
        self.layers = nn.ModuleList(Block() for _ in range(depth))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.first(x)
        for layer in self.layers:
            x = layer(x)
        return self.last(x).square().mean()


def profiled(depth: int, **options: object) -> lowtide.StepGraph:
    batch = torch.randn(512, 8)
    how = {"how": "estimate", "device": "h100"}
    return lowtide.profile(Net(depth), batch, **how, **options)  # type: ignore[arg-type]


@pytest.fixture(scope="module")
def one_rank() -> lowtide.StepGraph:
    return profiled(7, mesh="dp=1")


def test_a_repeated_block_is_what_capturing_all_of_them_shows(one_rank):
    captured = profiled(7)
    assert len(one_rank.ops) == len(captured.ops)
    assert one_rank.baseline_seconds == pytest.approx(captured.baseline_seconds)
    state = sum(s.nbytes for s in one_rank.storages if s.kind == "optimizer_state")
    parameters = sum(p.numel() for p in Net(7).parameters())
    assert state == 8 * parameters
    unit = one_rank.alignment_bytes
    state = -(-state // unit) * unit
    assert one_rank.baseline_peak_bytes - state == captured.baseline_peak_bytes


def test_repetitions_can_be_taken_out_again(one_rank):
    small, number = few_blocks(one_rank)
    assert len(blocks_of(one_rank)) == 7
    assert len(blocks_of(small)) == 5
    assert len(small.ops) == len(profiled(5).ops)
    assert sorted(number.values()) == list(range(len(small.storages)))


def test_parameters_that_are_divided_are_gathered_and_their_gradients_summed(one_rank):
    step = profiled(7, mesh={"dp": 4})
    gathers = [op for op in step.ops if op.target == "lowtide::gather"]
    sums = [op for op in step.ops if op.target == "lowtide::scatter"]
    # A block's together; the first and the last layer have a weight and a bias each.
    assert len(gathers) == len(sums) == 7 + 4
    parts = [s for s in step.storages if s.name.startswith("part of")]
    whole = sum(s.nbytes for s in one_rank.storages if s.kind == "parameter")
    assert sum(s.nbytes for s in parts) * 4 == pytest.approx(whole, rel=0.01)
    gradients = [s for s in step.storages if s.name.startswith("grad of part of")]
    assert {s.id for s in gradients} <= set(step.outputs)
    # Freed behind the forward and gathered again, as `fully_shard` does it.
    plan = lowtide.plan(step, budget=f"{step.baseline_peak_bytes - 1} B")
    assert plan.peak_bytes < step.baseline_peak_bytes


def test_equal_blocks_are_planned_alike_within_the_budget(one_rank):
    with pytest.raises(lowtide.BudgetTooSmallError) as error:
        lowtide.plan(one_rank, budget=1)
    floor = error.value.floor_bytes
    assert floor < one_rank.baseline_peak_bytes
    budget = (floor + one_rank.baseline_peak_bytes) // 2
    plan = lowtide.plan(one_rank, budget=budget)
    assert plan.peak_bytes <= budget
    assert plan.overhead > 0


def test_a_mesh_that_cannot_be_is_refused():
    with pytest.raises(lowtide.LowtideError, match="none of dp, tp, sp"):
        profiled(5, mesh="pp=4")
    with pytest.raises(lowtide.LowtideError, match="no list of five or more equal"):
        profiled(2, mesh="dp=4")
    with pytest.raises(lowtide.LowtideError, match="does not say how its layers"):
        profiled(5, mesh="tp=2")

"""Steps of many equal blocks, of which one is captured; ranks that are not there."""

from __future__ import annotations

from types import SimpleNamespace
from typing import ClassVar

import pytest
import torch
from torch import nn

import lowtide
from lowtide.planners._blocks import _ladder, _Whole
from lowtide.step.blocks import blocks_of, few_blocks
from lowtide.step.schedule import from_kept
from lowtide.step.simulate import simulate

WIDTH = 64


class Mlp(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.down(torch.tanh(self.up(x)))


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm, self.mlp = nn.LayerNorm(WIDTH), Mlp()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.mlp(self.norm(x))


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


class DividedNet(Net):
    """Says how its layers are divided, as models from transformers do."""

    halves: ClassVar = {"layers.*.mlp.up": "colwise", "layers.*.mlp.down": "rowwise"}
    config = SimpleNamespace(base_model_tp_plan=halves)


def profiled(depth: int, net: type[Net] = Net, **options: object) -> lowtide.StepGraph:
    batch = torch.randn(4, 128, 8)
    how = {"how": "estimate", "device": "h100"}
    return lowtide.profile(net(depth), batch, **how, **options)  # type: ignore[arg-type]


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


def test_exchanges_are_repeated_where_that_is_the_lower_peak():
    step = profiled(7, DividedNet, mesh="dp=4,tp=2,sp=2")
    exchanges = {op.id for op in step.ops if "all_gather" in op.target}
    assert len(exchanges) >= 14
    floor = lowtide.plan(step, budget=step.floor_bytes)
    assert exchanges & set(floor.recomputed)
    # Gradients are summed once, whatever the plan.
    sums = {op.id for op in step.ops if op.target == "lowtide::scatter"}
    assert not sums & set(floor.recomputed)


def test_no_way_to_run_a_block_raises_the_peak(one_rank):
    whole = _Whole(one_rank)
    peaks = [
        simulate(one_rank, from_kept(one_rank, whole.kept([rung] * 7))).peak_bytes
        for rung in _ladder(one_rank, whole)
    ]
    assert peaks == sorted(peaks, reverse=True)
    # What fits already is left as it is.
    plan = lowtide.plan(one_rank, budget=one_rank.baseline_peak_bytes)
    assert plan.recomputed == ()


def test_the_head_of_a_model_on_a_mesh_runs_in_parts():
    class Scores(Net):
        def __init__(self, depth: int) -> None:
            super().__init__(depth)
            self.last = nn.Linear(WIDTH, 4096, bias=False)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            x = self.first(x)
            for layer in self.layers:
                x = layer(x)
            targets = torch.zeros(512, dtype=torch.long)
            return nn.functional.cross_entropy(self.last(x).flatten(0, 1), targets)

    step = profiled(6, Scores, mesh="dp=4")
    lowest = lowtide.plan(step, budget=step.floor_bytes)
    run = {step.ops[i].target for i in lowest.ops}
    assert {"lowtide::head_loss", "lowtide::head_gradients"} <= run
    scores = 512 * 4096 * 4
    assert lowest.peak_bytes - step.resident_bytes < 2 * scores


def test_a_mesh_that_cannot_be_is_refused():
    with pytest.raises(lowtide.LowtideError, match="none of dp, tp, sp"):
        profiled(5, mesh="pp=4")
    with pytest.raises(lowtide.LowtideError, match="no list of five or more equal"):
        profiled(2, mesh="dp=4")
    with pytest.raises(lowtide.LowtideError, match="does not say how its layers"):
        profiled(5, mesh="tp=2")

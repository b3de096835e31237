"""The comparison with other methods: what is wrapped, what is counted as wrong."""

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch import nn

from lowtide import models
from lowtide.engine.jobs.bench.activations import activation_peak_bytes, plan_for_cut
from lowtide.engine.jobs.bench.against import compare_methods
from lowtide.engine.jobs.bench.methods import (
    methods_named,
    other_methods,
    repeated_blocks,
)
from lowtide.errors import InvalidArgumentError
from tests.graphs import transformer
from tests.shell import environment, run

pytestmark = pytest.mark.real
ROOT = Path(__file__).parents[2]


def test_blocks_are_what_people_wrap_by_hand():
    gpt = models.build("tiny_gpt", layers=3).model
    assert [type(b).__name__ for b in repeated_blocks(gpt)] == ["Block"] * 3
    assert repeated_blocks(models.build("mlp").model) == []


def test_blocks_of_a_model_from_a_library():
    resnet = models.build("resnet50", batch=1, image=32).model
    assert {type(b).__name__ for b in repeated_blocks(resnet)} == {"Bottleneck"}
    assert len(repeated_blocks(resnet)) == 16


class Normalised(nn.Module):
    """Blocks whose buffers change with every forward."""

    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(Normalised.Block() for _ in range(2))

    class Block(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear, self.norm = nn.Linear(4, 4), nn.BatchNorm1d(4)

        def forward(self, x):
            return torch.relu(self.norm(self.linear(x)))

    def forward(self, x):
        for block in self.blocks:
            x = block(x)
        return x.sum()


def test_a_second_update_of_buffers_is_seen():
    methods = [m for m in other_methods() if m.name in ("eager", "blocks")]
    eager, blocks = compare_methods(
        methods, Normalised(), torch.randn(8, 4), None, steps=1
    )
    assert eager.is_exact
    assert eager.time_ratio == 1.0
    assert blocks.num_wrong_gradients == 0
    assert blocks.num_wrong_buffers == 6  # mean, variance and count of both
    assert not blocks.is_exact


def test_a_method_that_does_not_apply_says_why():
    methods = [m for m in other_methods() if m.name in ("eager", "blocks")]
    _, blocks = compare_methods(methods, nn.Linear(4, 1), torch.randn(8, 4), None)
    assert blocks.problem == "no block occurs twice in the model"


def test_methods_are_chosen_by_name():
    assert [m.name for m in methods_named("blocks")] == ["eager", "blocks"]
    assert len(methods_named("all")) > len(methods_named("usual")) > 2
    with pytest.raises(InvalidArgumentError, match="there is no method 'block'"):
        methods_named("block,eager")


def test_every_second_product_is_kept_and_the_numbers_are_the_same():
    model = models.build("tiny_gpt", layers=2)
    rows = compare_methods(
        methods_named("blocks,selective,selective_half"),
        model.model,
        model.batch,
        model.loss,
        steps=1,
    )
    assert all(row.is_exact and not row.problem for row in rows)


def test_a_plan_for_a_cut_of_the_activation_peak():
    step = transformer(4, tokens=64, width=32)
    baseline = activation_peak_bytes(step)
    plan = plan_for_cut(step, baseline, 0.4, planner="mu_two")
    assert activation_peak_bytes(step, plan) <= 0.6 * baseline
    lowest = plan_for_cut(step, baseline, 0.999, planner="mu_two")
    assert lowest.peak_bytes < plan.peak_bytes


@pytest.mark.slow
def test_bench_on_a_model(tmp_path):
    words = ("tiny_gpt", "-O", "dropout=0.1", "--budgets", "70%,1%,theirs,floor")
    chosen = ("--methods", "blocks,selective_half,torch_budget_0.5", "--steps", "1")
    done = run("bench", *words, *chosen, "-o", "bench.json", cwd=tmp_path)
    assert done.code == 0, done.err
    rows = {
        r["name"]: r for r in json.loads((tmp_path / "bench.json").read_text())["rows"]
    }
    assert rows["lowtide_70"]["is_exact"]
    assert rows["lowtide_70"]["peak_bytes"] < rows["eager"]["peak_bytes"]
    assert "below the floor" in rows["lowtide_1"]["problem"]
    assert rows["lowtide_floor"]["peak_bytes"] < rows["lowtide_70"]["peak_bytes"]
    for name in ("blocks", "selective_half", "torch_budget_0.5"):
        ours = rows[f"lowtide_at_{name}"]
        assert ours["matches"] == name
        assert ours["is_exact"]
        assert ours["peak_bytes"] <= rows[name]["peak_bytes"]
        assert 0 < ours["activation_peak_bytes"] < ours["peak_bytes"]
    assert rows["blocks"]["is_exact"]
    assert rows["selective_half"]["is_exact"]
    # With dropout the masks are drawn again, so this is not rounding.
    assert rows["torch_budget_0.5"]["largest_difference"] > 0.01
    assert "DIFFERENT" in done.out


@pytest.mark.slow
def test_a_published_model_is_planned_at_its_cut():
    printed = _feng("resnet18", "--time-limit", "4", "--jobs", "1")
    (row,) = [line for line in printed if line.startswith("resnet18")]
    assert " 35% " in row
    assert "reached on 1, at most the published extra time on 1" in printed[-1]


@pytest.mark.slow
def test_a_published_model_is_run_here():
    words = ("--measure", "--batch", "2", "--steps", "1", "--time-limit", "4")
    (row,) = _feng("resnet18", *words)
    assert row.endswith("equal")
    assert "batch   2" in row
    # The ledger sees what the simulator predicts, up to what is alive for an instant.
    (cut,) = re.findall(r"measured -([\d.]+)%", row)
    assert float(cut) == pytest.approx(35, abs=10)


def _feng(*words):
    done = subprocess.run(
        [sys.executable, ROOT / "benchmarks" / "feng.py", *words],
        env=environment(),
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()

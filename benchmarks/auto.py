"""What planner auto costs at each budget and at the lowest peak, and what is proven.

    python benchmarks/auto.py                        # the six models of the table
    python benchmarks/auto.py unet my.step.json --label "what changed"
    python benchmarks/auto.py --steps folder         # captured once, then kept there
    python benchmarks/auto.py gpt2 --peak 5669815424 # shares of a peak that used to be

Everything here is predicted: op times are estimates for an A100, and nothing is run.
Each cell is the extra time of the plan and its distance from the proven bound, in
points of the baseline's time, at a share of the baseline's peak. The next column, "as
then", is at the bytes that were the lowest found when this table was first made, before
ops changed places and had forms (`FORMER`): the lowest peak has sunk since, and costs
more. Then come the lowest peak found today, with the proven least beside it, and
budgets a little above it.
The search counts work instead of seconds, so the figures do not depend on the load of
the machine; the seconds of planning, processor time of this process, do.

Results are appended to `benchmarks/results/auto.json`, whose history shows what each
change brought.
"""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path
from typing import Any

from lowtide.errors import BudgetTooSmallError
from lowtide.planners.auto import plan
from lowtide.step.graph import StepGraph
from lowtide.step.plan import Plan

DEVICE = "a100-80gb"
# Batches at which gradients and weights do not already hold the budgets below.
MODELS: dict[str, dict[str, Any]] = {
    "resnet50": {"batch": 64},
    "densenet121": {"batch": 32},
    "gpt2": {"sequence": 512},
    "unet": {"batch": 8},
    "moe": {},
    "t5": {},
}
SHARES = (0.5, 0.4, 0.3)
# The lowest peaks of the same models at commit 4b0018b, in bytes, under no load. For
# GPT-2, where it was 2,151,092,032, the 35 % of the peak that an audit named.
FORMER = {
    "resnet50": 1_064_942_144,
    "densenet121": 479_414_400,
    "gpt2": 1_984_435_398,
    "unet": 896_215_680,
    "moe": 395_606_528,
    "t5": 770_848_960,
}
# So much more than the lowest peak, where time falls steeply.
ABOVE = (0.01, 0.02, 0.05)
RESULTS = Path(__file__).parent / "results" / "auto.json"


def mixture_of_experts() -> Any:
    """A transformer whose feed-forward parts are eight experts, the best two weighted.

    All experts run on all tokens, so that the step is one graph of fixed shapes.
    """
    import torch
    from torch import nn
    from torch.nn import functional

    from lowtide.models import Example

    class Experts(nn.Module):
        def __init__(self, width: int, count: int) -> None:
            super().__init__()
            self.gate = nn.Linear(width, count)
            self.experts = nn.ModuleList(
                nn.Sequential(
                    nn.Linear(width, 2 * width), nn.SiLU(), nn.Linear(2 * width, width)
                )
                for _ in range(count)
            )

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            weight, place = torch.topk(self.gate(x).softmax(-1), 2)
            out = torch.zeros_like(x)
            for number, expert in enumerate(self.experts):
                share = (weight * (place == number)).sum(-1, keepdim=True)
                out = out + share * expert(x)
            return out

    class Block(nn.Module):
        def __init__(self, width: int) -> None:
            super().__init__()
            self.first, self.second = nn.LayerNorm(width), nn.LayerNorm(width)
            self.mix = nn.MultiheadAttention(width, 8, batch_first=True)
            self.experts = Experts(width, 8)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            y = self.first(x)
            x = x + self.mix(y, y, y, need_weights=False)[0]
            return x + self.experts(self.second(x))

    width = 512
    model = nn.Sequential(*(Block(width) for _ in range(4)), nn.Linear(width, 1000))
    labels = torch.randint(1000, (16 * 256,))

    def loss(output: torch.Tensor) -> torch.Tensor:
        return functional.cross_entropy(output.flatten(0, 1), labels)

    return Example(model, torch.randn(16, 256, width), loss)


def captured(name: str, folder: Path | None) -> StepGraph:
    """A saved step, or the step of a model, captured on fake tensors."""
    file = folder / f"{name}.step.json" if folder else None
    if name.endswith(".json"):
        file = Path(name)
    if file and file.exists():
        return StepGraph.load(file)
    import lowtide
    from lowtide import models

    if name == "moe":
        from torch._subclasses import FakeTensorMode

        with FakeTensorMode(allow_non_fake_inputs=True):
            example = mixture_of_experts()
    else:
        example = models.build_fake(name, **MODELS.get(name, {}))
    step = lowtide.profile(
        example.model,
        example.batch,
        loss=example.loss,
        how="estimate",
        device=DEVICE,
        name=name,
    )
    if file:
        file.parent.mkdir(parents=True, exist_ok=True)
        step.save(file, force=True)
    return step


def cell(step: StepGraph, found: Plan) -> dict[str, float]:
    """Extra time and what is proven of it, as shares of the baseline's time."""
    bound = found.proof.bound_seconds / step.baseline_seconds - 1.0
    return {"overhead": found.overhead, "gap": found.overhead - bound}


def measure(
    step: StepGraph, shares: list[float], peak: int, time_limit: float
) -> dict[str, Any]:
    """The figures of one step at these shares of a peak."""
    begun = time.process_time()
    lowest = plan(step, None)
    at_lowest = plan(step, lowest.peak_bytes, time_limit=time_limit)
    cells: dict[str, dict[str, float] | None] = {}
    for share in shares:
        try:
            found = plan(step, int(share * peak), time_limit=time_limit)
        except BudgetTooSmallError:
            cells[str(share)] = None
        else:
            cells[str(share)] = cell(step, found)
    if step.name in FORMER:
        # Sizes were rounded to 64 bytes then and are to 512 now: MoE needs 4 KiB more.
        then = max(FORMER[step.name], lowest.peak_bytes)
        found = plan(step, then, time_limit=time_limit)
        cells["as then"] = cell(step, found)
    above = [int((1 + more) * lowest.peak_bytes) for more in ABOVE]
    near = [plan(step, nbytes, time_limit=time_limit) for nbytes in above]
    return {
        "name": step.name,
        "ops": len(step.ops),
        "peak_bytes": peak,
        "baseline_seconds": step.baseline_seconds,
        "cells": {
            **cells,
            "lowest": cell(step, at_lowest),
            **{
                f"{100 * more:.0f} %": cell(step, found)
                for more, found in zip(ABOVE, near, strict=True)
            },
        },
        "lowest": lowest.peak_bytes / peak,
        "proven_least": lowest.proof.bound_bytes / peak,
        "planning_seconds": time.process_time() - begun,
    }


def line(row: dict[str, Any]) -> str:
    """A step's figures: extra time and gap in points at each budget."""
    cells = [
        f"{100 * c['overhead']:.2f}/{100 * c['gap']:.2f}" if c else "-"
        for c in row["cells"].values()
    ]
    return (
        f"{row['name'][:18]:18} {row['ops']:5} "
        + " ".join(f"{text:>12}" for text in cells)
        + f"  {row['lowest']:7.2%} ({row['proven_least']:.1%}) "
        f"{row['planning_seconds']:5.1f} s"
    )


def main() -> None:
    """Measure the steps named on the command line and keep the figures."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("names", nargs="*", default=list(MODELS))
    parser.add_argument("--time-limit", type=float, default=10.0)
    parser.add_argument("--shares", type=float, nargs="+", default=list(SHARES))
    parser.add_argument("--peak", type=int, help="bytes that shares are of")
    parser.add_argument("--steps", type=Path, help="folder for captured steps")
    parser.add_argument("--label", default="")
    parser.add_argument("--dry", action="store_true", help="keep no results")
    options = parser.parse_args()
    head = " ".join(f"{f'{100 * share:.0f} %':>12}" for share in options.shares)
    head += f" {'as then':>12} {'lowest':>12} " + " ".join(
        f"{f'+{m:.0%}':>12}" for m in ABOVE
    )
    print(f"{'step':18} {'ops':>5} {head}  lowest at (proven least)")
    rows: list[dict[str, Any]] = []
    for name in options.names:
        step = captured(name, options.steps)
        peak = options.peak or step.baseline_peak_bytes
        rows.append(measure(step, options.shares, peak, options.time_limit))
        print(line(rows[-1]), flush=True)
    if not options.dry:
        history = json.loads(RESULTS.read_text()) if RESULTS.exists() else []
        entry = {"label": options.label, "device": DEVICE, "steps": rows}
        history.append({**entry, "time_limit": options.time_limit})
        RESULTS.write_text(json.dumps(history, indent=1) + "\n")


if __name__ == "__main__":
    main()

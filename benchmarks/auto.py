"""What planner auto costs at each budget, how near its bound, and how long it plans.

    python benchmarks/auto.py                                # the built-in models
    python benchmarks/auto.py resnet50 my.step.json --keep --label "what changed"

A built-in model is captured with op times estimated for this kind of machine, so that
the figures do not depend on its load. Every step gets one frontier over the budgets.
Figures are whole-step peaks as shares of the baseline's; "activations" leaves out
residents and outputs, as the literature does. With `--keep`, results are appended to
`benchmarks/results/auto.json`, so that its history shows what each change brought. Time
is processor time of this process.
"""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path
from typing import Any

from lowtide.planners.auto._search import Search
from lowtide.step.graph import StepGraph

MODELS: dict[str, dict[str, Any]] = {
    "resnet50": {"batch": 8},
    "resnet152": {"batch": 8},
    "densenet121": {"batch": 8},
    "inception_v3": {"batch": 8},
    "mobilenet_v3_large": {"batch": 16},
    "convnext_tiny": {"batch": 4},
    "unet": {"batch": 2, "image": 256},
    "vit": {"batch": 8},
    "gpt2": {"batch": 4, "sequence": 256},
    "bert": {"batch": 4, "sequence": 256},
    "t5": {"batch": 4, "sequence": 256},
    "llama": {"batch": 2, "sequence": 512},
}
SHARES = (0.8, 0.6, 0.5, 0.4, 0.35, 0.3, 0.25, 0.2)
RESULTS = Path(__file__).parent / "results" / "auto.json"


def lasting_bytes(step: StepGraph) -> int:
    """Bytes that are there at the end of the step: residents and outputs."""
    resident = frozenset(step.resident)
    return step.resident_bytes + sum(
        step.sizes[s] for s in step.outputs if s not in resident
    )


def measure(step: StepGraph, time_limit: float) -> dict[str, Any]:
    """The figures of one step."""
    peak, lasting = step.baseline_peak_bytes, lasting_bytes(step)
    begun = time.process_time()
    lowest = Search(step, 10.0, clock=time.process_time).lowest()
    floor_seconds = time.process_time() - begun
    begun = time.process_time()
    search = Search(step, time_limit, clock=time.process_time)
    plans = search.along([int(peak * share) for share in SHARES])
    points = [
        {
            "share": share,
            "activations": (int(peak * share) - lasting) / max(1, peak - lasting),
            "overhead": plan.overhead,
            "bound": plan.proof.bound_seconds / step.baseline_seconds - 1.0,
        }
        for share, plan in zip(SHARES, plans, strict=True)
        if plan is not None
    ]
    return {
        "name": step.name,
        "ops": len(step.ops),
        "floor": lowest.peak_bytes / peak,
        "floor_bound": lowest.proof.bound_bytes / peak,
        "floor_activations": (lowest.peak_bytes - lasting) / max(1, peak - lasting),
        "floor_planning_seconds": floor_seconds,
        "planning_seconds": time.process_time() - begun,
        "points": points,
    }


def captured(name: str) -> StepGraph:
    """A saved step, or a built-in model's, profiled by estimate."""
    if name.endswith(".json"):
        return StepGraph.load(name)
    import lowtide
    from lowtide import models

    example = models.build_fake(name, **MODELS.get(name, {}))
    return lowtide.profile(
        example.model, example.batch, loss=example.loss, how="estimate", name=name
    )


def line(row: dict[str, Any]) -> str:
    """A step's figures: overhead and bound in percent at each budget."""
    cells = {
        p["share"]: f"{100 * p['overhead']:.2f}/{100 * p['bound']:.2f}"
        for p in row["points"]
    }
    budgets = " ".join(f"{cells.get(share, '-'):>12}" for share in SHARES)
    return (
        f"{row['name'][:18]:18} {row['ops']:5} {budgets} "
        f"{row['floor']:6.3f} ({row['floor_activations']:.3f}) "
        f"{row['planning_seconds']:5.1f}s"
    )


def main() -> None:
    """Measure the steps named on the command line and keep the figures."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("steps", nargs="*", default=list(MODELS))
    parser.add_argument("--time-limit", type=float, default=20.0)
    parser.add_argument("--label", default="")
    parser.add_argument("--keep", action="store_true", help="append to the results")
    options = parser.parse_args()
    head = " ".join(f"{f'{100 * share:.0f} %':>12}" for share in SHARES)
    print(f"{'step':18} {'ops':>5} {head}  floor (activations)")
    rows: list[dict[str, Any]] = []
    for name in options.steps:
        rows.append(measure(captured(name), options.time_limit))
        print(line(rows[-1]), flush=True)
    if options.keep:
        history = json.loads(RESULTS.read_text()) if RESULTS.exists() else []
        entry = {"label": options.label, "time_limit": options.time_limit}
        history.append({**entry, "steps": rows})
        RESULTS.write_text(json.dumps(history, indent=1))


if __name__ == "__main__":
    main()

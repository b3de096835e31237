"""Every planner on the same steps: peak, overhead and planning time at each budget.

    python benchmarks/planners.py                        # five built-in models
    python benchmarks/planners.py resnet50 steps/*.step.json
    python benchmarks/planners.py --planners auto,rotor --estimate llama

A target is a saved step or the name of a built-in model. Budgets are shares of the
step's baseline peak, residents and gradients included; the last column is the lowest
peak the planner reaches. Planning time is that of the slowest budget: planners that
remember what they tried answer all but the first at once. Figures are simulated; those
of real runs are measured elsewhere. Results go to `benchmarks/results/planners.json`.
"""

from __future__ import annotations

import argparse
import json
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from lowtide import planners
from lowtide._graph import StepGraph
from lowtide.errors import BudgetTooSmallError, LowtideError

MODELS = ("resnet50", "densenet121", "unet", "gpt2", "t5")
SHARES = (0.8, 0.6, 0.5, 0.4, 0.3)
RESULTS = Path(__file__).parent / "results" / "planners.json"


@dataclass(frozen=True, slots=True)
class Point:
    """One plan. `share` is the budget over the baseline peak, None for the lowest."""

    share: float | None
    peak: float | None
    overhead: float | None
    planning_seconds: float
    problem: str = ""


def load(target: str, *, estimate: bool) -> StepGraph:
    """The step of a file, or of a built-in model, profiled now."""
    if target.endswith(".json"):
        return StepGraph.load(target)
    import lowtide
    from lowtide import models

    example = models.build(target)
    how = "estimate" if estimate else "measure"
    return lowtide.profile(
        example.model, example.batch, loss=example.loss, how=how, name=target
    )


def run(name: str, step: StepGraph, share: float | None, time_limit: float) -> Point:
    """One planner at one budget."""
    peak_bytes = step.baseline_peak_bytes
    budget_bytes = None if share is None else int(share * peak_bytes)
    begun = time.perf_counter()
    try:
        plan = planners.load(name).plan(step, budget_bytes, time_limit=time_limit)
    except BudgetTooSmallError as error:
        problem = f"floor {error.floor_bytes / peak_bytes:.3f}"
        return Point(share, None, None, time.perf_counter() - begun, problem)
    except LowtideError as error:
        problem = f"{type(error).__name__}: {error}"
        return Point(share, None, None, time.perf_counter() - begun, problem)
    seconds = time.perf_counter() - begun
    return Point(share, plan.peak_bytes / peak_bytes, plan.overhead, seconds)


def compare(step: StepGraph, names: list[str], time_limit: float) -> dict[str, Any]:
    """All planners on one step, printed as they come."""
    lasting = step.resident_bytes + sum(
        step.sizes[s] for s in step.outputs if not step.storages[s].resident
    )
    peak_bytes = step.baseline_peak_bytes
    print(
        f"\n{step.name}: {len(step.ops)} ops, baseline {peak_bytes / 2**20:,.0f} MiB, "
        f"of it residents and outputs {lasting / peak_bytes:.0%}"
    )
    heads = [*(f"{share:.0%}" for share in SHARES), "lowest peak", "planning"]
    print(f"{'':14}" + "".join(f"{head:>15}" for head in heads))
    rows: dict[str, list[dict[str, Any]]] = {}
    for name in names:
        points = [run(name, step, share, time_limit) for share in (*SHARES, None)]
        rows[name] = [asdict(point) for point in points]
        slowest = max(point.planning_seconds for point in points)
        print(f"{name:14}" + "".join(map(cell, points)) + f"{slowest:13.2f} s")
    return {
        "name": step.name,
        "ops": len(step.ops),
        "fingerprint": step.fingerprint,
        "baseline_peak_bytes": peak_bytes,
        "baseline_seconds": step.baseline_seconds,
        "lasting_bytes": lasting,
        "planners": rows,
    }


def cell(point: Point) -> str:
    """Peak and overhead in 15 columns."""
    if point.peak is None or point.overhead is None:
        return f"{'-' if point.problem.startswith('floor') else 'failed':>15}"
    return f"{f'{point.peak:.3f} {point.overhead:+.1%}':>15}"


def main() -> None:
    """Compare the planners and write what was found."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("targets", nargs="*", default=MODELS)
    parser.add_argument(
        "--planners", default=",".join(planners.available()), help="names, with commas"
    )
    parser.add_argument("--time-limit", type=float, default=10.0)
    parser.add_argument(
        "--estimate", action="store_true", help="profile models without running them"
    )
    parser.add_argument("--output", type=Path, default=RESULTS)
    options = parser.parse_args()
    names = [planners.load(name).name for name in options.planners.split(",")]
    results: list[dict[str, Any]] = []
    for target in options.targets:
        step = load(target, estimate=options.estimate)
        results.append(compare(step, names, options.time_limit))
        options.output.parent.mkdir(parents=True, exist_ok=True)
        options.output.write_text(json.dumps(results, indent=1) + "\n")
    print(f"\nwritten to {options.output}")


if __name__ == "__main__":
    main()

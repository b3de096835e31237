"""Planning time of `auto` against the size of the step, and where it goes.

    python benchmarks/scale.py                 # GPT-2 and Llama, 2 to 200 layers
    python benchmarks/scale.py --layers 2 12
    python benchmarks/scale.py --limits        # are time limits kept? on made-up steps

Steps are captured without running them, with estimated times. Each is planned at 70 %
of its peak in a fresh process, with a time limit of five seconds and of fifty.
Reported: seconds until the first plan that fits, until the search ended, the share of
its phases, memory of the process, and how far the plan is from its bound. Results go to
`benchmarks/results/scale.json` and `scale.png`; those of `--limits`, which needs a
quiet machine, to `limits.json`.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import resource
import sys
import time
from collections import defaultdict
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

RESULTS = Path(__file__).parent / "results" / "scale.json"
# A small vocabulary, or the logits alone would hold the floor of a small model.
SHAPE = {"batch": 4, "sequence": 256, "vocab": 512}
CASES = (
    *(("gpt2", layers) for layers in (2, 6, 12, 24, 48, 100)),
    *(("llama", layers) for layers in (50, 100, 200)),
)
LIMITS = (5.0, 50.0)
# Layers of the tests' transformer, shares of its peak, and time limits.
KEPT = (
    *((1, share, limit) for share in (0.7, 0.5) for limit in (0.5, 10.0)),
    *((10, 0.5, limit) for limit in (2.0, 10.0)),
    *((40, 0.5, limit) for limit in (2.0, 10.0, 50.0)),
    (408, 0.5, 10.0),
)
SHARE = 0.7
PHASES = ("guide", "prove", "greedy", "others")


def measure(name: str, layers: int) -> dict[str, Any]:
    """The figures of one step, in a process of its own."""
    from torch._subclasses import FakeTensorMode

    import lowtide
    from lowtide import models

    with FakeTensorMode(allow_non_fake_inputs=True):
        example = models.build(name, layers=layers, **SHAPE)
    begun = time.perf_counter()
    step = lowtide.profile(
        example.model, example.batch, loss=example.loss, how="estimate", name=name
    )
    return {
        "name": name,
        "layers": layers,
        "ops": len(step.ops),
        "capture_seconds": time.perf_counter() - begun,
        "runs": [planned(step, limit) for limit in LIMITS],
        "process_bytes": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024,
    }


def planned(step: Any, time_limit: float) -> dict[str, Any]:
    """One search, with the time of each phase."""
    from lowtide.planners.auto import _search

    begun = time.perf_counter()
    search = _search.Search(replace(step), time_limit)
    spent: dict[str, float] = defaultdict(float)
    for phase in PHASES:
        setattr(search, phase, _timed(getattr(search, phase), phase, spent))
    plan = search.fastest(int(SHARE * step.baseline_peak_bytes))
    seconds = time.perf_counter() - begun
    base = step.baseline_seconds
    first = plan.proof.history[0][0] if plan.proof.history else seconds
    return {
        "time_limit": time_limit,
        "planning_seconds": seconds,
        "first_plan_seconds": first,
        "overhead": plan.overhead,
        "bound": plan.proof.bound_seconds / base - 1,
        "stopped_by": plan.proof.stopped_by,
        "phases": {**spent, "rest": seconds - sum(spent.values())},
    }


def limits() -> None:
    """Plan made-up steps and note how long that takes against each limit."""
    sys.path.insert(0, str(RESULTS.parents[2]))
    from lowtide.planners.auto import _search
    from tests.graphs import transformer

    rows: list[dict[str, Any]] = []
    for layers, share, limit in KEPT:
        step = transformer(layers)
        span = step.baseline_peak_bytes - step.resident_bytes
        budget = step.resident_bytes + int(share * span)
        begun = time.perf_counter()
        plan = _search.Search(step, limit).fastest(budget)
        row = {
            "ops": len(step.ops),
            "share": share,
            "time_limit": limit,
            "planning_seconds": time.perf_counter() - begun,
            "overhead": plan.overhead,
            "bound": plan.proof.bound_seconds / step.baseline_seconds - 1,
        }
        rows.append(row)
        print(
            f"{row['ops']:6} ops, {share:.0%}, limit {limit:4g} s: "
            f"{row['planning_seconds']:6.2f} s, {row['overhead']:+.2%}, "
            f"proven {row['bound']:+.2%}",
            flush=True,
        )
    RESULTS.with_name("limits.json").write_text(json.dumps(rows, indent=1) + "\n")


def _timed(
    run: Callable[..., Any], phase: str, spent: dict[str, float]
) -> Callable[..., Any]:
    def timed(*args: Any) -> Any:
        begun = time.perf_counter()
        try:
            return run(*args)
        finally:
            spent[phase] += time.perf_counter() - begun

    return timed


def line(row: dict[str, Any]) -> str:
    """A step's figures as text."""
    head = (
        f"{row['name']:6} {row['layers']:4} {row['ops']:6} "
        f"{row['capture_seconds']:8.1f} {row['process_bytes'] / 2**30:7.2f}"
    )
    for run in row["runs"]:
        total = run["planning_seconds"]
        shares = " ".join(
            f"{run['phases'].get(p, 0) / total:4.0%}" for p in (*PHASES, "rest")
        )
        head += (
            f" | {run['first_plan_seconds']:6.1f} {total:6.1f} "
            f"{run['overhead']:+7.2%} {run['bound']:+7.2%} {shares}"
        )
    return head


def draw(rows: list[dict[str, Any]], path: Path) -> None:
    """Seconds against ops, and the shares of the phases."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(10, 3.8), layout="constrained")
    left, right = figure.subplots(1, 2)
    rows = sorted(rows, key=lambda row: row["ops"])
    ops = [row["ops"] for row in rows]
    for place, limit in enumerate(LIMITS):
        runs = [row["runs"][place] for row in rows]
        left.plot(
            ops, [r["planning_seconds"] for r in runs], "o-", label=f"{limit:g} s"
        )
    runs = [row["runs"][-1] for row in rows]
    left.plot(ops, [r["first_plan_seconds"] for r in runs], "s--", label="first plan")
    left.set(xscale="log", yscale="log", xlabel="ops", ylabel="seconds of planning")
    left.legend(title="time limit")
    left.grid(alpha=0.3, which="both")
    below = [0.0] * len(rows)
    for phase in (*PHASES, "rest"):
        shares = [
            100 * r["phases"].get(phase, 0.0) / r["planning_seconds"] for r in runs
        ]
        right.bar(range(len(rows)), shares, bottom=below, label=phase)
        below = [a + b for a, b in zip(below, shares, strict=True)]
    right.set_xticks(range(len(rows)), [f"{n:,}" for n in ops], rotation=45)
    right.set(xlabel="ops", ylabel="share of planning time, %")
    right.legend(fontsize=8)
    figure.savefig(path, dpi=120)


def main() -> None:
    """Plan every case and write what was found."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--layers", type=int, nargs="*", help="only these")
    parser.add_argument("--limits", action="store_true", help="only time limits")
    options = parser.parse_args()
    if options.limits:
        limits()
        return
    cases = [c for c in CASES if not options.layers or c[1] in options.layers]
    print(
        "model layers  ops  capture s  GiB | first s plan s overhead bound "
        f"{' '.join(PHASES)} rest, at each limit of {LIMITS} s"
    )
    rows: list[dict[str, Any]] = []
    context = multiprocessing.get_context("spawn")
    for case in cases:
        with ProcessPoolExecutor(1, mp_context=context) as pool:
            rows.append(pool.submit(measure, *case).result())
        print(line(rows[-1]), flush=True)
    if cases == list(CASES):
        RESULTS.write_text(json.dumps(rows, indent=1) + "\n")
        draw(rows, RESULTS.with_suffix(".png"))


if __name__ == "__main__":
    main()

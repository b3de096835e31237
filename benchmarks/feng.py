"""Feng and Huang's 18 models at their published input sizes.

    python benchmarks/feng.py                     # all, two at a time
    python benchmarks/feng.py alexnet densenet121
    python benchmarks/feng.py --measure           # run them here, at a smaller batch

Each step is captured without running it and priced for the class of device of the
publication. For each model: the published cut of the activation peak and its extra
time; what planner `feng` reaches here; what planner `auto` costs at that very peak, and
its share of feng's extra time; and what `auto` costs at the published cut. All figures
here are predicted. They go to `benchmarks/results/feng.json`.

With --measure, the models are run here instead, at a sixteenth of the batch and planned
for the published cut: real activation peaks from fresh processes, and times in turns
with eager, in `benchmarks/results/feng-measured.json`.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import time
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

from published.table import DEVICE, PUBLISHED, Published
from torch._subclasses import FakeTensorMode

import lowtide
from lowtide import planners
from lowtide.engine.jobs.bench.activations import activation_peak_bytes, plan_for_cut
from lowtide.engine.jobs.bench.against import Row, compare_methods
from lowtide.engine.jobs.bench.methods import methods_named, planned_method
from lowtide.shell.target import build, profile
from lowtide.shell.verbs.bench import with_peaks

RESULTS = Path(__file__).parent / "results" / "feng.json"
MEASURED = RESULTS.with_name("feng-measured.json")
# The published batches need gigabytes of activations; a sixteenth fits most machines.
_SMALLER = 16


def published_step(published: Published) -> lowtide.StepGraph:
    """The published step, captured without running it, priced for its device."""
    with FakeTensorMode():
        example = build(published.target())
    return lowtide.profile(
        example.model,
        example.batch,
        loss=example.loss,
        how="estimate",
        device=DEVICE,
        name=published.name,
    )


def row(name: str, time_limit: float) -> dict[str, Any]:
    """The figures of one model."""
    published = PUBLISHED[name]
    step = published_step(published)
    baseline = activation_peak_bytes(step)
    begun = time.perf_counter()
    theirs = planners.load("feng").plan(step, None, time_limit=time_limit)
    feng_seconds = time.perf_counter() - begun
    auto = planners.load("auto").plan(step, theirs.peak_bytes, time_limit=time_limit)
    at_cut = plan_for_cut(step, baseline, published.cut, time_limit=time_limit)

    def cut_of(plan: Any) -> float:
        return 1 - activation_peak_bytes(step, plan) / baseline

    return {
        "name": name,
        "batch": published.batch,
        "ops": len(step.ops),
        "published_cut": published.cut,
        "published_overhead": published.overhead,
        "published_baseline_bytes": published.regular_megabytes * 10**6,
        "baseline_activation_bytes": baseline,
        "feng_cut": cut_of(theirs),
        "feng_overhead": theirs.overhead,
        "feng_planning_seconds": feng_seconds,
        "auto_overhead_at_feng": auto.overhead,
        "bound_at_feng": auto.proof.bound_seconds / auto.baseline_seconds - 1,
        "share_of_feng": auto.overhead / theirs.overhead if theirs.overhead else None,
        "auto_cut": cut_of(at_cut),
        "auto_overhead_at_cut": at_cut.overhead,
    }


def is_reached(r: dict[str, Any]) -> bool:
    """Whether the published cut is reached, in whole percents as it was published."""
    return round(100 * r["auto_cut"]) >= round(100 * r["published_cut"])


def line(r: dict[str, Any]) -> str:
    """A row as text."""
    share = "-" if r["share_of_feng"] is None else f"{r['share_of_feng']:.2f}"
    missed = "" if is_reached(r) else " (least)"
    return (
        f"{r['name']:14} {r['batch']:4} {r['ops']:5} "
        f"{r['published_cut']:7.0%} {r['published_overhead']:+7.0%} "
        f"{r['feng_cut']:9.0%} {r['feng_overhead']:+7.1%} "
        f"{r['auto_overhead_at_feng']:+8.1%} {share:>6} {r['bound_at_feng']:+7.1%} "
        f"{r['auto_cut']:9.0%} {r['auto_overhead_at_cut']:+7.1%}{missed}"
    )


def measured_row(
    name: str, time_limit: float, *, batch: int | None, steps: int
) -> dict[str, Any]:
    """One model run here: the cut and the extra time beside eager, in turns."""
    published = PUBLISHED[name]
    size = batch or max(2, published.batch // _SMALLER)
    target = published.target(size)
    example = build(target)
    step = profile(target, example, "measure", None)
    baseline = activation_peak_bytes(step)
    plan = plan_for_cut(step, baseline, published.cut, time_limit=time_limit)
    eager, ours = with_peaks(
        [(Row("eager", "eager"), None), (Row("lowtide", "lowtide"), plan)], target, 1
    )
    methods = [*methods_named("eager"), planned_method("lowtide", "lowtide", plan)]
    _, timed = compare_methods(
        methods, example.model, example.batch, example.loss, steps=steps
    )
    kept = ours.activation_peak_bytes / max(1, eager.activation_peak_bytes)
    return {
        "name": name,
        "published_cut": published.cut,
        "published_overhead": published.overhead,
        "measured_batch": size,
        "measured_cut": 1 - kept,
        "measured_overhead": timed.time_ratio - 1,
        "measured_predicted_overhead": plan.overhead,
        "measured_eager_bytes": eager.activation_peak_bytes,
        "measured_planned_bytes": ours.activation_peak_bytes,
        "is_exact": timed.is_exact,
    }


def measured_line(found: dict[str, Any]) -> str:
    """A measured row as text."""
    return (
        f"{found['name']:16} batch {found['measured_batch']:3}  published "
        f"-{found['published_cut']:.0%} {found['published_overhead']:+.0%}  measured "
        f"-{found['measured_cut']:.1%} {found['measured_overhead']:+.1%}  "
        f"{'equal' if found['is_exact'] else 'DIFFERENT'}"
    )


def measure(given: argparse.Namespace) -> None:
    """Run the models here; what was found at the usual batch is kept."""
    for name in given.models:
        found = measured_row(
            name, given.time_limit, batch=given.batch, steps=given.steps
        )
        print(measured_line(found), flush=True)
        if given.batch is None:
            kept = json.loads(MEASURED.read_text()) if MEASURED.exists() else {}
            MEASURED.write_text(json.dumps({**kept, name: found}, indent=1) + "\n")


def main() -> None:
    """Plan the models named on the command line and write the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("models", nargs="*", default=list(PUBLISHED))
    parser.add_argument("--time-limit", type=float, default=20.0)
    parser.add_argument("--jobs", type=int, default=2, help="models at a time")
    parser.add_argument("--measure", action="store_true", help="really run them")
    parser.add_argument("--batch", type=int, help="of --measure; then nothing is kept")
    parser.add_argument("--steps", type=int, default=3, help="of --measure")
    options = parser.parse_args()
    if options.measure:
        measure(options)
        return
    print(
        f"{'':14} {'':4} {'':5} {'published':^15} {'feng here':^17} "
        f"{'auto at feng peak':^23} {'auto at the cut':^17}\n"
        f"{'model':14} {'batch':>4} {'ops':>5} {'cut':>6} {'time':>7} {'cut':>9} "
        f"{'time':>7} {'time':>8} {'share':>6} {'bound':>7} {'cut':>9} {'time':>7}"
    )
    context = multiprocessing.get_context("spawn")
    rows: list[dict[str, Any]] = []
    with ProcessPoolExecutor(options.jobs, mp_context=context) as pool:
        limits = [options.time_limit] * len(options.models)
        for found in pool.map(row, options.models, limits):
            rows.append(found)
            print(line(found), flush=True)
    shares = [r["share_of_feng"] for r in rows if r["share_of_feng"] is not None]
    reached = [r for r in rows if is_reached(r)]
    ratios = [r["auto_overhead_at_cut"] / r["published_overhead"] for r in reached]
    print(
        f"\nat feng's peak: at most 0.4 of its extra time on "
        f"{sum(s <= 0.4 for s in shares)} of {len(rows)}, at most {max(shares):.2f}"
        f"\nat the published cut: reached on {len(reached)}, at most the published "
        f"extra time on {sum(r <= 1 for r in ratios)}, at most half of it on "
        f"{sum(r <= 0.5 for r in ratios)}"
    )
    if set(options.models) == set(PUBLISHED):
        RESULTS.write_text(json.dumps(rows, indent=1) + "\n")


if __name__ == "__main__":
    main()

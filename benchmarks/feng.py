"""Feng and Huang's 18 models at their published input sizes.

    python benchmarks/feng.py                     # all, two at a time
    python benchmarks/feng.py alexnet densenet121
    python benchmarks/feng.py --measure           # run them here, at a smaller batch

Each step is captured without running it and priced for the class of device of the
publication. For each model: the published cut of the activation peak and its extra
time; what planner `feng` reaches here; what planner `auto` costs at that very peak, and
its share of feng's extra time; and what `auto` costs at the published cut. All figures
here are predicted. They go to `benchmarks/results/feng.json`.

With --measure, each goes through `lowtide bench --table feng --measure` instead: real
activation peaks from fresh processes and times in turns with eager, on this machine, in
`benchmarks/results/feng-measured.json`.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import subprocess
import sys
import time
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

from lowtide import planners
from lowtide.engine.bench.feng import (
    activation_peak_bytes,
    plan_for_cut,
    published_step,
)
from lowtide.models import PUBLISHED

RESULTS = Path(__file__).parent / "results" / "feng.json"
MEASURED = RESULTS.with_name("feng-measured.json")


def row(name: str, time_limit: float) -> dict[str, Any]:
    """The figures of one model."""
    published = PUBLISHED[name]
    step = published_step(published)
    baseline = activation_peak_bytes(step)
    begun = time.perf_counter()
    theirs = planners.load("feng").plan(step, None, time_limit=time_limit)
    feng_seconds = time.perf_counter() - begun
    auto = planners.load("auto").plan(step, theirs.peak_bytes, time_limit=time_limit)
    cut = published.cut_percent / 100
    at_cut = plan_for_cut(step, baseline, cut, time_limit=time_limit)

    def cut_of(plan: Any) -> float:
        return 1 - activation_peak_bytes(step, plan) / baseline

    return {
        "name": name,
        "batch": published.batch,
        "ops": len(step.ops),
        "published_cut": cut,
        "published_overhead": published.overhead_percent / 100,
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


def measure(name: str) -> None:
    """Run one model here and keep what was found."""
    command = [sys.executable, "-m", "lowtide", "bench", "--table", "feng"]
    command += ["--measure", "--models", name, "--steps", "3", "--json"]
    done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True)
    (found,) = json.loads(done.stdout)["rows"]
    kept = json.loads(MEASURED.read_text()) if MEASURED.exists() else {}
    MEASURED.write_text(json.dumps({**kept, name: found}, indent=1) + "\n")
    print(
        f"{name:16} batch {found['measured_batch']:3}  published "
        f"-{found['published_cut']:.0%} {found['published_overhead']:+.0%}  measured "
        f"-{found['measured_cut']:.1%} {found['measured_overhead']:+.1%}  "
        f"{'equal' if found['is_exact'] else 'DIFFERENT'}",
        flush=True,
    )


def main() -> None:
    """Plan the models named on the command line and write the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("models", nargs="*", default=list(PUBLISHED))
    parser.add_argument("--time-limit", type=float, default=20.0)
    parser.add_argument("--jobs", type=int, default=2, help="models at a time")
    parser.add_argument("--measure", action="store_true", help="really run them")
    options = parser.parse_args()
    if options.measure:
        for name in options.models:
            measure(name)
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

"""Every planner on the same steps: peak, overhead and planning time at each budget.

    python benchmarks/planners.py                        # the built-in models below
    python benchmarks/planners.py resnet50 steps/*.step.json
    python benchmarks/planners.py --planners auto,rotor llama

A target is a saved step or the name of a built-in model, whose op times are estimated
for this kind of machine, so that the figures do not depend on its load. Budgets are
shares of the step's baseline peak, residents and gradients included; the last columns
are the lowest peak the planner reaches, and what `auto` costs there. Planning time is
that of the slowest budget: planners that remember what they tried answer all but the
first at once. Below each table stands where `auto` is not the best of all. Figures are
simulated; those of real runs are measured elsewhere. `checkmate` is left out where the
step is too large for its program, as its answer would be another planner's. What all
planners make of the built-in models is kept in `results/planners.json` and
`planners.png`.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import time
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

from lowtide import planners
from lowtide.errors import BudgetTooSmallError, LowtideError
from lowtide.step.graph import StepGraph

MODELS: dict[str, dict[str, Any]] = {
    "resnet50": {"batch": 8},
    "densenet121": {"batch": 8},
    "unet": {"batch": 2, "image": 256},
    "gpt2": {"batch": 4, "sequence": 256},
    "t5": {"batch": 4, "sequence": 256},
    "llama": {"batch": 2, "sequence": 512},
    "vit": {"batch": 8},
    "bert": {"batch": 4, "sequence": 256},
    "mobilenet_v3_large": {"batch": 16},
    "convnext_tiny": {"batch": 4},
}
SHARES = (0.8, 0.6, 0.5, 0.4, 0.3)
RESULTS = Path(__file__).parent / "results" / "planners.json"
AT_LOWEST_SECONDS = 3.0
# Above this many ops `checkmate` answers in ten seconds with other planners' plans.
CHECKMATE_OPS = 170
SAME = 1e-9  # relative: the same sum of seconds in another order


@dataclass(frozen=True, slots=True)
class Point:
    """One plan. `share` is the budget over the baseline peak, None for the lowest.

    Of the lowest, `auto_overhead` is what `auto` costs at the same peak.
    """

    share: float | None
    peak: float | None
    overhead: float | None
    planning_seconds: float
    problem: str = ""
    auto_overhead: float | None = None


def load(target: str) -> StepGraph:
    """The step of a file, or of a built-in model."""
    if target.endswith(".json"):
        return StepGraph.load(target)
    import lowtide
    from lowtide import models

    example = models.build_fake(target, **MODELS.get(target, {}))
    return lowtide.profile(
        example.model, example.batch, loss=example.loss, how="estimate", name=target
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
    ours: float | None = None
    if share is None and name != "auto":
        auto = planners.load("auto")
        ours = auto.plan(step, plan.peak_bytes, time_limit=AT_LOWEST_SECONDS).overhead
    return Point(
        share, plan.peak_bytes / peak_bytes, plan.overhead, seconds, auto_overhead=ours
    )


def compare(target: str, names: list[str], time_limit: float) -> dict[str, Any]:
    """All planners on one step."""
    step = load(target)
    lasting = step.resident_bytes + sum(
        step.sizes[s] for s in step.outputs if not step.storages[s].resident
    )
    if len(step.ops) > CHECKMATE_OPS:
        names = [name for name in names if name != "checkmate"]
    return {
        "name": step.name,
        "ops": len(step.ops),
        "fingerprint": step.fingerprint,
        "baseline_peak_bytes": step.baseline_peak_bytes,
        "baseline_seconds": step.baseline_seconds,
        "lasting_bytes": lasting,
        "planners": {
            name: [
                asdict(run(name, step, share, time_limit)) for share in (*SHARES, None)
            ]
            for name in names
        },
    }


def show(result: dict[str, Any]) -> str:
    """The table of one step."""
    peak_bytes, lasting = result["baseline_peak_bytes"], result["lasting_bytes"]
    heads = [*(f"{share:.0%}" for share in SHARES), "lowest peak"]
    heads += ["auto there", "planning"]
    lines = [
        "",
        f"{result['name']}: {result['ops']} ops, baseline {peak_bytes / 2**20:,.0f} "
        f"MiB, of it residents and outputs {lasting / peak_bytes:.0%}",
        f"{'':14}" + "".join(f"{head:>15}" for head in heads),
    ]
    for name, points in result["planners"].items():
        slowest = max(point["planning_seconds"] for point in points)
        cells = "".join(cell(Point(**point)) for point in points)
        ours = points[-1]["auto_overhead"]
        there = "" if ours is None else f"{ours:+.1%}"
        lines.append(f"{name:14}{cells}{there:>15}{slowest:13.2f} s")
    if "auto" in result["planners"]:
        lines += losses(result) or ["auto is the best, or as good, at every budget"]
    return "\n".join(lines)


def losses(result: dict[str, Any]) -> list[str]:
    """Where another planner fits and `auto` does not, is faster, or goes lower."""
    found: list[str] = []
    ours = result["planners"]["auto"]
    for name, points in result["planners"].items():
        for mine, theirs in zip(ours, points, strict=True):
            if theirs["peak"] is None:
                continue
            where = f"auto loses to {name} at "
            if mine["share"] is None:
                if mine["peak"] > theirs["peak"] * (1 + SAME):
                    found.append(
                        f"{where}the lowest peak: {mine['peak']:.4f} against "
                        f"{theirs['peak']:.4f}"
                    )
                at_lowest = theirs["auto_overhead"]
                if at_lowest is not None and at_lowest > theirs["overhead"] + SAME:
                    found.append(
                        f"{where}its lowest peak: {at_lowest:+.3%} against "
                        f"{theirs['overhead']:+.3%}"
                    )
            elif mine["peak"] is None:
                found.append(f"{where}{mine['share']:.0%}: it alone fits")
            elif mine["overhead"] > theirs["overhead"] + SAME:
                found.append(
                    f"{where}{mine['share']:.0%}: {mine['overhead']:+.3%} against "
                    f"{theirs['overhead']:+.3%}"
                )
    return found


def cell(point: Point) -> str:
    """Peak and overhead in 15 columns."""
    if point.peak is None or point.overhead is None:
        return f"{'-' if point.problem.startswith('floor') else 'failed':>15}"
    return f"{f'{point.peak:.3f} {point.overhead:+.1%}':>15}"


def draw(results: list[dict[str, Any]], path: Path) -> None:
    """Overhead against peak: one panel for each step, one line for each planner."""
    from matplotlib import colormaps
    from matplotlib.figure import Figure

    columns = 2
    rows = -(-len(results) // columns)
    figure = Figure(figsize=(11, 3.2 * rows), layout="constrained")
    panels = figure.subplots(rows, columns, squeeze=False).flat
    colors = colormaps["tab10"].colors  # type: ignore[attr-defined]
    for axes, result in zip(panels, results, strict=False):
        for place, (name, points) in enumerate(result["planners"].items()):
            if name in ("keep_all", "recompute_all"):
                continue
            line = sorted(
                (p["peak"], p["overhead"]) for p in points if p["peak"] is not None
            )
            is_ours = name == "auto"
            axes.plot(
                [100 * x for x, _ in line],
                [100 * y for _, y in line],
                "o-",
                # A plan also serves every larger budget, up to the next plan.
                drawstyle="steps-post",
                color="black" if is_ours else colors[place % 10],
                linewidth=2 if is_ours else 1,
                markersize=4,
                label=name,
                zorder=3 if is_ours else 2,
            )
        axes.set_title(f"{result['name']}, {result['ops']} ops", fontsize=10)
        axes.set_xlabel("peak, % of the baseline's")
        axes.set_ylabel("extra time, %")
        axes.set_ylim(bottom=0, top=80)
        axes.grid(alpha=0.3)
    for axes in list(panels)[len(results) :]:
        axes.set_visible(False)
    handles, labels = next(iter(figure.axes)).get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside upper center", ncols=5, fontsize=8)
    figure.savefig(path, dpi=110)


def main() -> None:
    """Compare the planners and write what was found."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("targets", nargs="*", default=list(MODELS))
    parser.add_argument(
        "--planners", default=",".join(planners.available()), help="names, with commas"
    )
    parser.add_argument("--time-limit", type=float, default=10.0)
    parser.add_argument("--jobs", type=int, default=2, help="steps at a time")
    options = parser.parse_args()
    names = [planners.load(name).name for name in options.planners.split(",")]
    results: list[dict[str, Any]] = []
    context = multiprocessing.get_context("spawn")
    job = partial(compare, names=names, time_limit=options.time_limit)
    with ProcessPoolExecutor(options.jobs, mp_context=context) as pool:
        for result in pool.map(job, options.targets):
            results.append(result)
            print(show(result), flush=True)
    num = sum(len(losses(r)) for r in results if "auto" in r["planners"])
    print(f"\n{num} comparisons lost by auto on {len(results)} steps")
    if set(options.targets) <= set(MODELS) and names == list(planners.available()):
        known = json.loads(RESULTS.read_text()) if RESULTS.exists() else []
        found = {r["name"]: r for r in (*known, *results)}
        results = [found[name] for name in MODELS if name in found]
        RESULTS.write_text(json.dumps(results, indent=1) + "\n")
        draw(results, RESULTS.with_suffix(".png"))
        print(f"written to {RESULTS} and {RESULTS.with_suffix('.png')}")


if __name__ == "__main__":
    main()

"""Tables of what planners find, and how fast. Nothing in them was run."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

MIB = 2.0**20
Lines = Iterator[str]


def percent(value: float | None, digits: int = 1) -> str:
    return "-" if value is None else f"{100 * value:+.{digits}f} %"


def _with_own_plans(results: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Without `checkmate` where its answer is the plan of another planner."""
    return [
        {
            **result,
            "planners": {
                name: points
                for name, points in result["planners"].items()
                if name != "checkmate" or result["ops"] <= _CHECKMATE_OPS
            },
        }
        for result in results
    ]


def planners(results: list[dict[str, Any]]) -> Lines:
    for result in _with_own_plans(results):
        shares = [p["share"] for p in next(iter(result["planners"].values()))]
        heads = [f"{share:.0%}" for share in shares if share is not None]
        peak = result["baseline_peak_bytes"] / MIB
        yield f"### {result['name']}\n"
        yield f"{result['ops']} ops, {peak:,.0f} MiB unplanned.\n"
        yield f"| planner | {' | '.join(heads)} | its lowest peak | `auto` there | s |"
        yield "|---" * (len(heads) + 4) + "|"
        for name, points in result["planners"].items():
            cells = [percent(p["overhead"]) for p in points if p["share"] is not None]
            last = points[-1]
            lowest = f"{last['peak']:.1%} at {percent(last['overhead'])}"
            ours = percent(last["auto_overhead"]) if name != "auto" else ""
            slowest = max(p["planning_seconds"] for p in points)
            row = " | ".join([name, *cells, lowest, ours, f"{slowest:.1f}"])
            yield f"| {row} |"
        yield ""


def planners_summary(results: list[dict[str, Any]]) -> Lines:
    """`auto` with the best of the others in brackets."""
    yield "| model | 80 % | 60 % | 50 % | 40 % | 30 % | lowest peak |"
    yield "|---" * 7 + "|"
    for result in _with_own_plans(results):
        others = {n: p for n, p in result["planners"].items() if n not in _NOT_METHODS}
        ours = result["planners"]["auto"]
        cells = [result["name"]]
        for share in (0.8, 0.6, 0.5, 0.4, 0.3):
            mine = _overhead_at(ours, share)
            theirs = [_overhead_at(points, share) for points in others.values()]
            best = min((t for t in theirs if t is not None), default=None)
            shown = "-" if best is None else f"{100 * best:.1f}"
            cells.append("" if mine is None else f"{percent(mine)} ({shown})")
        lowest = min(points[-1]["peak"] for points in others.values())
        cells.append(f"{ours[-1]['peak']:.0%} ({lowest:.0%})")
        yield f"| {' | '.join(cells)} |"


_CHECKMATE_OPS = 170


_NOT_METHODS = ("auto", "keep_all", "recompute_all")


def _overhead_at(points: list[dict[str, Any]], share: float) -> float | None:
    return next((p["overhead"] for p in points if p["share"] == share), None)


def scale(rows: list[dict[str, Any]]) -> Lines:
    yield (
        "| model | layers | ops | capture s | first plan s | planned s | overhead, "
        "proven | in 50 s | MiB |"
    )
    yield "|---" * 9 + "|"
    for row in rows:
        short, long = row["runs"]
        yield (
            f"| {row['name']} | {row['layers']} | {row['ops']:,} | "
            f"{row['capture_seconds']:.0f} | {short['first_plan_seconds']:.1f} | "
            f"{short['planning_seconds']:.1f} | {percent(short['overhead'])}, "
            f"{percent(short['bound'])} | {percent(long['overhead'])} | "
            f"{row['process_bytes'] / MIB:,.0f} |"
        )


def limits(rows: list[dict[str, Any]]) -> Lines:
    yield "| ops | budget | limit s | planned s | overhead, proven |"
    yield "|---" * 5 + "|"
    for row in rows:
        yield (
            f"| {row['ops']:,} | {row['share']:.0%} | {row['time_limit']:g} "
            f"| {row['planning_seconds']:.2f} | {percent(row['overhead'], 2)}, "
            f"{percent(row['bound'], 2)} |"
        )


def exact(data: dict[str, Any]) -> Lines:
    yield "| change | | cases | no plan | optimal | worst |"
    yield "|---|---|---|---|---|---|"
    for run in data["history"]:
        for column in ("auto", "search"):
            if column not in run:
                continue
            row = run[column]
            yield (
                f"| {run['label']} | {column} | {row['cases']} | {row['no_plan']} | "
                f"{row['optimal']} | +{row['worst_gap']:.1%} |"
            )


def auto(history: list[dict[str, Any]]) -> Lines:
    """The newest run on estimates for a GPU: extra time and gap at each budget."""
    run = _newest_with("cells", history)
    names = {"0.5": "50 %", "0.4": "40 %", "0.3": "30 %"}
    names |= {"as then": "as then", "lowest": "lowest"}
    heads = [names.get(key, f"{key} above") for key in run["steps"][0]["cells"]]
    yield f"| model | ops | {' | '.join(heads)} | lowest at | proven least |"
    yield "|---" * (len(heads) + 4) + "|"
    for row in run["steps"]:
        cells = map(_time_and_gap, row["cells"].values())
        yield (
            f"| {row['name']} | {row['ops']} | {' | '.join(cells)} "
            f"| {row['lowest']:.1%} | {row['proven_least']:.1%} |"
        )


def auto_then(history: list[dict[str, Any]]) -> Lines:
    """The same at the bytes of the first table of this kind, with its figures."""
    yield "| model | 50 % of then | 40 % of then | 30 % of then | lowest of then |"
    yield "|---" * 5 + "|"
    for row in _newest_with("then", history)["steps"]:
        cells = [
            f"{_time_and_gap(cell['today'])}, then {_time_and_gap(cell['then'])}"
            for cell in row["then"]
        ]
        yield f"| {row['name']} | {' | '.join(cells)} |"


def _newest_with(key: str, history: list[dict[str, Any]]) -> dict[str, Any]:
    return next(run for run in reversed(history) if run["steps"][0].get(key))


def _time_and_gap(cell: dict[str, float] | None) -> str:
    if not cell:
        return "-"
    return f"{100 * cell['overhead']:.1f} / {100 * cell['gap']:.2f}"


def formulations(rows: list[dict[str, Any]]) -> Lines:
    yield "| step | ops | formulation | peak | its extra time | `auto` there |"
    yield "|---" * 6 + "|"
    for row in rows:
        theirs, ours = row["theirs"], row["auto"]
        cell = percent(theirs["overhead"]) if "overhead" in theirs else "nothing found"
        if theirs["ended"] == "time":
            cell += ", out of time"
        mine = percent(ours["overhead"]) if "overhead" in ours else "no plan"
        yield (
            f"| {row['step']} | {row['ops']} | {row['kind']} | {row['budget']:.1%} "
            f"| {cell} | {mine} |"
        )

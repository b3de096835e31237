"""Tables of the page "figures", made from `benchmarks/results` when the site is built.

Numbers on that page are therefore those of the files, which the benchmarks wrote.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

RESULTS = Path(__file__).parents[1] / "benchmarks" / "results"
PICTURES = ("planners.png", "scale.png", "chains.png")
MIB = 2.0**20
Lines = Iterator[str]


def table(name: str) -> str:
    """The table of this name in Markdown."""
    make = _TABLES[name]
    return "\n".join(make(json.loads((RESULTS / f"{name}.json").read_text())))


def _percent(value: float | None, digits: int = 1) -> str:
    return "-" if value is None else f"{100 * value:+.{digits}f} %"


def _peaks(rows: list[dict[str, Any]]) -> Lines:
    yield "| model | budget | MiB | predicted | ledger | system | time, predicted |"
    yield "|---|---|---|---|---|---|---|"
    for row in rows:
        if row["budget"] == "eager":
            first = row["ledger_peak_bytes"] - row["ledger_resident_bytes"]
            yield (
                f"| {row['model']} | eager | | | {row['ledger_peak_bytes'] / MIB:.1f} "
                f"| {row['rss_peak_bytes'] / MIB:.1f} of {first / MIB:.1f} | 1 |"
            )
            continue
        above = row["predicted_peak_bytes"] - row["resident_bytes"]
        limit = row["budget_bytes"] / MIB
        yield (
            f"| {row['model']} | {row['budget']} | "
            f"{'' if row['budget'] == 'keep_all' else f'{limit:.1f}'} | "
            f"{row['predicted_peak_bytes'] / MIB:.1f} | "
            f"{row['ledger_peak_bytes'] / MIB:.1f} | "
            f"{row['rss_peak_bytes'] / MIB:.1f} of {above / MIB:.1f} | "
            f"{row['time_ratio']:.3f}, {1 + row['predicted_overhead']:.3f} |"
        )


def _feng(rows: list[dict[str, Any]]) -> Lines:
    yield (
        "| model | batch | published | `feng` here | `auto` at that peak | share | "
        "bound | `auto` at the published cut |"
    )
    yield "|---|---|---|---|---|---|---|---|"
    for row in rows:
        reached = round(100 * row["auto_cut"]) >= round(100 * row["published_cut"])
        share = row["share_of_feng"]
        yield (
            f"| {row['name']} | {row['batch']} "
            f"| -{row['published_cut']:.0%}, +{row['published_overhead']:.0%} "
            f"| -{row['feng_cut']:.0%}, {_percent(row['feng_overhead'])} "
            f"| {_percent(row['auto_overhead_at_feng'])} "
            f"| {'-' if share is None else f'{share:.2f}'} "
            f"| {_percent(row['bound_at_feng'])} "
            f"| -{row['auto_cut']:.0%}, {_percent(row['auto_overhead_at_cut'])}"
            f"{'' if reached else ' (the least it reaches)'} |"
        )


def _feng_measured(models: dict[str, Any]) -> Lines:
    yield "| model | batch | published | measured | predicted | MiB | numbers |"
    yield "|---|---|---|---|---|---|---|"
    for name, row in models.items():
        eager, ours = row["measured_eager_bytes"], row["measured_planned_bytes"]
        yield (
            f"| {name} | {row['measured_batch']} "
            f"| -{row['published_cut']:.0%}, +{row['published_overhead']:.0%} "
            f"| -{row['measured_cut']:.0%}, {_percent(row['measured_overhead'])} "
            f"| {_percent(row['measured_predicted_overhead'])} "
            f"| {eager / MIB:,.0f} to {ours / MIB:,.0f} "
            f"| {'equal' if row['is_exact'] else '**different**'} |"
        )


def _batches(models: dict[str, Any]) -> Lines:
    yield (
        "| model | batch | eager MiB | planned MiB | activations | time | predicted |"
    )
    yield "|---|---|---|---|---|---|---|"
    for name, data in models.items():
        for row in data["rows"]:
            plain, ours = row["measured_baseline"], row["measured_planned"]
            if not plain or not ours:
                continue
            left = ours["activation_peak_bytes"] / plain["activation_peak_bytes"]
            predicted = row["planned_seconds"] / row["baseline_seconds"] - 1
            yield (
                f"| {name} | {row['batch']} | {plain['peak_bytes'] / MIB:,.0f} "
                f"| {ours['peak_bytes'] / MIB:,.0f} | {_percent(left - 1)} "
                f"| {_percent(ours['seconds'] / plain['seconds'] - 1)} "
                f"| {_percent(predicted)} |"
            )
        if "largest_batch" in data:
            yield (
                f"| | at most {data['largest_batch']} | "
                f"| {data['largest_peak_bytes'] / MIB:,.0f} | | "
                f"| {_percent(data['largest_overhead'])} |"
            )


def _planners(results: list[dict[str, Any]]) -> Lines:
    for result in results:
        shares = [p["share"] for p in next(iter(result["planners"].values()))]
        heads = [f"{share:.0%}" for share in shares if share is not None]
        peak = result["baseline_peak_bytes"] / MIB
        yield f"### {result['name']}\n"
        yield f"{result['ops']} ops, {peak:,.0f} MiB unplanned.\n"
        yield f"| planner | {' | '.join(heads)} | its lowest peak | `auto` there | s |"
        yield "|---" * (len(heads) + 4) + "|"
        for name, points in result["planners"].items():
            cells = [_percent(p["overhead"]) for p in points if p["share"] is not None]
            last = points[-1]
            lowest = f"{last['peak']:.1%} at {_percent(last['overhead'])}"
            ours = _percent(last["auto_overhead"]) if name != "auto" else ""
            slowest = max(p["planning_seconds"] for p in points)
            row = " | ".join([name, *cells, lowest, ours, f"{slowest:.1f}"])
            yield f"| {row} |"
        yield ""


def _scale(rows: list[dict[str, Any]]) -> Lines:
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
            f"{short['planning_seconds']:.1f} | {_percent(short['overhead'])}, "
            f"{_percent(short['bound'])} | {_percent(long['overhead'])} | "
            f"{row['process_bytes'] / MIB:,.0f} |"
        )


def _against(models: dict[str, Any]) -> Lines:
    for name, data in models.items():
        rows = {row["name"]: row for row in data["rows"]}
        eager = rows["eager"]
        above = eager["peak_bytes"] - data["resident_bytes"]
        yield f"### {name}\n"
        yield (
            f"`lowtide bench {' '.join(data['target'])} --methods all --budgets "
            f"theirs,floor,activations`: eager {eager['peak_bytes'] / MIB:,.0f} MiB "
            f"allocated, {above / MIB:,.0f} of it above what is there before the step, "
            f"{eager['seconds']:.2f} s.\n"
        )
        yield (
            "| method | step | activations | time | lowtide's step | time | share | "
            "bound | numbers |"
        )
        yield "|---" * 9 + "|"
        for row in data["rows"][1:]:
            if row["matches"]:
                continue
            if row["problem"]:
                yield f"| {row['label']} | | | | | | | | {row['problem'][:90]} |"
                continue
            yield _against_row(row, rows, eager, data["resident_bytes"])
        yield ""


def _against_row(
    row: dict[str, Any], rows: dict[str, Any], eager: dict[str, Any], resident: int
) -> str:
    above = eager["peak_bytes"] - resident
    theirs = row["time_ratio"] - 1
    cells = [
        row["label"],
        f"{(row['peak_bytes'] - resident) / above:.2f}",
        f"{row['activation_peak_bytes'] / eager['activation_peak_bytes']:.2f}",
        _percent(theirs),
    ]
    ours = rows.get(f"lowtide_at_{row['name']}")
    if ours is None or ours["problem"]:
        cells += ["", "", "", ""] if ours is None else ["-", "-", "-", ""]
    else:
        mine = ours["time_ratio"] - 1
        cells += [
            f"{(ours['peak_bytes'] - resident) / above:.2f}",
            _percent(mine),
            f"{max(0.0, mine) / theirs:.2f}" if theirs > 0 else "-",
            _percent(ours["bound_time_ratio"] - 1),
        ]
    cells.append("equal" if row["is_exact"] else "**different**")
    return f"| {' | '.join(cells)} |"


def _exact(rows: list[dict[str, Any]]) -> Lines:
    possible = [row for row in rows if row["optimum"] is not None]
    yield f"{len(rows)} random steps and budgets, {len(possible)} of them possible.\n"
    yield "| | equal to the optimum | within 1 % | worst |"
    yield "|---|---|---|---|"
    for column in ("auto", "heuristics"):
        gaps = [row[column] / row["optimum"] - 1 for row in possible]
        yield (
            f"| {column} | {sum(g < 1e-9 for g in gaps)} | "
            f"{sum(g <= 0.01 for g in gaps)} | {max(gaps):.2%} |"
        )


def _profiles(data: dict[str, Any]) -> Lines:
    yield (
        "| model | ops | sum of ops / step | predicted MiB | ledger | system | cold s "
        "| warm s | capture s | estimate: rank, total |"
    )
    yield "|---" * 10 + "|"
    for name, row in data["models"].items():
        yield (
            f"| {name} | {row['ops']:,} | {row['op_seconds'] / row['step_seconds']:.2f}"
            f" | {row['predicted_bytes'] / MIB:.1f} | {row['ledger_bytes'] / MIB:.1f} |"
            f" {row['system_bytes'] / MIB:.1f} | {row['cold_seconds']:.1f} | "
            f"{row['warm_seconds']:.1f} | {row['capture_seconds']:.1f} | "
            f"{row['rank_correlation']:.3f}, "
            f"{row['estimated_seconds'] / row['op_seconds']:.2f} |"
        )


_TABLES: dict[str, Callable[[Any], Lines]] = {
    "peaks": _peaks,
    "feng": _feng,
    "feng-measured": _feng_measured,
    "batches": _batches,
    "planners": _planners,
    "scale": _scale,
    "against": _against,
    "exact": _exact,
    "profiles": _profiles,
}

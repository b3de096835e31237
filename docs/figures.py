"""Tables of the measurements, made from `benchmarks/results` when the site is built.

So the numbers on these pages are those of the files that the benchmarks wrote.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import figures_of_plans as plans
from figures_of_plans import MIB, Lines, percent

RESULTS = Path(__file__).parents[1] / "benchmarks" / "results"
PICTURES = (
    "against-resnet50.png",
    "batch-gpt2.png",
    "batch-resnet50.png",
    "chains.png",
    "planners.png",
    "scale.png",
)


def table(name: str) -> str:
    """The table of this name in Markdown, below what is measured in it."""
    result, make, origin = _TABLES[name]
    lines = make(json.loads((RESULTS / f"{result}.json").read_text()))
    return "\n".join([f"*{origin}*\n", *lines])


# The models of the headline as people call them, with what `benchmarks/peaks.py` runs.
_HEADLINE = {
    "resnet50": "ResNet-50, batch 16",
    "densenet121": "DenseNet-121, batch 8",
    "gpt2": "GPT-2, 6 layers, batch 4",
    "vit": "ViT-S, batch 8",
}


def _headline(rows: list[dict[str, Any]]) -> Lines:
    """The four lines that the README shows as well."""
    yield (
        "| model | peak in plain PyTorch | peak with lowtide | extra time | "
        "lowest peak reached |"
    )
    yield "|---|---|---|---|---|"
    found = {(row["model"], row["budget"]): row for row in rows}
    for model, label in _HEADLINE.items():
        plain, ours, least = (found[model, b] for b in ("eager", "60%", "floor"))
        peaks = [row["ledger_peak_bytes"] for row in (plain, ours, least)]
        before, after, lowest = (f"{peak / MIB:.0f} MiB" for peak in peaks)
        yield (
            f"| {label} | {before} | {after} ({percent(peaks[1] / peaks[0] - 1, 0)}) "
            f"| {percent(ours['time_ratio'] - 1)} "
            f"| {lowest} at {percent(least['time_ratio'] - 1)} |"
        )


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
            f"| -{row['feng_cut']:.0%}, {percent(row['feng_overhead'])} "
            f"| {percent(row['auto_overhead_at_feng'])} "
            f"| {'-' if share is None else f'{share:.2f}'} "
            f"| {percent(row['bound_at_feng'])} "
            f"| -{row['auto_cut']:.0%}, {percent(row['auto_overhead_at_cut'])}"
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
            f"| -{row['measured_cut']:.0%}, {percent(row['measured_overhead'])} "
            f"| {percent(row['measured_predicted_overhead'])} "
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
                f"| {ours['peak_bytes'] / MIB:,.0f} | {percent(left - 1)} "
                f"| {percent(ours['seconds'] / plain['seconds'] - 1)} "
                f"| {percent(predicted)} |"
            )
        if "largest_batch" in data:
            yield (
                f"| | at most {data['largest_batch']} | "
                f"| {data['largest_peak_bytes'] / MIB:,.0f} | | "
                f"| {percent(data['largest_overhead'])} |"
            )


def _first_step(rows: dict[str, dict[str, Any]]) -> Lines:
    yield "| model | first start, s | second start | aot_eager | second of aot_eager |"
    yield "|---|---|---|---|---|"
    for name, row in rows.items():
        ways = ("first", "second", "aot_eager")
        taken = " | ".join(f"{row[f'{way}_seconds']:.1f}" for way in ways)
        yield f"| {name} | {taken} | {row['second_ratio_seconds']:.2f} |"


def _hf_gpt2(rows: list[dict[str, Any]]) -> Lines:
    yield (
        "| step | ledger MiB | of eager's | predicted | system MiB | time over eager |"
    )
    yield "|---" * 6 + "|"
    eager = rows[0]
    names = {"eager": "eager", "blocks": "checkpointed blocks", "floor": "lowest found"}
    for row in rows:
        peak, time = row["ledger_peak_bytes"], row.get("time_ratio")
        off = row.get("predicted_peak_bytes", peak) / peak - 1
        yield (
            f"| {names.get(row['way'], 'lowtide')} | {peak / MIB:,.0f} "
            f"| {peak / eager['ledger_peak_bytes']:.3f} "
            f"| {percent(off) if 'graphs' in row else ''} "
            f"| {row['rss_peak_bytes'] / MIB:,.0f} "
            f"| {'' if time is None else f'{time:.3f}'} |"
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
        percent(theirs),
    ]
    ours = rows.get(f"lowtide_at_{row['name']}")
    if ours is None or ours["problem"]:
        cells += ["", "", "", ""] if ours is None else ["-", "-", "-", ""]
    else:
        mine = ours["time_ratio"] - 1
        cells += [
            f"{(ours['peak_bytes'] - resident) / above:.2f}",
            percent(mine),
            f"{max(0.0, mine) / theirs:.2f}" if theirs > 0 else "-",
            percent(ours["bound_time_ratio"] - 1),
        ]
    cells.append("equal" if row["is_exact"] else "**different**")
    return f"| {' | '.join(cells)} |"


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


def _stacks(rows: list[dict[str, Any]]) -> Lines:
    yield "| script | library | budget | peak | under lowtide | bits |"
    yield "|---|---|---|---|---|---|"
    for row in rows:
        before, after = row["peak_bytes"], row["planned_peak_bytes"]
        yield (
            f"| `{row['name']}.py` | {row['library']} {row['version']} "
            f"| {row['budget']} | {before / MIB:,.0f} | {after / MIB:,.0f} "
            f"({percent(after / before - 1, 0)}) "
            f"| {'equal' if row['is_exact'] else '**different**'} |"
        )


def _shapes(data: dict[str, Any]) -> Lines:
    timed, counted = data["timed"], data["counted"]
    memory = [nbytes / MIB for nbytes in timed["rss_by_tenth"]]
    highest = counted["highest_bytes"] / counted["budget_bytes"]
    is_same = timed["same_weights"] and timed["equal_losses"] == timed["steps"]
    yield "| | |"
    yield "|---|---|"
    yield f"| captures, searches | {timed['captures']}, {timed['searches']} |"
    yield (
        f"| steps above the budget | {counted['steps_above_budget']} of "
        f"{counted['steps_counted']:,}; the highest takes {highest:.1%} of it |"
    )
    yield (
        f"| time over eager, without planning | {timed['time_ratio']:.3f} in "
        f"{timed['steps']:,} steps, load average {timed['load']:.1f} |"
    )
    yield f"| planning, in all | {timed['planning_seconds']:.0f} s |"
    yield (
        "| most memory of the process in each tenth of the steps, MiB | "
        f"{', '.join(f'{mib:.0f}' for mib in memory)} |"
    )
    yield f"| losses and weights | {'equal' if is_same else '**different**'} |"


def _shapes_own(data: dict[str, Any]) -> Lines:
    yield "| length | extra time | of its own plan | time over that | of the budget |"
    yield "|---|---|---|---|---|"
    budget = data["compared"]["budget_bytes"]
    for row in data["compared"]["rows"]:
        yield (
            f"| {row['length']} | {percent(row['overhead'])} "
            f"| {percent(row['own_overhead'])} | {percent(row['ratio'] - 1, 2)} "
            f"| {row['peak_bytes'] / budget:.0%} |"
        )


def _fake_cuda(data: dict[str, Any]) -> Lines:
    yield (
        "| model | ops | without a plan: predicted | ledger | planned: predicted "
        "| ledger | estimated extra time |"
    )
    yield "|---" * 7 + "|"
    for row in data["rows"]:
        keys = ("eager", "ledger_eager", "planned", "ledger_planned")
        mib = [f"{row[f'{key}_bytes'] / MIB:,.1f}" for key in keys]
        yield (
            f"| {row['name']} | {row['num_ops']:,} | {' | '.join(mib)} "
            f"| {percent(row['overhead'])} |"
        )


def _corpus(models: dict[str, Any]) -> Lines:
    libraries = list(dict.fromkeys(name.split("/")[0] for name in models))
    verdicts = Counter((n.split("/")[0], m["verdict"]) for n, m in models.items())
    yield f"| {len(models)} models | {' | '.join(libraries)} | all |"
    yield "|---" * (len(libraries) + 2) + "|"
    for verdict, total in Counter(m["verdict"] for m in models.values()).most_common():
        cells = [str(verdicts[library, verdict] or "") for library in libraries]
        yield f"| {verdict} | {' | '.join(cells)} | {total} |"
    yield "\n| model | | found |"
    yield "|---|---|---|"
    for name, found in models.items():
        if found["verdict"] != "planned":
            reason = found["reason"][:160].replace("|", "\\|")
            yield f"| {name} | {found['verdict']} | `{reason}` |"


# What is measured in a table and what is predicted.
_MEASURED = "Measured."
_PREDICTED = "Predicted: nothing was run."
_SIMULATED = "Simulated, with measured times of ops."
_PLANNING = "Peaks and extra times are predicted; seconds of planning are measured."
_BESIDE = "Measured, but for what is called predicted."

# Each table with the result that it is made from, and where its numbers come from.
_TABLES: dict[str, tuple[str, Callable[[Any], Lines], str]] = {
    "headline": ("peaks", _headline, _MEASURED),
    "peaks": ("peaks", _peaks, _BESIDE),
    "feng": ("feng", _feng, "Predicted, but for the published columns."),
    "feng-measured": ("feng-measured", _feng_measured, _BESIDE),
    "batches": ("batches", _batches, _BESIDE + " The row *at most* is predicted too."),
    "planners-summary": ("planners", plans.planners_summary, _PREDICTED),
    "planners": ("planners", plans.planners, _PLANNING),
    "scale": ("scale", plans.scale, _PLANNING),
    "limits": ("limits", plans.limits, _PLANNING),
    "against": ("against", _against, "Measured, but for the bound."),
    "hf_gpt2": ("hf_gpt2", _hf_gpt2, _MEASURED),
    "first_step": ("first_step", _first_step, _MEASURED),
    "auto": ("auto", plans.auto, _PREDICTED),
    "auto-then": ("auto", plans.auto_then, _PREDICTED),
    "exact": ("exact", plans.exact, _PREDICTED),
    "formulations": ("formulations", plans.formulations, _PREDICTED),
    "profiles": ("profiles", _profiles, "Measured, but for predicted and estimate."),
    "corpus": ("corpus", _corpus, _MEASURED),
    "shapes": ("shapes", _shapes, _MEASURED),
    "shapes-own": ("shapes", _shapes_own, _SIMULATED),
    "stacks": ("stacks", _stacks, _MEASURED),
    "fake_cuda": (
        "fake_cuda",
        _fake_cuda,
        "Predicted for an H100, and counted in a run on fake tensors; in MiB.",
    ),
}

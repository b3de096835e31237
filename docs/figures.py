"""Tables of the measurements, made from `benchmarks/results` when the site is built.

So the numbers on these pages are those of the files that the benchmarks wrote.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

RESULTS = Path(__file__).parents[1] / "benchmarks" / "results"
PICTURES = (
    "against-resnet50.png",
    "batch-gpt2.png",
    "batch-resnet50.png",
    "chains.png",
    "planners.png",
    "scale.png",
)
MIB = 2.0**20
Lines = Iterator[str]


def table(name: str) -> str:
    """The table of this name in Markdown, below what is measured in it."""
    result, make, origin = _TABLES[name]
    lines = make(json.loads((RESULTS / f"{result}.json").read_text()))
    return "\n".join([f"*{origin}*\n", *lines])


def _percent(value: float | None, digits: int = 1) -> str:
    return "-" if value is None else f"{100 * value:+.{digits}f} %"


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
            f"| {label} | {before} | {after} ({_percent(peaks[1] / peaks[0] - 1, 0)}) "
            f"| {_percent(ours['time_ratio'] - 1)} "
            f"| {lowest} at {_percent(least['time_ratio'] - 1)} |"
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


def _planners(results: list[dict[str, Any]]) -> Lines:
    for result in _with_own_plans(results):
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


def _planners_summary(results: list[dict[str, Any]]) -> Lines:
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
            cells.append("" if mine is None else f"{_percent(mine)} ({shown})")
        lowest = min(points[-1]["peak"] for points in others.values())
        cells.append(f"{ours[-1]['peak']:.0%} ({lowest:.0%})")
        yield f"| {' | '.join(cells)} |"


_CHECKMATE_OPS = 170
_NOT_METHODS = ("auto", "keep_all", "recompute_all")


def _overhead_at(points: list[dict[str, Any]], share: float) -> float | None:
    return next((p["overhead"] for p in points if p["share"] == share), None)


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


def _limits(rows: list[dict[str, Any]]) -> Lines:
    yield "| ops | budget | limit s | planned s | overhead, proven |"
    yield "|---" * 5 + "|"
    for row in rows:
        yield (
            f"| {row['ops']:,} | {row['share']:.0%} | {row['time_limit']:g} "
            f"| {row['planning_seconds']:.2f} | {_percent(row['overhead'], 2)}, "
            f"{_percent(row['bound'], 2)} |"
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
            f"| {_percent(off) if 'graphs' in row else ''} "
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


def _exact(data: dict[str, Any]) -> Lines:
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


def _auto(history: list[dict[str, Any]]) -> Lines:
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


def _auto_then(history: list[dict[str, Any]]) -> Lines:
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


def _formulations(rows: list[dict[str, Any]]) -> Lines:
    yield "| step | ops | formulation | peak | its extra time | `auto` there |"
    yield "|---" * 6 + "|"
    for row in rows:
        theirs, ours = row["theirs"], row["auto"]
        cell = _percent(theirs["overhead"]) if "overhead" in theirs else "nothing found"
        if theirs["ended"] == "time":
            cell += ", out of time"
        mine = _percent(ours["overhead"]) if "overhead" in ours else "no plan"
        yield (
            f"| {row['step']} | {row['ops']} | {row['kind']} | {row['budget']:.1%} "
            f"| {cell} | {mine} |"
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


def _stacks(rows: list[dict[str, Any]]) -> Lines:
    yield "| script | library | budget | peak | under lowtide | bits |"
    yield "|---|---|---|---|---|---|"
    for row in rows:
        before, after = row["peak_bytes"], row["planned_peak_bytes"]
        yield (
            f"| `{row['name']}.py` | {row['library']} {row['version']} "
            f"| {row['budget']} | {before / MIB:,.0f} | {after / MIB:,.0f} "
            f"({_percent(after / before - 1, 0)}) "
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
            f"| {row['length']} | {_percent(row['overhead'])} "
            f"| {_percent(row['own_overhead'])} | {_percent(row['ratio'] - 1, 2)} "
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
            f"| {_percent(row['overhead'])} |"
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
    "planners-summary": ("planners", _planners_summary, _PREDICTED),
    "planners": ("planners", _planners, _PLANNING),
    "scale": ("scale", _scale, _PLANNING),
    "limits": ("limits", _limits, _PLANNING),
    "against": ("against", _against, "Measured, but for the bound."),
    "hf_gpt2": ("hf_gpt2", _hf_gpt2, _MEASURED),
    "first_step": ("first_step", _first_step, _MEASURED),
    "auto": ("auto", _auto, _PREDICTED),
    "auto-then": ("auto", _auto_then, _PREDICTED),
    "exact": ("exact", _exact, _PREDICTED),
    "formulations": ("formulations", _formulations, _PREDICTED),
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

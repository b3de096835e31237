"""`lowtide bench`: every method on one model, really run.

First the peaks of the other methods, each in a fresh process; then lowtide's plans,
also for those very peaks if asked; then everything in turns, for times and numbers.
"""

from __future__ import annotations

import json
import sys
import tempfile
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from lowtide.errors import BudgetTooSmallError
from lowtide.shell import options
from lowtide.shell.failures import say
from lowtide.shell.frame import PICTURES, Frame, SavingFrame, by_ending
from lowtide.shell.options import option, saved_as
from lowtide.shell.progress import stage
from lowtide.shell.target import (
    Target,
    build,
    load_api,
    profile,
    target_of_words,
)
from lowtide.step.format import format_bytes, format_percent, format_seconds
from lowtide.step.graph import StepGraph
from lowtide.step.plan import Plan

if TYPE_CHECKING:
    from lowtide.engine.jobs.bench.against import Row

# Budgets by word: the peak of each other method, the lowest peak of the whole step, and
# the lowest of its activations alone.
THEIRS, FLOOR, ACTIVATIONS = "theirs", "floor", "activations"
_MOST_SECONDS_OF_A_CHILD = 1800
_BUDGETS = (
    "Budgets of lowtide's rows; also `floor`, `activations` (their lowest peak alone) "
    "and `theirs`, the peak of each other method."
)
_METHODS = "usual, all, or names of other methods, such as blocks,inductor_0.5."
_OUTPUT = "Data (.json) or a picture (.png, .svg, .pdf)."


def bench(
    frame: SavingFrame,
    target: options.ModelText,
    budgets: Annotated[str, option(_BUDGETS, "LIST")] = "80%,65%,50%",
    methods: Annotated[str, option(_METHODS, "LIST")] = "usual",
    steps: Annotated[int, option("Timed steps of each method.", "N", min=1)] = 5,
    jobs: Annotated[int, option("Peaks to take at the same time.", "N", min=1)] = 1,
    output: Annotated[Path | None, saved_as(_OUTPUT)] = None,
    planner: options.Planner = "auto",
    time_limit: options.TimeLimit = 10.0,
    batch: options.Batch = None,
    model_options: options.ModelOptions = None,
) -> None:
    """Compare with other methods on a model."""
    from lowtide.reporting.pictures.charts import against_picture

    frame.will_save(output, ".json", *PICTURES)
    asked = Target(target, batch, model_options)
    example = build(asked)
    by_word, words = (THEIRS, FLOOR, ACTIVATIONS), options.words_of(budgets)
    wanted = [w if w in by_word else options.read_budget(w) for w in words]
    load_api()
    from lowtide.engine.jobs.bench.against import Row, compare_methods
    from lowtide.engine.jobs.bench.methods import methods_named, planned_method

    others = methods_named(methods)
    step = profile(asked, example, "measure", None)
    rows = [(Row(method.name, method.label), None) for method in others]
    known = with_peaks(rows, asked, jobs)
    search = {"planner": planner, "time_limit": time_limit}
    planned: list[tuple[Row, Plan]] = []
    missing: list[Row] = []
    for row, budget in _own_rows(step, wanted, known):
        with stage(f"planning {row.label}", limit_seconds=time_limit):
            try:
                planned.append((row, _planned(step, budget, search)))
            except BudgetTooSmallError as error:
                floor = format_bytes(error.floor_bytes)
                missing.append(replace(row, problem=f"below the floor of {floor}"))
    known += with_peaks(planned, asked, jobs)
    all_methods = [
        *others,
        *(planned_method(row.name, row.label, plan) for row, plan in planned),
    ]
    with stage("running every method in turns") as advance:
        done = iter(range(len(all_methods)))
        found = compare_methods(
            *(all_methods, example.model, example.batch, example.loss),
            steps=steps,
            known=known,
            progress=lambda label: advance(next(done), len(all_methods)),
        )
    data = {
        "lowtide": "bench",
        "target": list(asked.words),
        "device": step.device,
        "predicted_baseline_peak_bytes": step.baseline_peak_bytes,
        "resident_bytes": step.resident_bytes,
        "rows": [row.to_dict() for row in (*found, *missing)],
    }
    # Shown first: hours of work must not be lost to a full disk.
    frame.result(data)
    _show(frame, asked.name, data)
    frame.save(output, by_ending(data, against_picture))
    frame.next("sweep", *asked.words)


def _planned(step: StepGraph, budget: Any, search: dict[str, Any]) -> Plan:
    from lowtide.engine.jobs.bench.activations import (
        activation_peak_bytes,
        plan_for_cut,
    )
    from lowtide.planners._request import plan

    if budget == ACTIVATIONS:
        return plan_for_cut(step, activation_peak_bytes(step), 1.0, **search)
    return plan(step, budget=budget, **search)


def _own_rows(
    step: StepGraph, wanted: list[Any], others: list[Row]
) -> Iterator[tuple[Row, Any]]:
    """lowtide's rows with their budgets."""
    from lowtide.engine.jobs.bench.against import Row

    for budget in wanted:
        if budget != THEIRS:
            word = str(budget).replace("%", "").replace(" ", "")
            limit = step.floor_bytes if budget == FLOOR else budget
            least = ", least activations" if budget == ACTIVATIONS else f" {budget}"
            yield Row(f"lowtide_{word}", f"lowtide{least}"), limit
            continue
        for other in others[1:]:
            if other.peak_bytes:
                name, label = f"lowtide_at_{other.name}", f"lowtide at {other.label}"
                yield Row(name, label, matches=other.name), other.peak_bytes


def with_peaks(
    rows: Sequence[tuple[Row, Plan | None]], asked: Target, jobs: int
) -> list[Row]:
    """The rows with the peaks of a fresh process each."""
    with (
        stage("taking peaks in fresh processes") as advance,
        ThreadPoolExecutor(jobs) as pool,
    ):
        done: list[Row] = []
        for row in pool.map(lambda pair: _with_peak(pair[0], asked, pair[1]), rows):
            done.append(row)
            advance(len(done), len(rows))
    return done


def _with_peak(row: Row, asked: Target, plan: Plan | None) -> Row:
    """The row with the peaks of a fresh process, and what the plan promises."""
    from lowtide.engine.checks.meter import in_fresh_process
    from lowtide.reporting.frontier import bound_overhead

    with tempfile.TemporaryDirectory() as folder:
        words = [row.name]
        if plan is not None:
            words.append(f"{folder}/bench.plan.json")
            plan.save(words[-1])
            row = replace(
                row,
                predicted_peak_bytes=plan.peak_bytes,
                predicted_time_ratio=1 + plan.overhead,
                bound_time_ratio=1 + bound_overhead(plan),
            )
        words = ["lowtide.shell.verbs.bench", *words, "--", *asked.words]
        found = in_fresh_process(*words, seconds=_MOST_SECONDS_OF_A_CHILD)
    if not found:
        say("warning", f"the peak of {row.label} could not be taken")
        return row
    return replace(row, **json.loads(found))


def _show(frame: Frame, name: str, data: dict[str, Any]) -> None:
    """The table, and what its columns are."""
    frame.line(f"{name} on {data['device'] or 'this machine'}", "bold")
    base = data["rows"][0]
    frame.table(
        ("method", "peak", "of eager", "allocated", "time", "<numbers"),
        [_table_row(row, base) for row in data["rows"]],
    )
    frame.line()
    frame.line(
        "peak: what the operating system saw above the state before the step, in a "
        "fresh process. allocated: all bytes, parameters included. time: the median, "
        "the methods taking turns. numbers: compared with eager's, bit by bit; a "
        "difference is a share of the largest value."
    )
    matched = list(_matched(data["rows"]))
    if not matched:
        return
    frame.heading("At the peak of each other method")
    headings = ("method", "allocated", "time", "lowtide", "time", "share", "bound")
    frame.table(headings, matched)
    frame.line()
    frame.line(
        "share: lowtide's extra time over the other method's. bound: no plan within "
        "that peak is predicted to be faster."
    )


def _matched(rows: list[dict[str, Any]]) -> Iterator[tuple[str, ...]]:
    """Another method and lowtide at its peak, side by side."""
    by_name = {row["name"]: row for row in rows}
    for row in rows:
        if not row["matches"] or row["problem"]:
            continue
        other = by_name[row["matches"]]
        theirs, ours = other["time_ratio"] - 1, row["time_ratio"] - 1
        yield (
            other["label"] + ("" if other["is_exact"] else " (other numbers)"),
            format_bytes(other["peak_bytes"]),
            format_percent(theirs, signed=True),
            format_bytes(row["peak_bytes"]),
            format_percent(ours, signed=True),
            f"{max(0.0, ours) / theirs:.2f}" if theirs > 0 else "-",
            format_percent(row["bound_time_ratio"] - 1, signed=True),
        )


def _table_row(row: dict[str, Any], base: dict[str, Any]) -> tuple[str, ...]:
    if row["problem"]:
        return (row["label"], "-", "-", "-", "-", row["problem"])
    system, first = row["rss_peak_bytes"], base["rss_peak_bytes"]
    time = format_percent(row["time_ratio"] - 1, signed=True)
    return (
        row["label"],
        format_bytes(system) if system else "-",
        format_percent(system / first) if first and system else "-",
        format_bytes(row["peak_bytes"]) if row["peak_bytes"] else "-",
        format_seconds(row["seconds"]) if row is base else time,
        _numbers(row),
    )


def _numbers(row: dict[str, Any]) -> str:
    wrong = [] if row["is_loss_equal"] else ["loss"]
    if row["num_wrong_gradients"]:
        wrong.append(
            f"{row['num_wrong_gradients']} of {row['num_gradients']} gradients (by "
            f"{row['largest_difference']:.1g})"
        )
    if row["num_wrong_buffers"]:
        wrong.append(f"{row['num_wrong_buffers']} buffers")
    if not row["is_random_state_equal"]:
        wrong.append("random state")
    return "DIFFERENT: " + ", ".join(wrong) if wrong else "equal"


def main(words: list[str]) -> None:
    """The fresh process: print the peaks of METHOD [PLAN] -- TARGET..."""
    from lowtide.engine.jobs.bench.against import measure_peak
    from lowtide.engine.jobs.bench.methods import other_methods, planned_method

    cut = words.index("--")
    name, *plans = words[:cut]
    methods = [planned_method(name, name, Plan.load(path)) for path in plans]
    method = (methods or [m for m in other_methods() if m.name == name])[0]
    example = build(target_of_words(words[cut + 1 :]))
    print(json.dumps(measure_peak(method, example.model, example.batch, example.loss)))


if __name__ == "__main__":
    main(sys.argv[1:])

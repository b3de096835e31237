"""`lowtide batch`: what each batch size needs and yields, with and without a budget."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from lowtide.errors import InvalidArgumentError, LowtideError
from lowtide.shell.failures import say
from lowtide.shell.frame import PICTURES, Content, Frame, SavingFrame
from lowtide.shell.options import (
    Device,
    How,
    ModelOptions,
    Planner,
    TargetText,
    TimeLimit,
    option,
    read_budget,
    saved_as,
    words_of,
)
from lowtide.shell.page import user_prints_elsewhere
from lowtide.shell.progress import note, stage
from lowtide.shell.target import Target, build, load_api, read_target, step_of
from lowtide.step.format import format_bytes, format_percent
from lowtide.step.graph import StepGraph
from lowtide.step.plan import Plan
from lowtide.step.units import to_bytes

if TYPE_CHECKING:
    from lowtide.engine.batch import BatchRow

# A step is only run here if this share of the free memory holds it.
_SAFE_SHARE = 0.6


def batch(
    frame: SavingFrame,
    target: TargetText,
    batches: Annotated[
        str, typer.Option(metavar="LIST", help="Batch sizes, with commas between.")
    ] = "4,8,16,32",
    budget: Annotated[
        str | None,
        option(
            "Peak of the whole step: 6GiB, or a share such as 60% of what the largest "
            "batch needs.  [default: what the smallest batch needs as it is]",
            "SIZE",
            envvar="LOWTIDE_BUDGET",
        ),
    ] = None,
    output: Annotated[
        Path | None,
        saved_as("A picture (.png, .svg, .pdf), a report (.html) or data (.json)."),
    ] = None,
    run: Annotated[
        bool,
        typer.Option(
            "--run/--no-run", help="Whether to measure the sizes that fit here."
        ),
    ] = True,
    largest: Annotated[
        bool,
        typer.Option(
            "--largest/--no-largest", help="Whether to look for the largest batch."
        ),
    ] = True,
    planner: Planner = "auto",
    time_limit: TimeLimit = 5.0,
    model_options: ModelOptions = None,
    how: How = "measure",
    device: Device = None,
) -> None:
    """Show peak and throughput against batch size, and the largest that fits."""
    sizes = _read_sizes(batches)
    wanted = None if budget is None else read_budget(budget)
    asked = _read_target(target, model_options)
    frame.will_save(output, *PICTURES, ".html", ".json")
    steps = {n: step_of(asked.at(n), how=how, device=device) for n in sizes}
    peaks = [step.eager_peak_bytes for step in steps.values()]
    budget_bytes = to_bytes(
        min(peaks) if wanted is None else wanted, baseline_bytes=max(peaks)
    )
    search = {"planner": planner, "time_limit": time_limit}
    rows, plans = _predicted(steps, budget_bytes, search)
    if run and how == "measure":
        rows = [_measured(asked.at(r.batch), r, plans[r.batch]) for r in rows]
    most = _largest(asked, budget_bytes, plans, search) if largest else {}
    data = {
        "lowtide": "batch",
        "target": list(asked.words),
        "budget_bytes": budget_bytes,
        "rows": [row.to_dict() for row in rows],
        **most,
    }
    frame.save(output, lambda ending: _content(ending, data, steps))
    frame.result(data)
    frame.line(f"{asked.name} within {format_bytes(budget_bytes)}", "bold")
    _show(frame, rows, most)
    _advise(frame, rows, budget_bytes)
    best = most.get("largest_batch") or sizes[-1]
    words = (*asked.at(best).words, "--budget", str(budget_bytes))
    frame.next("plan", *words, "-o", f"{asked.name}.plan.json")


def _read_sizes(text: str) -> list[int]:
    """Batch sizes in rising order."""
    parts = words_of(text)
    if not parts or not all(p.isdecimal() and int(p) > 0 for p in parts):
        raise InvalidArgumentError(
            f"--batches {text}", "it is no list of sizes", "Write --batches 4,8,16"
        )
    return sorted({int(part) for part in parts})


def _read_target(target: str, model_options: list[str] | None) -> Target:
    asked = read_target(target, None, model_options)
    if asked.kind == "file":
        raise InvalidArgumentError(
            f"lowtide batch {target}",
            "a saved step has one batch size",
            "Give a built-in model, or a function that takes batch, as in "
            "def make_step(batch)",
        )
    return asked


def _predicted(
    steps: dict[int, StepGraph], budget_bytes: int, search: dict[str, Any]
) -> tuple[list[BatchRow], dict[int, Plan | None]]:
    from lowtide.engine.batch import predict_row

    rows: list[BatchRow] = []
    plans: dict[int, Plan | None] = {}
    for size, step in steps.items():
        title = f"planning a batch of {size}"
        with stage(title, limit_seconds=search["time_limit"]):
            row, plans[size] = predict_row(size, step, budget_bytes, **search)
        rows.append(row)
    return rows, plans


def _measured(asked: Target, row: BatchRow, plan: Plan | None) -> BatchRow:
    """The row with what really happened, if this machine can hold it."""
    from lowtide.engine.batch import free_bytes, measure_both

    free = free_bytes()
    if free and row.baseline_peak_bytes > _SAFE_SHARE * free:
        note(
            f"a batch of {row.batch} is not run here: it needs "
            f"{format_bytes(row.baseline_peak_bytes)}, {format_bytes(free)} are free"
        )
        return row
    example = build(asked)
    with stage(f"running a batch of {row.batch}"), user_prints_elsewhere():
        try:
            plain, planned = measure_both(
                example.model, example.batch, example.loss, plan
            )
        except LowtideError as error:
            say("warning", f"a batch of {row.batch} could not be measured: {error}")
            return row
    return replace(row, measured_baseline=plain, measured_planned=planned)


def _largest(
    asked: Target,
    budget_bytes: int,
    plans: dict[int, Plan | None],
    search: dict[str, Any],
) -> dict[str, Any]:
    api = load_api()
    from lowtide.engine.batch import find_largest

    def step_at(size: int) -> StepGraph:
        example = build(asked.at(size), fake=True)
        with user_prints_elsewhere():
            return api.profile(
                example.model, example.batch, loss=example.loss, how="estimate"
            )

    known = {size: plan for size, plan in plans.items() if plan is not None}
    with stage("looking for the largest batch"):
        size, plan = find_largest(step_at, budget_bytes, known=known, **search)
    return {
        "largest_batch": size,
        "largest_peak_bytes": plan.peak_bytes,
        "largest_overhead": plan.overhead,
    }


def _content(ending: str, data: dict[str, Any], steps: dict[int, StepGraph]) -> Content:
    if ending == ".json":
        return data
    if ending == ".html":
        from lowtide.reporting.report import report

        return report(steps[max(steps)], data["rows"]).to_html()
    from lowtide.reporting.pictures import batch_picture

    return batch_picture(data, ending[1:])


def _show(frame: Frame, rows: list[BatchRow], most: dict[str, Any]) -> None:
    frame.table(
        ("batch", "peak", "with plan", "samples/s", "with plan", "time"),
        [_row(row) for row in rows],
    )
    measured = [row for row in rows if row.measured_baseline is not None]
    if measured:
        frame.heading("Measured here")
        frame.table(
            (
                *("batch", "peak", "with plan", "activations"),
                *("samples/s", "with plan", "time"),
            ),
            [_real_row(row) for row in measured],
        )
    if most:
        extra = format_percent(most["largest_overhead"], signed=True)
        frame.line()
        frame.line(
            f"The largest batch that fits is {most['largest_batch']}: peak "
            f"{format_bytes(most['largest_peak_bytes'])}, about {extra} time."
        )


def _row(row: BatchRow) -> tuple[str, ...]:
    if row.planned_peak_bytes is None or row.planned_seconds is None:
        planned = ("does not fit", "-", "-")
    else:
        planned = (
            format_bytes(row.planned_peak_bytes),
            f"{row.batch / row.planned_seconds:.1f}",
            format_percent(row.planned_seconds / row.baseline_seconds - 1, signed=True),
        )
    return (
        str(row.batch),
        format_bytes(row.baseline_peak_bytes),
        planned[0],
        f"{row.batch / row.baseline_seconds:.1f}",
        *planned[1:],
    )


def _real_row(row: BatchRow) -> tuple[str, ...]:
    plain, planned = row.measured_baseline, row.measured_planned
    assert plain is not None
    head = (str(row.batch), format_bytes(plain.peak_bytes))
    speed = f"{row.batch / plain.seconds:.1f}"
    if planned is None:
        return (*head, "-", "-", speed, "-", "-")
    cut = "-"
    if plain.activation_peak_bytes and planned.activation_peak_bytes is not None:
        left = planned.activation_peak_bytes / plain.activation_peak_bytes
        cut = format_percent(left - 1, signed=True)
    return (
        *head,
        format_bytes(planned.peak_bytes),
        cut,
        speed,
        f"{row.batch / planned.seconds:.1f}",
        format_percent(planned.seconds / plain.seconds - 1, signed=True),
    )


def _advise(frame: Frame, rows: list[BatchRow], budget_bytes: int) -> None:
    """Whether the larger batch is worth it: it is only if it trains faster."""
    from lowtide.engine.batch import best_row

    best = best_row(rows)
    plain = [r for r in rows if r.baseline_peak_bytes <= budget_bytes]
    if best is None or best.planned_samples_per_second is None:
        frame.line("No size in the list fits this budget.")
        return
    text = (
        f"Within the budget, {best.batch} samples at a time train fastest: "
        f"{best.planned_samples_per_second:.1f} samples/s"
    )
    if plain:
        top = max(plain, key=lambda r: r.baseline_samples_per_second)
        text += (
            f"; without a plan it is {top.batch} at "
            f"{top.baseline_samples_per_second:.1f} samples/s"
        )
    frame.line(text + ".")

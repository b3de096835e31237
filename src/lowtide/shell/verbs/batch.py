"""`lowtide batch`: what each batch size needs and yields, with and without a budget."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from lowtide.errors import InvalidArgumentError, LowtideError
from lowtide.shell import options
from lowtide.shell.failures import say
from lowtide.shell.frame import PICTURES, Frame, SavingFrame, by_ending
from lowtide.shell.options import option, planner_words, read_budget, saved_as, words_of
from lowtide.shell.progress import note, stage
from lowtide.shell.target import StepSource, Target, build, load_api
from lowtide.step.format import format_bytes, format_percent
from lowtide.step.graph import StepGraph
from lowtide.step.plan import Plan
from lowtide.step.units import to_bytes

if TYPE_CHECKING:
    from lowtide.engine.jobs.batch import BatchRow, Measured, Search

# A step is only run here if this share of the free memory holds it.
_SAFE_SHARE = 0.6
_BUDGET = (
    "Peak of the whole step: 6GiB, or a share such as 60% of what the largest batch "
    "needs.  [default: what the smallest batch needs without a plan]"
)
_OUTPUT = "A picture (.png, .svg, .pdf), a report (.html) or data (.json)."
_RUN = "Whether to measure the sizes that fit here."
_LARGEST = "Whether to look for the largest batch."


def batch(
    frame: SavingFrame,
    target: options.ModelText,
    batches: Annotated[
        str, option("Batch sizes, separated by commas.", "LIST")
    ] = "4,8,16,32",
    budget: Annotated[
        str | None, option(_BUDGET, "SIZE", envvar="LOWTIDE_BUDGET")
    ] = None,
    output: Annotated[Path | None, saved_as(_OUTPUT)] = None,
    run: Annotated[bool, typer.Option("--run/--no-run", help=_RUN)] = True,
    largest: Annotated[
        bool, typer.Option("--largest/--no-largest", help=_LARGEST)
    ] = True,
    planner: options.Planner = "auto",
    time_limit: options.TimeLimit = 5.0,
    model_options: options.ModelOptions = None,
    how: options.How = "measure",
    device: options.Device = None,
    mesh: options.Mesh = None,
) -> None:
    """Show peak and throughput against batch size, and the largest that fits."""
    from lowtide.reporting.pictures.charts import batch_picture
    from lowtide.reporting.report import report

    sizes = _read_sizes(batches)
    wanted = None if budget is None else read_budget(budget)
    asked = _read_model(target, model_options)
    frame.will_save(output, *PICTURES, ".html", ".json")

    def source(size: int) -> StepSource:
        given = (target, size, model_options, how, device)
        return StepSource(*given, mesh=mesh)

    steps = {size: source(size).step() for size in sizes}
    from lowtide.engine.jobs.batch import predict_row, search_with

    search = search_with(planner, time_limit)
    peaks = [step.eager_peak_bytes for step in steps.values()]
    budget_bytes = to_bytes(
        min(peaks) if wanted is None else wanted, baseline_bytes=max(peaks)
    )
    rows: list[BatchRow] = []
    plans: dict[int, Plan | None] = {}
    most: dict[str, Any] = {}
    try:
        for size, step in steps.items():
            with stage(f"planning a batch of {size}", limit_seconds=time_limit):
                row, plans[size] = predict_row(size, step, budget_bytes, search)
            rows.append(row)
        if run and how == "measure" and mesh is None:
            for place, row in enumerate(rows):
                rows[place] = _measured(asked, row, plans[row.batch])
        if largest and mesh is None:
            most = _largest(asked, budget_bytes, plans, search, how)
    except KeyboardInterrupt:
        if not rows:
            raise
        say("note", "interrupted: this is what was found so far")
    data = {
        "lowtide": "batch",
        "target": list(asked.words),
        "budget_bytes": budget_bytes,
        "rows": [row.to_dict() for row in rows],
        **most,
    }
    page = partial(report, steps[max(steps)], data)
    frame.save(output, by_ending(data, batch_picture, page))
    frame.result(data)
    frame.line(f"{asked.name} within {format_bytes(budget_bytes)}", "bold")
    _show(frame, rows, most)
    frame.assumed(steps[max(steps)])
    _advise(frame, rows, budget_bytes)
    fits = [size for size, plan in plans.items() if plan is not None]
    size = fits[-1] if fits else most.get("largest_batch", 1)
    words = (*source(size).words, "--budget", str(budget_bytes))
    words = (*words, *planner_words(planner))
    frame.next("plan", *words, "-o", f"{asked.name}.plan.json")


def _read_model(target: str, model_options: list[str] | None) -> Target:
    asked = Target(target, None, model_options)
    if asked.kind == "file":
        raise InvalidArgumentError(
            f"lowtide batch {target}",
            "a saved step has one batch size",
            "Give a built-in model, or a function such as def make_step(batch)",
        )
    return asked


def _read_sizes(text: str) -> list[int]:
    parts = words_of(text)
    if not parts or not all(p.isdecimal() and int(p) > 0 for p in parts):
        raise InvalidArgumentError(
            f"--batches {text}", "it is not a list of sizes", "Write --batches 4,8,16"
        )
    return sorted({int(part) for part in parts})


def _measured(asked: Target, row: BatchRow, plan: Plan | None) -> BatchRow:
    """The row with what really happened, if this machine can hold it."""
    from lowtide.engine.jobs.batch import free_bytes, measure_both

    free = free_bytes()
    if free and row.baseline_peak_bytes > _SAFE_SHARE * free:
        note(
            f"a batch of {row.batch} is not run here: it needs "
            f"{format_bytes(row.baseline_peak_bytes)}, {format_bytes(free)} are free"
        )
        return row
    made = build(replace(asked, batch=row.batch))
    with stage(f"running a batch of {row.batch}"):
        try:
            plain, planned = measure_both(made.model, made.batch, made.loss, plan)
        except LowtideError as error:
            say("warning", f"a batch of {row.batch} could not be measured: {error}")
            return row
    return replace(row, measured_baseline=plain, measured_planned=planned)


def _largest(
    asked: Target,
    budget_bytes: int,
    plans: dict[int, Plan | None],
    search: Search,
    how: str,
) -> dict[str, Any]:
    """The largest batch by estimate, confirmed by measuring if that was asked for."""
    api = load_api()
    from lowtide.engine.jobs.batch import confirm_largest, find_largest

    def step_at(how: str, size: int) -> StepGraph:
        made = build(replace(asked, batch=size), fake=how == "estimate")
        return api.profile(made.model, made.batch, loss=made.loss, how=how)

    known = {size: plan for size, plan in plans.items() if plan is not None}
    within: dict[str, Any] = {"search": search, "known": known}
    with stage("looking for the largest batch"):
        found = find_largest(partial(step_at, "estimate"), budget_bytes, **within)
        if how == "measure":
            at = partial(step_at, how)
            found = confirm_largest(at, found[0], budget_bytes, **within)
    if found is None:
        return {}
    size, plan = found
    return {
        "largest_is_estimated": how == "estimate",
        "largest_batch": size,
        "largest_peak_bytes": plan.peak_bytes,
        "largest_overhead": plan.overhead,
    }


_HEADINGS = ("batch", "peak", "with plan", "samples/s", "with plan", "time")


def _show(frame: Frame, rows: list[BatchRow], most: dict[str, Any]) -> None:
    frame.table(_HEADINGS, [_cells(row.batch, *row.predicted)[:-1] for row in rows])
    measured = [
        _cells(row.batch, row.measured_baseline, row.measured_planned)
        for row in rows
        if row.measured_baseline is not None
    ]
    if measured:
        frame.heading("Measured here")
        frame.table((*_HEADINGS, "activations"), measured)
    if most:
        size, peak = most["largest_batch"], format_bytes(most["largest_peak_bytes"])
        extra = format_percent(most["largest_overhead"], signed=True)
        frame.line()
        frame.line(
            f"{'By estimate, the' if most['largest_is_estimated'] else 'The'} largest "
            f"batch that fits is {size}: peak {peak}, about {extra} time."
        )


def _cells(batch: int, plain: Measured, planned: Measured | None) -> tuple[str, ...]:
    """Both sides of a batch size, and how time and activations change."""
    peak, speed = format_bytes(plain.peak_bytes), f"{batch / plain.seconds:.1f}"
    if planned is None:
        return (str(batch), peak, "does not fit", speed, "-", "-", "-")
    cut = "-"
    if plain.activation_peak_bytes:
        left = planned.activation_peak_bytes / plain.activation_peak_bytes
        cut = format_percent(left - 1, signed=True)
    return (
        *(str(batch), peak, format_bytes(planned.peak_bytes)),
        *(speed, f"{batch / planned.seconds:.1f}"),
        format_percent(planned.seconds / plain.seconds - 1, signed=True),
        cut,
    )


def _advise(frame: Frame, rows: list[BatchRow], budget_bytes: int) -> None:
    """Whether the larger batch is worth it: only if it trains faster."""
    from lowtide.engine.jobs.batch import best_row

    best = best_row(rows)
    if best is None:
        frame.line("No size in the list fits this budget.")
        return
    text = (
        f"Within the budget, {best.batch} samples at a time train fastest: "
        f"{best.planned_samples_per_second:.1f} samples/s"
    )
    plain = [r for r in rows if r.baseline_peak_bytes <= budget_bytes]
    if plain:
        top = max(plain, key=lambda r: r.baseline_samples_per_second)
        text += (
            f"; without a plan it is {top.batch} at "
            f"{top.baseline_samples_per_second:.1f} samples/s"
        )
    frame.line(text + ".")

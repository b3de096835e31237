"""`lowtide profile`: what a training step needs, before anything is planned."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Annotated, Literal

import typer

from lowtide.shell.frame import SavingFrame
from lowtide.shell.options import Output, flag, option
from lowtide.shell.progress import stage
from lowtide.shell.target import StepSource
from lowtide.step.format import format_bytes
from lowtide.step.graph import StepGraph
from lowtide.step.records import json_of

# A plan within some extra time always exists.
ALWAYS_FEASIBLE = ("--max-overhead", "10%")
Rows = Literal["storages", "ops", "modules"]
_DEPTH = "How many names of a module path the table shows."
_FLOOR = "Whether to look for the lowest peak there is."
_REFRESH = "Measure again, ignoring what earlier profiles have kept."
_PLOT = "Draw live bytes over the step: .png, .svg or .pdf."


def profile(
    frame: SavingFrame,
    source: StepSource,
    output: Output = None,
    depth: Annotated[int | None, option(_DEPTH, "N", min=1)] = None,
    floor: Annotated[bool, typer.Option("--floor/--no-floor", help=_FLOOR)] = True,
    plot: Annotated[Path | None, option(_PLOT, "FILE")] = None,
    csv: Annotated[Path | None, option("Write a table as CSV.", "FILE")] = None,
    csv_of: Annotated[
        Rows, option("What the rows of --csv are.", "storages|ops|modules")
    ] = "storages",
    refresh: Annotated[bool, flag("--refresh", _REFRESH)] = False,
) -> None:
    """Show what a training step needs: bytes, time, and what holds them."""
    from lowtide.reporting.pictures.charts import chart_picture
    from lowtide.reporting.report import report
    from lowtide.step.analysis.csv import table_of

    for path in (output, plot, csv):
        frame.will_save(path)
    step = source.step(refresh=refresh)
    frame.save(output, lambda _: json_of(step))
    frame.save(
        plot,
        lambda ending: chart_picture("tide", report(step).data, ending[1:] or "png"),
    )
    frame.save(csv, lambda _: table_of(step, csv_of))
    frame.result(step.to_dict())
    _show(frame, step, depth=depth, floor=floor)
    words = source.words if output is None else (str(output),)
    frame.next("plan", *words, *_feasible(step, known=floor and not frame.as_json))


def _feasible(step: StepGraph, *, known: bool) -> tuple[str, str]:
    """A limit that can be kept: a budget above the floor, if the floor is known."""
    if known:
        least = math.ceil(100 * step.floor_bytes / step.eager_peak_bytes) + 1
        if least < 100:
            return ("--budget", f"{max(60, least)}%")
    return ALWAYS_FEASIBLE


def _show(
    frame: SavingFrame, step: StepGraph, *, depth: int | None, floor: bool
) -> None:
    """The summary by module; on a terminal too narrow for it, the report's text."""
    if frame.as_json:
        return
    from lowtide.step.analysis.summary import format_profile

    if floor:
        with stage("looking for the lowest peak"):
            step.floor_bytes  # noqa: B018  (kept by the step for the summary)
    text = format_profile(step, depth=depth, floor=floor)
    widest = max(map(len, text.splitlines()))
    if frame.out.isatty() and widest > frame.console.width:
        frame.report(step)
        if floor:
            lowest = format_bytes(step.floor_bytes)
            frame.line()
            frame.pairs([("floor", lowest, "the lowest peak found")])
    else:
        frame.line(step.name, "bold")
        frame.text(text)

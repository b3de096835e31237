"""`lowtide profile`: what a training step needs, before anything is planned."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Annotated, Literal

import typer

from lowtide.shell.files import compact
from lowtide.shell.frame import SavingFrame
from lowtide.shell.options import Output, StepSource, option
from lowtide.shell.progress import stage
from lowtide.step.graph import StepGraph

Rows = Literal["storages", "ops", "modules"]


def profile(
    frame: SavingFrame,
    source: StepSource,
    output: Output = None,
    depth: Annotated[
        int | None,
        option("How many names of a module path the table shows.", "N", min=1),
    ] = None,
    floor: Annotated[
        bool,
        typer.Option(
            "--floor/--no-floor", help="Whether to look for the lowest peak there is."
        ),
    ] = True,
    plot: Annotated[
        Path | None,
        option("Draw live bytes over the step: .png, .svg or .pdf.", "FILE"),
    ] = None,
    csv: Annotated[Path | None, option("Write a table as CSV.", "FILE")] = None,
    csv_of: Annotated[
        Rows,
        typer.Option(
            metavar="storages|ops|modules", help="What the rows of --csv are."
        ),
    ] = "storages",
    refresh: Annotated[
        bool,
        typer.Option(
            "--refresh", help="Measure anew, whatever earlier profiles have kept."
        ),
    ] = False,
) -> None:
    """Show what a training step needs: bytes, time, and what holds them."""
    asked = source.asked
    for path in (output, plot, csv):
        frame.will_save(path)
    step = source.step(refresh=refresh)
    frame.save(output, lambda _: compact(step.to_dict()))
    frame.save(plot, lambda ending: _picture(step, ending))
    frame.save(csv, lambda _: _table(step, csv_of))
    frame.result(step.to_dict())
    _show(frame, step, depth=depth, floor=floor)
    words = asked.words if output is None else (str(output),)
    frame.next("plan", *words, "--budget", "60%")


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
    else:
        frame.line(step.name, "bold")
        frame.text(text)


def _picture(step: StepGraph, ending: str) -> bytes:
    from lowtide.reporting.pictures import profile_picture

    return profile_picture(step, ending[1:] or "png")


def _table(step: StepGraph, rows: Rows) -> str:
    from lowtide.step.analysis.csv import write_csv

    text = io.StringIO()
    write_csv(step, text, rows)
    return text.getvalue()

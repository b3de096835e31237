"""`lowtide profile`: what a training step needs, before anything is planned."""

from __future__ import annotations

import io
import tempfile
from pathlib import Path
from typing import Annotated

import typer

from lowtide.shell import files
from lowtide.shell.options import (
    AsJson,
    Batch,
    Device,
    Force,
    How,
    ModelOptions,
    Output,
    TargetText,
)
from lowtide.shell.page import Page
from lowtide.shell.progress import stage
from lowtide.shell.steps import show_report
from lowtide.shell.target import read_target, step_of
from lowtide.step.analysis.csv import Table, write_csv
from lowtide.step.graph import StepGraph


def profile(
    target: TargetText,
    output: Output = None,
    batch: Batch = None,
    option: ModelOptions = None,
    how: How = "measure",
    device: Device = None,
    depth: Annotated[
        int | None,
        typer.Option(
            min=1,
            metavar="N",
            help="How many names of a module path the table shows.",
            show_default=False,
        ),
    ] = None,
    floor: Annotated[
        bool,
        typer.Option(
            "--floor/--no-floor", help="Whether to look for the lowest peak there is."
        ),
    ] = True,
    plot: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="Draw live bytes over the step: .png, .svg or .pdf.",
            show_default=False,
        ),
    ] = None,
    csv: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Write a table as CSV.", show_default=False),
    ] = None,
    csv_of: Annotated[
        Table,
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
    force: Force = False,
    as_json: AsJson = False,
) -> None:
    """Show what a training step needs: bytes, time, and what holds them."""
    page = Page(as_json=as_json)
    asked = read_target(target, batch, option)
    for path in (output, plot, csv):
        files.refuse_early(path, force=force)
    step = step_of(asked, how=how, device=device, refresh=refresh)
    if csv is not None:
        rows = io.StringIO()
        write_csv(step, rows, csv_of)
        files.write(csv, rows.getvalue(), force=force)
    if output is not None:
        files.write_compact(output, step.to_dict(), force=force)
    if plot is not None:
        _draw(step, plot, force=force)
    page.result(step.to_dict())
    _show(page, step, depth=depth, floor=floor)
    page.line()
    for path in (output, plot, csv):
        if path is not None:
            page.pairs([("saved", str(path))])
    saved = asked.words if output is None else (str(output),)
    page.next("lowtide", "plan", *saved, "--budget", "60%")


def _show(page: Page, step: StepGraph, *, depth: int | None, floor: bool) -> None:
    """The summary by module; on a terminal too narrow for it, the report's text."""
    if page.as_json:
        return
    from lowtide.step.analysis.summary import format_profile

    if floor:
        with stage("looking for the lowest peak"):
            step.floor_bytes  # noqa: B018  (kept by the step for the summary)
    text = format_profile(step, depth=depth, floor=floor)
    widest = max(map(len, text.splitlines()))
    if page.out.isatty() and widest > page.console.width:
        show_report(page, step)
    else:
        page.line(step.name, "bold")
        page.text(text)


def _draw(step: StepGraph, path: Path, *, force: bool) -> None:
    from lowtide.step.analysis.plot import plot_profile

    with tempfile.TemporaryDirectory() as folder:
        draft = Path(folder) / f"plot{path.suffix or '.png'}"
        plot_profile(step, draft)
        files.write(path, draft.read_bytes(), force=force)

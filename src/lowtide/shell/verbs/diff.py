"""`lowtide diff`: what changed between two plans, or two steps."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from lowtide.shell import complete, files
from lowtide.shell.options import AsJson, Force, StepFile
from lowtide.shell.page import Page
from lowtide.shell.steps import show_report
from lowtide.shell.target import step_for
from lowtide.step.plan import Plan

_File = typer.Argument(
    help="A saved plan or step.", autocompletion=complete.targets, show_default=False
)


def diff(
    first: Annotated[Path, _File],
    second: Annotated[Path, _File],
    output: Annotated[
        Path | None,
        typer.Option(
            "--output",
            "-o",
            metavar="FILE",
            help="Also draw both in a report: .html.",
            show_default=False,
        ),
    ] = None,
    step_file: StepFile = None,
    force: Force = False,
    as_json: AsJson = False,
) -> None:
    """Compare two plans of one step, or two steps."""
    from lowtide.reporting import report
    from lowtide.reporting.diff import diff as diff_things

    page = Page(as_json=as_json)
    files.refuse_early(output, force=force)
    things = (files.load(first), files.load(second))
    step = None
    if all(isinstance(thing, Plan) for thing in things):
        if step_file is not None:
            step = step_for(things[0], first, step_file)  # type: ignore[arg-type]
        else:
            step = files.step_beside(things[0], first)  # type: ignore[arg-type]
    found = diff_things(*things, step=step, names=(str(first), str(second)))
    if output is not None:
        files.write(output, report(found).to_html(), force=force)
    page.result(found.to_dict())
    show_report(page, found)
    page.line()
    if output is not None:
        page.pairs([("saved", str(output))])
        page.next("lowtide", "report", str(second))
    else:
        page.next("lowtide", "diff", str(first), str(second), "-o", "diff.html")

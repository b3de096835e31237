"""`lowtide diff`: what changed between two plans, or two steps."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from lowtide._cli import _complete, _files
from lowtide._cli._options import AsJson, Force, StepFile
from lowtide._cli._page import Page
from lowtide._cli._steps import show_report
from lowtide._cli._target import step_for
from lowtide._plan import Plan

_File = typer.Argument(
    help="A saved plan or step.", autocompletion=_complete.targets, show_default=False
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
    from lowtide._diff import diff as diff_things
    from lowtide._report import report

    page = Page(as_json=as_json)
    _files.refuse_early(output, force=force)
    things = (_files.load(first), _files.load(second))
    step = None
    if all(isinstance(thing, Plan) for thing in things):
        if step_file is not None:
            step = step_for(things[0], first, step_file)  # type: ignore[arg-type]
        else:
            step = _files.step_beside(things[0], first)  # type: ignore[arg-type]
    found = diff_things(*things, step=step, names=(str(first), str(second)))
    if output is not None:
        _files.write(output, report(found).to_html(), force=force)
    page.result(found.to_dict())
    show_report(page, found)
    page.line()
    if output is not None:
        page.pairs([("saved", str(output))])
        page.next("lowtide", "report", str(second))
    else:
        page.next("lowtide", "diff", str(first), str(second), "-o", "diff.html")

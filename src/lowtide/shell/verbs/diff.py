"""`lowtide diff`: what changed between two plans, or two steps."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from lowtide.shell import complete, files
from lowtide.shell.frame import SavingFrame
from lowtide.shell.options import StepFile, argument, saved_as
from lowtide.step.plan import Plan

_File = Annotated[Path, argument("A saved plan or step.", complete.targets)]


def diff(
    frame: SavingFrame,
    first: _File,
    second: _File,
    output: Annotated[
        Path | None, saved_as("Also draw both in a report: .html.")
    ] = None,
    step_file: StepFile = None,
) -> None:
    """Compare two plans of one step, or two steps."""
    from lowtide.reporting.diff import diff as compare
    from lowtide.reporting.report import report

    frame.will_save(output)
    a, b = files.load(first), files.load(second)
    step = None
    if isinstance(a, Plan) and isinstance(b, Plan):
        step = files.step_if_known(a, first, step_file)
    compared = compare(a, b, step=step, names=(str(first), str(second)))
    frame.save(output, lambda _: report(compared).to_html())
    frame.result(compared.to_dict())
    frame.report(compared)
    if output is None:
        frame.next("diff", str(first), str(second), "-o", "diff.html")
    else:
        frame.next("report", str(second))

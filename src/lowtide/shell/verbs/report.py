"""`lowtide report`: one HTML file about a step, its plans and what was measured."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Annotated

from lowtide.shell import complete, options
from lowtide.shell import files as _files
from lowtide.shell.frame import SavingFrame
from lowtide.shell.options import argument, flag, option, saved_as, step_words
from lowtide.shell.verbs.profile import ALWAYS_FEASIBLE
from lowtide.step.graph import StepGraph
from lowtide.step.plan import Plan

_FILES = "Saved plans and steps; the first plan is the one shown."
_OUTPUT = "Where to write it: .html, .json or .txt.  [default: NAME.html]"


def report(
    frame: SavingFrame,
    files: Annotated[list[Path], argument(_FILES, complete.targets, "FILE...")],
    output: Annotated[Path | None, saved_as(_OUTPUT)] = None,
    text: Annotated[bool, flag("--text", "Print it here, and write no file.")] = False,
    plots: Annotated[
        Path | None, option("Write each chart into this folder.", "FOLDER")
    ] = None,
    form: Annotated[str, option("Format of the charts.", "svg|png|pdf")] = "svg",
    step_file: options.StepFile = None,
) -> None:
    """Write the report of a plan or a step, and print its short form."""
    from lowtide.reporting.report import report as make_report

    path = None if text else output
    if output is None and not text and not frame.as_json:
        path = _files.beside(files[0], ".html")
    frame.will_save(path, ".html", ".json", ".txt")
    things = _things(files, step_file)
    command = shlex.join(("lowtide", "report", *map(str, files)))
    made = make_report(*things, command=command)
    frame.save(path, made.content)
    if plots is not None:
        frame.saved += made.save_plots(plots, form=form, force=frame.force)
    frame.result(made.to_dict())
    frame.report(*things, is_short=not text)
    pairs = zip(files, things, strict=False)
    plan = next((file for file, thing in pairs if isinstance(thing, Plan)), None)
    if plan is None:
        frame.next("plan", str(files[0]), *ALWAYS_FEASIBLE)
    else:
        frame.next("export", str(plan), *step_words(step_file), "--to", "chrome")


def _things(files: list[Path], step_file: Path | None) -> list[StepGraph | Plan]:
    """What the files hold, and the step of the first plan if it can be found."""
    things = [_files.load(path) for path in files]
    if step_file is None and any(isinstance(thing, StepGraph) for thing in things):
        return things
    for path, thing in zip(files, things, strict=True):
        if isinstance(thing, Plan):
            step = _files.step_if_known(thing, path, step_file)
            if step is not None:
                return [*things, step]
    return things

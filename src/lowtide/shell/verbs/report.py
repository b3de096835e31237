"""`lowtide report`: one HTML file about a step, its plans and what was measured."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from lowtide.shell import complete
from lowtide.shell import files as _files
from lowtide.shell.frame import Content, SavingFrame
from lowtide.shell.options import StepFile, argument, flag, option, saved_as
from lowtide.shell.page import command_line
from lowtide.shell.target import step_if_known
from lowtide.step.graph import StepGraph
from lowtide.step.plan import Plan


def report(
    frame: SavingFrame,
    files: Annotated[
        list[Path],
        argument(
            "Saved plans and steps; the first plan is the one shown.",
            complete.targets,
            "FILE...",
        ),
    ],
    output: Annotated[
        Path | None,
        saved_as("Where to write it: .html, .json or .txt.  [default: NAME.html]"),
    ] = None,
    text: Annotated[bool, flag("--text", "Print it here, and write no file.")] = False,
    plots: Annotated[
        Path | None, option("Write each chart into this folder.", "FOLDER")
    ] = None,
    form: Annotated[
        str, typer.Option(help="Of the charts.", metavar="svg|png|pdf")
    ] = "svg",
    step_file: StepFile = None,
) -> None:
    """Write the report of a plan or a step, and print its short form."""
    from lowtide.reporting.report import report as make_report

    path = None if text else output
    if output is None and not text and not frame.as_json:
        path = _files.beside(files[0], ".html")
    frame.will_save(path, ".html", ".json", ".txt")
    things = _things(files, step_file)
    command = command_line("lowtide", "report", *map(str, files))
    made = make_report(*things, command=command)

    def content(ending: str) -> Content:
        if ending == ".json":
            return made.to_dict()
        return made.to_html() if ending == ".html" else f"{made}\n"

    frame.save(path, content)
    if plots is not None:
        frame.saved += made.save_plots(plots, form=form, force=frame.force)
    frame.result(made.to_dict())
    frame.report(*things)
    pairs = zip(files, things, strict=False)
    plan = next((file for file, thing in pairs if isinstance(thing, Plan)), None)
    if plan is None:
        frame.next("plan", str(files[0]), "--budget", "60%")
    else:
        frame.next("export", str(plan), "--to", "chrome")


def _things(files: list[Path], step_file: Path | None) -> list[StepGraph | Plan]:
    """What the files hold, and the step of the first plan if it can be found."""
    things = [_files.load(path) for path in files]
    if step_file is None and any(isinstance(thing, StepGraph) for thing in things):
        return things
    for path, thing in zip(files, things, strict=True):
        if isinstance(thing, Plan):
            step = step_if_known(thing, path, step_file)
            if step is not None:
                return [*things, step]
    return things

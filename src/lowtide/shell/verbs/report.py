"""`lowtide report`: one HTML file about a step, its plans and what was measured."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from lowtide.errors import InvalidArgumentError
from lowtide.shell import complete
from lowtide.shell import files as _files
from lowtide.shell.options import AsJson, Force, StepFile
from lowtide.shell.page import Page, command_line
from lowtide.shell.steps import beside, show_report
from lowtide.shell.target import step_for
from lowtide.step.graph import StepGraph
from lowtide.step.plan import Plan


def report(
    files: Annotated[
        list[Path],
        typer.Argument(
            metavar="FILE...",
            help="Saved plans and steps; the first plan is the one shown.",
            autocompletion=complete.targets,
            show_default=False,
        ),
    ],
    output: Annotated[
        Path | None,
        typer.Option(
            "--output",
            "-o",
            metavar="FILE",
            help="Where to write it: .html, .json or .txt.  [default: NAME.html]",
            show_default=False,
        ),
    ] = None,
    text: Annotated[
        bool, typer.Option("--text", help="Print it here, and write no file.")
    ] = False,
    plots: Annotated[
        Path | None,
        typer.Option(
            metavar="FOLDER",
            help="Write each chart into this folder.",
            show_default=False,
        ),
    ] = None,
    form: Annotated[
        str, typer.Option(help="Of the charts.", metavar="svg|png|pdf")
    ] = "svg",
    step_file: StepFile = None,
    force: Force = False,
    as_json: AsJson = False,
) -> None:
    """Write the report of a plan or a step, and print its short form."""
    from lowtide.reporting import report as make_report

    page = Page(as_json=as_json)
    target = None if text or (as_json and output is None) else output
    if target is None and not text and not as_json:
        target = beside(files[0], ".html")
    if target is not None and target.suffix not in (".html", ".json", ".txt"):
        raise InvalidArgumentError(
            f"-o {target}", "this is no form of the report", "Use .html, .json or .txt"
        )
    _files.refuse_early(target, force=force)
    things = _things(files, step_file)
    command = command_line("lowtide", "report", *map(str, files))
    made = make_report(*things, command=command)
    if target is not None:
        content = made.to_html() if target.suffix == ".html" else f"{made}\n"
        if target.suffix == ".json":
            _files.write(target, made.to_dict(), force=force)
        else:
            _files.write(target, content, force=force)
    pictures = [] if plots is None else made.save_plots(plots, form=form, force=force)
    page.result(made.to_dict())
    show_report(page, *things)
    page.line()
    for path in (target, *pictures):
        if path is not None:
            page.pairs([("saved", str(path))])
    plan = next((f for f, t in zip(files, things, strict=False) if _is_plan(t)), None)
    if plan is None:
        page.next("lowtide", "plan", str(files[0]), "--budget", "60%")
    else:
        page.next("lowtide", "export", str(plan), "--to", "chrome")


def _is_plan(thing: object) -> bool:
    return isinstance(thing, Plan)


def _things(files: list[Path], step_file: Path | None) -> list[StepGraph | Plan]:
    """What the files hold, and the step of the first plan if it can be found."""
    things = [_files.load(path) for path in files]
    if step_file is None and any(isinstance(t, StepGraph) for t in things):
        return things
    for path, thing in zip(files, things, strict=True):
        if not isinstance(thing, Plan):
            continue
        step = (
            step_for(thing, path, step_file)
            if step_file is not None
            else _files.step_beside(thing, path)
        )
        if step is not None:
            return [*things, step]
    return things

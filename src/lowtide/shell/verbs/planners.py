"""`lowtide planners`: the names of all planners, or the page of one."""

from __future__ import annotations

from typing import Annotated

import typer

from lowtide.shell import complete
from lowtide.shell.options import AsJson
from lowtide.shell.page import Page


def planners(
    name: Annotated[
        str | None,
        typer.Argument(
            help="Show the page of this planner.",
            autocompletion=complete.planners,
            show_default=False,
        ),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """List the planners, or show one planner's page."""
    from lowtide.planners import available, load

    page = Page(as_json=as_json)
    if name is not None:
        planner = load(name)
        page.result({"name": planner.name, "doc": planner.doc})
        page.line(planner.name, "bold")
        page.text(planner.doc)
        page.line()
        page.next(
            "lowtide", "plan", "tiny_gpt", "--budget", "60%", "--planner", planner.name
        )
        return
    found = [load(each) for each in available()]
    page.result([{"name": p.name, "summary": _summary(p.doc)} for p in found])
    page.table(("planner", "<what it does"), [(p.name, _summary(p.doc)) for p in found])
    page.line()
    page.next("lowtide", "planners", "auto")


def _summary(doc: str) -> str:
    """The first sentence of a page."""
    lines = doc.strip().splitlines()
    return lines[0].rstrip(".") if lines else ""

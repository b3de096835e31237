"""`lowtide planners`: the names of all planners, or the page of one."""

from __future__ import annotations

from typing import Annotated

from lowtide.shell import complete
from lowtide.shell.frame import Frame
from lowtide.shell.options import argument


def planners(
    frame: Frame,
    name: Annotated[
        str | None, argument("Show the page of this planner.", complete.planners)
    ] = None,
) -> None:
    """List the planners, or show one planner's page."""
    from lowtide.planners import available, load

    if name is not None:
        planner = load(name)
        frame.result({"name": planner.name, "doc": planner.doc})
        frame.line(planner.name, "bold")
        frame.text(planner.doc)
        frame.next("plan", "tiny_gpt", "--budget", "60%", "--planner", planner.name)
        return
    found = [(each, _summary(load(each).doc)) for each in available()]
    frame.result([{"name": name, "summary": summary} for name, summary in found])
    frame.table(("planner", "<what it does"), found)
    frame.next("planners", "auto")


def _summary(doc: str) -> str:
    """The first sentence of a page."""
    lines = doc.strip().splitlines()
    return lines[0].rstrip(".") if lines else ""

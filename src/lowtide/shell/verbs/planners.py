"""`lowtide planners`: the names of all planners, or the page of one."""

from __future__ import annotations

from typing import Annotated

from lowtide.shell import complete
from lowtide.shell.frame import Frame
from lowtide.shell.options import argument
from lowtide.shell.verbs.profile import ALWAYS_FEASIBLE


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
        frame.next("plan", "tiny_gpt", *ALWAYS_FEASIBLE, "--planner", planner.name)
        return
    # The first line of a planner's page is its summary.
    rows = [
        (n, load(n).doc.strip().partition("\n")[0].rstrip(".")) for n in available()
    ]
    frame.result([{"name": name, "summary": summary} for name, summary in rows])
    frame.table(("planner", "<what it does"), rows)
    frame.next("planners", "auto")

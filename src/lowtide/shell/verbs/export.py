"""`lowtide export`: a plan in the forms other tools read."""

from __future__ import annotations

from typing import Annotated

import typer

from lowtide.errors import InvalidArgumentError
from lowtide.shell import files
from lowtide.shell.options import AsJson, Force, Output, PlanFile, StepFile
from lowtide.shell.page import Page
from lowtide.shell.steps import beside
from lowtide.shell.target import step_for
from lowtide.step.graph import StepGraph

_ENDINGS = {
    "chrome": ".trace.json",
    "memory_viz": ".pickle",
    "csv": ".csv",
    "tags": ".tags.json",
    "policy": ".policy.py",
}
_READERS = {
    "chrome": "open it at https://ui.perfetto.dev or chrome://tracing",
    "memory_viz": "drop it on https://pytorch.org/memory_viz",
    "csv": "one row for each run of an op",
    "tags": "MUST_SAVE or MUST_RECOMPUTE for each op",
    "policy": "give its policy to torch.utils.checkpoint",
}


def export(
    plan: PlanFile,
    to: Annotated[
        str,
        typer.Option(
            help="The form.",
            metavar="|".join(_ENDINGS),
            autocompletion=lambda: list(_ENDINGS),
        ),
    ] = "chrome",
    output: Output = None,
    step_file: StepFile = None,
    force: Force = False,
    as_json: AsJson = False,
) -> None:
    """Write a plan for another tool: a trace, a memory snapshot, CSV or policies."""
    from lowtide.reporting.export import FORMS
    from lowtide.step.schedule import make_plan, with_frees

    page = Page(as_json=as_json)
    if to not in FORMS:
        raise InvalidArgumentError(
            f"--to {to}", "there is no such form", f"Use one of: {', '.join(FORMS)}"
        )
    target = output or beside(plan, _ENDINGS.get(to, f".{to}"))
    files.refuse_early(target, force=force)
    thing = files.load(plan)
    if isinstance(thing, StepGraph):
        step = thing
        chosen = make_plan(step, with_frees(step, step.baseline), planner="keep_all")
    else:
        step, chosen = step_for(thing, plan, step_file), thing
    content = FORMS[to](step, chosen)
    files.write(target, content, force=force)
    size = len(content)
    page.result({"path": str(target), "form": to, "num_bytes": size})
    page.pairs([("saved", str(target)), ("", _READERS.get(to, ""))])
    page.line()
    page.next("lowtide", "report", str(plan))

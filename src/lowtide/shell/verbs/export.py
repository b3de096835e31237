"""`lowtide export`: a plan in the forms other tools read."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from lowtide.errors import InvalidArgumentError
from lowtide.shell import complete, files
from lowtide.shell.frame import SavingFrame
from lowtide.shell.options import Output, StepFile, argument
from lowtide.shell.target import step_for
from lowtide.step.graph import StepGraph

# The ending of each form's file, and what to do with it.
_FORMS = {
    "chrome": (
        ".trace.json",
        "open it at https://ui.perfetto.dev or chrome://tracing",
    ),
    "memory_viz": (".pickle", "drop it on https://pytorch.org/memory_viz"),
    "csv": (".csv", "one row for each run of an op"),
    "tags": (".tags.json", "MUST_SAVE or MUST_RECOMPUTE for each op"),
    "policy": (".policy.py", "give its policy to torch.utils.checkpoint"),
}


def export(
    frame: SavingFrame,
    plan: Annotated[Path, argument("A saved .plan.json.", complete.plans, "PLAN")],
    to: Annotated[
        str,
        typer.Option(
            help="The form.",
            metavar="|".join(_FORMS),
            autocompletion=lambda: list(_FORMS),
        ),
    ] = "chrome",
    output: Output = None,
    step_file: StepFile = None,
) -> None:
    """Write a plan for another tool: a trace, a memory snapshot, CSV or policies."""
    from lowtide.reporting.export import FORMS
    from lowtide.step.schedule import make_plan, with_frees

    if to not in FORMS:
        raise InvalidArgumentError(
            f"--to {to}", "there is no such form", f"Use one of: {', '.join(FORMS)}"
        )
    ending, advice = _FORMS.get(to, (f".{to}", ""))
    path = output or files.beside(plan, ending)
    frame.will_save(path)
    thing = files.load(plan)
    if isinstance(thing, StepGraph):
        step = thing
        chosen = make_plan(step, with_frees(step, step.baseline), planner="keep_all")
    else:
        step, chosen = step_for(thing, plan, step_file), thing
    content = FORMS[to](step, chosen)
    frame.save(path, content)
    frame.result({"path": str(path), "form": to, "num_bytes": len(content)})
    if advice:
        frame.line(f"{to}: {advice}")
    frame.next("report", str(plan))

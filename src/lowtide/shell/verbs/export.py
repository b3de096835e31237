"""`lowtide export`: a plan in the forms other tools read."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from lowtide.errors import InvalidArgumentError
from lowtide.shell import complete, files
from lowtide.shell.frame import SavingFrame
from lowtide.shell.options import Output, StepFile, argument, option, step_words

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
_names = list(_FORMS)


def export(
    frame: SavingFrame,
    plan: Annotated[Path, argument("A saved .plan.json.", complete.plans, "PLAN")],
    to: Annotated[
        str, option("The form.", "|".join(_names), autocompletion=lambda: _names)
    ] = "chrome",
    output: Output = None,
    step_file: StepFile = None,
) -> None:
    """Write a plan for another tool: a trace, a memory snapshot, CSV or policies."""
    from lowtide.planners.keep_all import plan as keep_all
    from lowtide.reporting.export import FORMS

    if to not in FORMS:
        raise InvalidArgumentError(
            f"--to {to}", "there is no such form", f"Use one of: {', '.join(FORMS)}"
        )
    ending, advice = _FORMS[to]
    path = output or files.beside(plan, ending)
    frame.will_save(path)
    step, chosen = files.step_and_plan(plan, step_file)
    content = FORMS[to](step, chosen or keep_all(step))
    frame.save(path, content)
    frame.result({"path": str(path), "form": to, "num_bytes": len(content)})
    frame.line(f"{to}: {advice}")
    frame.next("report", str(plan), *step_words(step_file))

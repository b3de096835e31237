"""`lowtide run`: a training script as it is, under a budget."""

from __future__ import annotations

import logging
import os
from typing import Annotated

from lowtide.errors import InvalidArgumentError
from lowtide.shell.failures import say
from lowtide.shell.frame import Frame
from lowtide.shell.options import Budget, argument, flag, read_budget


def run(
    frame: Frame,
    script: Annotated[str, argument("A Python file.", None, "SCRIPT")],
    arguments: Annotated[
        list[str] | None, argument("The script's own arguments.", None, "[ARGS]...")
    ] = None,
    module: Annotated[
        bool, flag("-m", "SCRIPT is a module's name, as with python -m.")
    ] = False,
    budget: Budget = None,
) -> None:
    """Run a training script under a budget, without an edit.

    Whatever the script trains, in a plain loop or by a trainer, is planned at its
    first training step. Options of lowtide stand before the script, and the exit code
    is the script's. Under torchrun or accelerate: `torchrun -m lowtide run ...`.
    """
    if budget is None:
        raise InvalidArgumentError(
            "lowtide run without a budget",
            "--budget was not given and LOWTIDE_BUDGET is not set",
            "Write --budget 6GiB",
        )
    os.environ["LOWTIDE_BUDGET"] = str(read_budget(budget))
    _tell_of_plans()
    from lowtide.integrations.program import names_of_planned, run_under_budget

    failed = True
    try:
        run_under_budget([script, *(arguments or [])], is_module=module)
        failed = False
    except SystemExit as end:
        failed = bool(end.code)
        raise
    finally:
        names = names_of_planned()
        if not names and not failed:
            say(
                "warning",
                "the script ended, and nothing of it ran under the budget: no module "
                "with parameters in an optimizer was called in training mode",
            )
        frame.result({"planned": names})


def _tell_of_plans() -> None:
    """Show the plans, one line each; other loggers stay as the script sets them."""
    log = logging.getLogger("lowtide")
    log.addHandler(logging.StreamHandler())
    log.setLevel(logging.INFO)
    log.propagate = False

"""`lowtide bench`: lowtide beside other methods."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from lowtide.errors import InvalidArgumentError
from lowtide.shell import options
from lowtide.shell.against import run_against, show_against
from lowtide.shell.frame import PICTURES, SavingFrame, by_ending
from lowtide.shell.options import argument, flag, option, saved_as
from lowtide.shell.target import read_target

_TARGET = "A built-in model, file.py:function or package.module:function."
_AGAINST = "Compare with other methods on TARGET (the default)."
_BUDGETS = (
    "Budgets of lowtide's rows; also `floor`, `activations` (their lowest peak alone) "
    "and `theirs`, the peak of each other method."
)
_METHODS = "usual, all, or names of other methods, such as blocks,inductor_0.5."
_OUTPUT = "Data (.json) or a picture (.png, .svg, .pdf)."


def bench(
    frame: SavingFrame,
    target: Annotated[str | None, argument(_TARGET, metavar="[TARGET]")] = None,
    against: Annotated[bool, flag("--against", _AGAINST)] = False,
    budgets: Annotated[str, option(_BUDGETS, "LIST")] = "80%,65%,50%",
    methods: Annotated[str, option(_METHODS, "LIST")] = "usual",
    steps: Annotated[int, option("Timed steps of each method.", "N", min=1)] = 5,
    jobs: Annotated[int, option("Peaks to take at the same time.", "N", min=1)] = 1,
    output: Annotated[Path | None, saved_as(_OUTPUT)] = None,
    planner: options.Planner = "auto",
    time_limit: options.TimeLimit = 10.0,
    batch: options.Batch = None,
    model_options: options.ModelOptions = None,
) -> None:
    """Compare with other methods on a model."""
    from lowtide.reporting.pictures import against_picture

    del against
    frame.will_save(output, ".json", *PICTURES)
    if target is None:
        raise InvalidArgumentError(
            "lowtide bench", "no TARGET was given", "Write `lowtide bench tiny_gpt`"
        )
    asked = read_target(target, batch, model_options)
    data = run_against(asked, budgets, methods, planner, time_limit, steps, jobs)
    # Shown first: hours of work must not be lost to a full disk.
    frame.result(data)
    show_against(frame, asked.name, data)
    frame.save(output, by_ending(data, against_picture))
    frame.next("sweep", *asked.words)

"""`lowtide bench`: lowtide beside other methods."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from lowtide.errors import InvalidArgumentError
from lowtide.shell.against import run_against, show_against
from lowtide.shell.frame import PICTURES, Content, SavingFrame
from lowtide.shell.options import (
    Batch,
    ModelOptions,
    Planner,
    TimeLimit,
    argument,
    flag,
    option,
    saved_as,
)
from lowtide.shell.target import read_target


def bench(
    frame: SavingFrame,
    target: Annotated[
        str | None,
        argument(
            "A built-in model, file.py:function or package.module:function.",
            metavar="[TARGET]",
        ),
    ] = None,
    against: Annotated[
        bool, flag("--against", "Compare with other methods on TARGET (the default).")
    ] = False,
    table: Annotated[
        str | None, option("Where a published table is planned.", "feng", hidden=True)
    ] = None,
    budgets: Annotated[
        str,
        typer.Option(
            metavar="LIST",
            help="Budgets of lowtide's rows; also `floor`, `activations` (their lowest "
            "peak alone) and `theirs`, the peak of each other method.",
        ),
    ] = "80%,65%,50%",
    methods: Annotated[
        str,
        typer.Option(
            metavar="LIST",
            help="usual, all, or names of other methods, such as blocks,inductor_0.5.",
        ),
    ] = "usual",
    steps: Annotated[
        int, typer.Option(min=1, metavar="N", help="Timed steps of each method.")
    ] = 5,
    jobs: Annotated[
        int, typer.Option(min=1, metavar="N", help="Peaks to take at the same time.")
    ] = 1,
    output: Annotated[
        Path | None, saved_as("Data (.json) or a picture (.png, .svg, .pdf).")
    ] = None,
    planner: Planner = "auto",
    time_limit: TimeLimit = 10.0,
    batch: Batch = None,
    model_options: ModelOptions = None,
) -> None:
    """Compare with other methods on a model."""
    del against
    frame.will_save(output, ".json", *PICTURES)
    if table is not None:
        raise InvalidArgumentError(
            f"lowtide bench --table {table}",
            "published tables are planned by the benchmarks of lowtide's repository",
            "There, run `python benchmarks/feng.py`, or `python benchmarks/feng.py "
            "--measure` to run the models as well",
        )
    if target is None:
        raise InvalidArgumentError(
            "lowtide bench", "no TARGET was given", "Write `lowtide bench tiny_gpt`"
        )
    asked = read_target(target, batch, model_options)
    data = run_against(asked, budgets, methods, planner, time_limit, steps, jobs)
    # Shown first: hours of work are not to be lost to a disk that is full.
    frame.result(data)
    show_against(frame, asked.name, data)
    frame.save(output, lambda ending: _content(ending, data))
    frame.next("sweep", target)


def _content(ending: str, data: dict[str, Any]) -> Content:
    if ending == ".json":
        return data
    from lowtide.reporting.pictures import against_picture

    return against_picture(data, ending[1:])

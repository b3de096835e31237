"""`lowtide bench`: lowtide beside other methods, and beside published tables."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from lowtide.errors import InvalidArgumentError
from lowtide.shell import files
from lowtide.shell.against import run_against, show_against
from lowtide.shell.options import (
    AsJson,
    Batch,
    Force,
    ModelOptions,
    Planner,
    TimeLimit,
)
from lowtide.shell.page import Page
from lowtide.shell.table import run_table, show_table
from lowtide.shell.target import read_target

_ENDINGS = (".json", ".png", ".svg", ".pdf")


def bench(
    target: Annotated[
        str | None,
        typer.Argument(
            metavar="[TARGET]",
            help="A built-in model, file.py:function or package.module:function.",
            show_default=False,
        ),
    ] = None,
    against: Annotated[
        bool,
        typer.Option(
            "--against", help="Compare with other methods on TARGET (the default)."
        ),
    ] = False,
    table: Annotated[
        str | None,
        typer.Option(
            metavar="feng",
            help="Plan the published models of this table instead.",
            show_default=False,
        ),
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
    models: Annotated[
        str | None,
        typer.Option(
            metavar="LIST",
            help="Of the table, only these models.",
            show_default=False,
        ),
    ] = None,
    measure: Annotated[
        bool,
        typer.Option(
            "--measure", help="Also run the table's models here, at a smaller batch."
        ),
    ] = False,
    steps: Annotated[
        int, typer.Option(min=1, metavar="N", help="Timed steps of each method.")
    ] = 5,
    jobs: Annotated[
        int,
        typer.Option(min=1, metavar="N", help="Peaks to take at the same time."),
    ] = 1,
    output: Annotated[
        Path | None,
        typer.Option(
            "--output",
            "-o",
            metavar="FILE",
            help="Data (.json) or a picture (.png, .svg, .pdf).",
            show_default=False,
        ),
    ] = None,
    planner: Planner = "auto",
    time_limit: TimeLimit = 10.0,
    batch: Batch = None,
    option: ModelOptions = None,
    force: Force = False,
    as_json: AsJson = False,
) -> None:
    """Compare with other methods on a model, or with a published table."""
    del against
    page = Page(as_json=as_json)
    if output is not None and output.suffix not in _ENDINGS:
        raise InvalidArgumentError(
            f"-o {output}", "this ending names no form", f"Use {', '.join(_ENDINGS)}"
        )
    files.refuse_early(output, force=force)
    if table is not None:
        data = run_table(table, models, planner, time_limit, batch, steps, measure)
        page.result(data)
        show_table(page, data)
    elif target is None:
        raise InvalidArgumentError(
            "lowtide bench",
            "neither a TARGET nor --table was given",
            "Write `lowtide bench tiny_gpt --against` or `lowtide bench --table feng`",
        )
    else:
        asked = read_target(target, batch, option)
        data = run_against(asked, budgets, methods, planner, time_limit, steps, jobs)
        page.result(data)
        show_against(page, asked.name, data)
    page.line()
    if output is not None:
        _save(output, data, force=force)
        page.pairs([("saved", str(output))])
    if table is not None:
        page.next("lowtide", "bench", "resnet50", "--batch", "4", "--against")
    else:
        page.next("lowtide", "sweep", target or "tiny_gpt")


def _save(output: Path, data: dict[str, Any], *, force: bool) -> None:
    if output.suffix == ".json":
        files.write(output, data, force=force)
        return
    from lowtide.reporting.pictures import against_picture, table_picture

    draw = table_picture if data["lowtide"] == "feng" else against_picture
    files.write(output, draw(data, output.suffix[1:]), force=force)

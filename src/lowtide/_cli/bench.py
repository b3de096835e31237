"""`lowtide bench`: lowtide beside other methods, and beside published tables."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

import typer

from lowtide._cli import _files
from lowtide._cli._failures import say
from lowtide._cli._options import (
    AsJson,
    Batch,
    Force,
    ModelOptions,
    Planner,
    TimeLimit,
)
from lowtide._cli._page import Page, user_prints_elsewhere
from lowtide._cli._progress import note, stage
from lowtide._cli._target import Target, build, load_api, profile, read_target
from lowtide._cli.plan import checked_budget
from lowtide._format import format_bytes, format_percent, format_seconds
from lowtide.errors import BudgetTooSmallError, InvalidArgumentError

_ENDINGS = (".json", ".png", ".svg", ".pdf")
_CHILD = "lowtide._cli._bench_child"
_MOST_SECONDS_OF_A_CHILD = 1800


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
        str, typer.Option(metavar="LIST", help="Budgets of lowtide's rows.")
    ] = "80%,65%,50%",
    models: Annotated[
        str | None,
        typer.Option(
            metavar="LIST",
            help="Of the table, only these models.",
            show_default=False,
        ),
    ] = None,
    steps: Annotated[
        int, typer.Option(min=1, metavar="N", help="Timed steps of each method.")
    ] = 5,
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
    _files.refuse_early(output, force=force)
    if table is not None:
        data = _table(table, models, planner, time_limit, batch)
        page.result(data)
        _show_table(page, data)
    elif target is None:
        raise InvalidArgumentError(
            "lowtide bench",
            "neither a TARGET nor --table was given",
            "Write `lowtide bench tiny_gpt --against` or `lowtide bench --table feng`",
        )
    else:
        asked = read_target(target, batch, option)
        data = run_against(asked, budgets, planner, time_limit, steps)
        page.result(data)
        _show_against(page, asked.name, data)
    page.line()
    if output is not None:
        _save(output, data, force=force)
        page.pairs([("saved", str(output))])
    if table is not None:
        page.next("lowtide", "bench", "resnet50", "--batch", "4", "--against")
    else:
        page.next("lowtide", "sweep", target or "tiny_gpt")


# Against other methods.


def run_against(
    asked: Target, budgets: str, planner: str, time_limit: float, steps: int
) -> dict[str, Any]:
    """Every method on one model, as plain data."""
    if asked.kind == "file":
        raise InvalidArgumentError(
            f"lowtide bench {asked.text}",
            "a saved file holds no model, and every method runs one",
            "Give the model or function that it was profiled from",
        )
    wanted = [checked_budget(part) for part in budgets.split(",") if part.strip()]
    load_api()
    from lowtide._bench._against import Row, compare_methods
    from lowtide._bench._methods import other_methods, planned_method
    from lowtide._planning import plan as make_plan

    example = build(asked)
    step = profile(asked, example, "measure", None)
    methods, plans, missing = list(other_methods()), {}, []
    for budget in wanted:
        label = f"lowtide {budget}"
        name = "lowtide_" + "".join(c for c in str(budget) if c.isalnum())
        with stage(f"planning for {budget}", limit_seconds=time_limit):
            try:
                plans[name] = make_plan(
                    step, budget=budget, planner=planner, time_limit=time_limit
                )
            except BudgetTooSmallError as error:
                floor = format_bytes(error.floor_bytes)
                missing.append(Row(name, label, problem=f"below the floor of {floor}"))
                continue
        methods.append(planned_method(name, label, plans[name]))
    with stage("running every method in turns") as advance, user_prints_elsewhere():
        done = iter(range(len(methods)))
        rows = compare_methods(
            methods,
            example.model,
            example.batch,
            example.loss,
            steps=steps,
            progress=lambda label: advance(next(done), len(methods)),
        )
    del example
    with stage("taking peaks in fresh processes") as advance:
        for place, row in enumerate(rows):
            advance(place, len(rows))
            if not row.problem:
                rows[place] = _with_peak(row, asked, plans.get(row.name))
    return {
        "lowtide": "bench",
        "target": list(asked.words),
        "device": step.device,
        "predicted_baseline_peak_bytes": step.baseline_peak_bytes,
        "resident_bytes": step.resident_bytes,
        "rows": [row.to_dict() for row in (*rows, *missing)],
    }


def _with_peak(row: Any, asked: Target, plan: Any) -> Any:
    from lowtide._meter import MALLOC_ENVIRONMENT

    with tempfile.TemporaryDirectory() as folder:
        words = [row.name]
        if plan is not None:
            path = Path(folder) / "bench.plan.json"
            plan.save(path)
            words.append(str(path))
            row = replace(
                row,
                predicted_peak_bytes=plan.peak_bytes,
                predicted_time_ratio=1 + plan.overhead,
            )
        try:
            done = subprocess.run(
                [sys.executable, "-m", _CHILD, *words, "--", *asked.words],
                env={**os.environ, **MALLOC_ENVIRONMENT},
                capture_output=True,
                text=True,
                check=False,
                timeout=_MOST_SECONDS_OF_A_CHILD,
            )
            found = json.loads(done.stdout.splitlines()[-1])
        except (subprocess.TimeoutExpired, IndexError, ValueError):
            say("warning", f"the peak of {row.label} could not be taken")
            return row
    return replace(row, **found)


def _show_against(page: Page, name: str, data: dict[str, Any]) -> None:
    page.line(f"{name} on {data['device'] or 'this machine'}", "bold")
    base = data["rows"][0]
    page.table(
        ("method", "peak", "of eager", "allocated", "time", "<numbers"),
        [_against_row(row, base) for row in data["rows"]],
    )
    page.line()
    page.line(
        "Each peak is from a fresh process: what the operating system saw above the "
        "state before the step; allocated are all bytes, parameters included. Times "
        "are medians, the methods taking turns. Numbers are compared with eager's, bit "
        "by bit; a difference is given as a share of the largest value."
    )


def _against_row(row: dict[str, Any], base: dict[str, Any]) -> tuple[str, ...]:
    if row["problem"]:
        return (row["label"], "-", "-", "-", "-", row["problem"])
    system, first = row["rss_peak_bytes"], base["rss_peak_bytes"]
    extra = row["time_ratio"] - 1
    is_first = row["name"] == base["name"]
    return (
        row["label"],
        format_bytes(system) if system else "-",
        format_percent(system / first) if first and system else "-",
        format_bytes(row["peak_bytes"]) if row["peak_bytes"] else "-",
        format_seconds(row["seconds"])
        if is_first
        else format_percent(extra, signed=True),
        _numbers(row),
    )


def _numbers(row: dict[str, Any]) -> str:
    wrong = []
    if row["num_wrong_gradients"]:
        wrong.append(
            f"{row['num_wrong_gradients']} of {row['num_gradients']} gradients (by "
            f"{row['largest_difference']:.1g})"
        )
    if row["num_wrong_buffers"]:
        wrong.append(f"{row['num_wrong_buffers']} buffers")
    if not row["is_random_state_equal"]:
        wrong.append("random state")
    return "DIFFERENT: " + ", ".join(wrong) if wrong else "equal"


# Against a published table.


def _table(
    name: str,
    only: str | None,
    planner: str,
    time_limit: float,
    batch: int | None,
) -> dict[str, Any]:
    from lowtide.models import PUBLISHED

    if name != "feng":
        raise InvalidArgumentError(
            f"--table {name}", "there is no such table", "Write --table feng"
        )
    chosen = list(PUBLISHED) if only is None else [m.strip() for m in only.split(",")]
    for model in chosen:
        if model not in PUBLISHED:
            raise InvalidArgumentError(
                f"--models {model}",
                "the table has no such model",
                f"Use some of: {', '.join(PUBLISHED)}",
            )
    load_api()
    from lowtide._bench._feng import DEVICE, feng_row

    rows: list[dict[str, Any]] = []
    for place, model in enumerate(chosen, 1):
        note(f"{model} ({place} of {len(chosen)})")
        with stage(f"capturing and planning {model}"):
            row = feng_row(
                PUBLISHED[model], planner=planner, time_limit=time_limit, batch=batch
            )
        rows.append(row.to_dict())
    return {
        "lowtide": "feng",
        "device": DEVICE.rpartition(":")[2],
        "planner": planner,
        "rows": rows,
    }


def _show_table(page: Page, data: dict[str, Any]) -> None:
    page.line(f"Published cuts, predicted on {data['device']}", "bold")
    page.table(
        ("model", "batch", "published", "time", "lowtide", "time", "share"),
        [
            (
                r["name"],
                str(r["batch"]),
                format_percent(-r["published_cut"]),
                format_percent(r["published_overhead"], signed=True),
                format_percent(-r["cut"]),
                format_percent(r["overhead"], signed=True),
                f"{r['ratio']:.2f}" if r["is_reached"] else "least",
            )
            for r in data["rows"]
        ],
    )
    ratios = [r["ratio"] for r in data["rows"] if r["ratio"] is not None]
    page.line()
    page.line(
        f"At the published cut: at most the published extra time on "
        f"{sum(r <= 1 for r in ratios)} of {len(data['rows'])}, at most half of it on "
        f"{sum(r <= 0.5 for r in ratios)}."
    )
    page.line("Source: Feng and Huang, CVPR 2021, table of the authors' repository.")


def _save(output: Path, data: dict[str, Any], *, force: bool) -> None:
    if output.suffix == ".json":
        _files.write(output, data, force=force)
        return
    from lowtide._cli._pictures import against_picture, table_picture

    draw = table_picture if data["lowtide"] == "feng" else against_picture
    _files.write(output, draw(data, output.suffix[1:]), force=force)

"""`lowtide explain`: why a storage is kept or recomputed, and what holds the floor."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from lowtide.errors import InvalidArgumentError
from lowtide.shell import complete, files
from lowtide.shell.options import AsJson, StepFile
from lowtide.shell.page import Page
from lowtide.shell.progress import stage
from lowtide.shell.target import read_target, step_for, step_of
from lowtide.step.graph import StepGraph
from lowtide.step.names import collapse
from lowtide.step.plan import Plan


def explain(
    target: Annotated[
        str,
        typer.Argument(
            metavar="TARGET",
            help="A saved plan; with --floor also a step, a model or a function.",
            autocompletion=complete.targets,
            show_default=False,
        ),
    ],
    what: Annotated[
        str | None,
        typer.Argument(
            help="A module, an op or a storage, such as layers.3.", show_default=False
        ),
    ] = None,
    floor: Annotated[
        bool, typer.Option("--floor", help="Say what holds the lowest peak there is.")
    ] = False,
    step_file: StepFile = None,
    as_json: AsJson = False,
) -> None:
    """Say why a plan keeps or recomputes something, or what holds the floor."""
    page = Page(as_json=as_json)
    asked = read_target(target)
    if floor:
        _floor(page, step_of(asked, step_file=step_file), asked.words)
        return
    plan = files.load(Path(target)) if asked.kind == "file" else None
    if not isinstance(plan, Plan):
        raise InvalidArgumentError(
            f"lowtide explain {target}",
            "only a plan keeps and recomputes",
            f"Plan first: `lowtide plan {target} --budget 60% -o NAME.plan.json`; or "
            "ask for the floor with --floor",
        )
    step = step_for(plan, Path(target), step_file)
    if what is None:
        raise InvalidArgumentError(
            f"lowtide explain {target}",
            "nothing in it was named",
            f"Name a module, e.g. {_modules(step)}; or pass --floor",
        )
    from lowtide.reporting.explain import explain as explain_plan

    with stage("planning with 5 % more budget", limit_seconds=5.0):
        found = explain_plan(step, plan, what)
    page.result(asdict(found))
    page.text(str(found))
    page.line()
    page.next("lowtide", "report", target)


def _floor(page: Page, step: StepGraph, words: tuple[str, ...]) -> None:
    from lowtide.reporting.explain import explain_floor

    with stage("looking for the lowest peak"):
        found = explain_floor(step)
    page.result(asdict(found))
    page.text(str(found))
    page.line()
    page.next("lowtide", "plan", *words, "--budget", str(found.floor_bytes))


def _modules(step: StepGraph) -> str:
    names = list(dict.fromkeys(op.module for op in step.ops if op.module))
    return ", ".join(collapse(names)[:4]) if names else step.storages[-1].name

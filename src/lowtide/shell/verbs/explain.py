"""`lowtide explain`: why a storage is kept or recomputed, and what holds the floor."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

from lowtide.errors import InvalidArgumentError
from lowtide.shell import complete, files
from lowtide.shell.frame import Frame
from lowtide.shell.options import StepFile, argument, flag
from lowtide.shell.progress import stage
from lowtide.shell.target import read_target, step_for, step_of
from lowtide.step.graph import StepGraph
from lowtide.step.names import pattern_of
from lowtide.step.plan import Plan


def explain(
    frame: Frame,
    target: Annotated[
        str,
        argument(
            "A saved plan; with --floor also a step, a model or a function.",
            complete.targets,
            "TARGET",
        ),
    ],
    what: Annotated[
        str | None, argument("A module, an op or a storage, such as layers.3.")
    ] = None,
    floor: Annotated[
        bool, flag("--floor", "Say what holds the lowest peak there is.")
    ] = False,
    step_file: StepFile = None,
) -> None:
    """Say why a plan keeps or recomputes something, or what holds the floor."""
    from lowtide.reporting.explain import explain as explain_plan
    from lowtide.reporting.explain import explain_floor

    asked = read_target(target)
    if floor:
        step = step_of(asked, step_file=step_file)
        with stage("looking for the lowest peak"):
            found: Any = explain_floor(step)
        following = ("plan", *asked.words, "--budget", str(found.floor_bytes))
    else:
        plan, step = _plan_and_step(target, step_file)
        if what is None:
            raise InvalidArgumentError(
                f"lowtide explain {target}",
                "nothing in it was named",
                f"Name a module, e.g. {_examples(step)}; or pass --floor",
            )
        with stage("planning with 5 % more budget", limit_seconds=5.0):
            found = explain_plan(step, plan, what)
        following = ("report", target)
    frame.result(asdict(found))
    frame.text(str(found))
    frame.next(*following)


def _plan_and_step(target: str, step_file: Path | None) -> tuple[Plan, StepGraph]:
    path = Path(target)
    plan = files.load(path) if path.suffix == ".json" else None
    if not isinstance(plan, Plan):
        raise InvalidArgumentError(
            f"lowtide explain {target}",
            "only a plan keeps and recomputes",
            f"Plan first: `lowtide plan {target} --budget 60% -o NAME.plan.json`; or "
            "ask for the floor with --floor",
        )
    return plan, step_for(plan, path, step_file)


def _examples(step: StepGraph) -> str:
    """A few modules of the step, one of each kind; without modules, a storage."""
    by_kind: dict[str, str] = {}
    for op in step.ops:
        if op.module:
            by_kind.setdefault(pattern_of(op.module), op.module)
    return ", ".join(list(by_kind.values())[:4]) or step.storages[-1].name

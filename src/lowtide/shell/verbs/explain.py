"""`lowtide explain`: why a storage is kept or recomputed, and what holds the floor."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

from lowtide.errors import InvalidArgumentError, fitting
from lowtide.shell import complete, files
from lowtide.shell.frame import Frame
from lowtide.shell.options import StepFile, argument, flag, step_words
from lowtide.shell.progress import stage
from lowtide.shell.target import StepSource
from lowtide.step.graph import StepGraph
from lowtide.step.names import pattern_of

_TARGET = "A saved plan; with --floor also a step, a model or a function."
_WHAT = "A module, an op or a storage, such as layers.3."


def explain(
    frame: Frame,
    target: Annotated[str, argument(_TARGET, complete.targets, "TARGET")],
    what: Annotated[str | None, argument(_WHAT)] = None,
    floor: Annotated[bool, flag("--floor", "Say what holds the lowest peak.")] = False,
    step_file: StepFile = None,
) -> None:
    """Say why a plan keeps or recomputes something, or what holds the floor."""
    from lowtide.reporting.explain import explain as explain_plan
    from lowtide.reporting.explain import explain_floor

    if floor:
        source = StepSource(target, step_file=step_file)
        step = source.step()
        with stage("looking for the lowest peak"):
            answer: Any = explain_floor(step)
        following = ("plan", *source.words, "--budget", fitting(answer.floor_bytes))
    else:
        plan = files.load_plan(Path(target))
        step = files.step_for(plan, Path(target), step_file)
        if what is None:
            raise InvalidArgumentError(
                f"lowtide explain {target}",
                "it does not say what to explain",
                f"Name a module, such as {_examples(step)}; or pass --floor",
            )
        with stage("planning with 5 % more budget", limit_seconds=5.0):
            answer = explain_plan(step, plan, what)
        following = ("report", target, *step_words(step_file))
    frame.result(asdict(answer))
    frame.text(str(answer))
    frame.next(*following)


def _examples(step: StepGraph) -> str:
    """A few modules of the step, one of each kind; without modules, a storage."""
    by_kind: dict[str, str] = {}
    for op in step.ops:
        by_kind.setdefault(pattern_of(op.module), op.module)
    modules = filter(None, by_kind.values())
    return ", ".join(list(modules)[:4]) or step.storages[-1].name

"""Files that commands read and write: steps, plans, and what is made of them."""

from __future__ import annotations

import re
from pathlib import Path

from lowtide.errors import InvalidArgumentError
from lowtide.step.files import head_of
from lowtide.step.graph import StepGraph
from lowtide.step.plan import Plan
from lowtide.step.records import load as load
from lowtide.step.schedule import check_match

STEP_ENDING = ".step.json"
PLAN_ENDING = ".plan.json"


def load_plan(path: Path) -> Plan:
    thing = load(path)
    if not isinstance(thing, Plan):
        raise InvalidArgumentError(
            str(path),
            "this is a step, and a plan is needed",
            f"Make one: `lowtide plan {path} --max-overhead 10% -o NAME.plan.json`",
        )
    return thing


_FINGERPRINT = re.compile(rb'"fingerprint":\s*"([0-9a-f]+)"')


def step_if_known(
    plan: Plan, path: Path, step_file: Path | None = None
) -> StepGraph | None:
    """The step that a plan file was made for, if it is named or lies beside it.

    Raises:
        PlanMismatchError: The step named is another.
    """
    if step_file is not None:
        step = load(step_file)
        if not isinstance(step, StepGraph):
            raise InvalidArgumentError(
                f"--step {step_file}", "this is a plan", "Give the .step.json"
            )
        check_match(step, plan)
        return step
    others = sorted(path.parent.glob("*" + STEP_ENDING))
    for candidate in (beside(path, STEP_ENDING), *others):
        # The fingerprint stands near the beginning: not all of each file is read.
        named = _FINGERPRINT.search(head_of(candidate))
        if named and named[1].decode() == plan.fingerprint:
            thing = load(candidate)
            if isinstance(thing, StepGraph):
                return thing
    return None


def step_for(plan: Plan, path: Path, step_file: Path | None = None) -> StepGraph:
    """The same, raising `InvalidArgumentError` if there is no such step."""
    step = step_if_known(plan, path, step_file)
    if step is None:
        raise InvalidArgumentError(
            str(path),
            f"no .step.json beside it is the step {plan.fingerprint} of this plan",
            "Pass --step FILE, or profile the step again with `lowtide profile TARGET "
            f"-o {beside(path, STEP_ENDING)}`",
        )
    return step


def step_and_plan(
    path: Path, step_file: Path | None = None
) -> tuple[StepGraph, Plan | None]:
    """The step that a file holds, or the plan that it holds with its step."""
    thing = load(path)
    if isinstance(thing, StepGraph):
        return thing, None
    return step_for(thing, path, step_file), thing


def stem_of(path: Path) -> str:
    """The name without the endings lowtide gives: `gpt` of `gpt.plan.json`."""
    for ending in (STEP_ENDING, PLAN_ENDING):
        if path.name.endswith(ending):
            return path.name.removesuffix(ending)
    return path.stem


def beside(path: Path, ending: str) -> Path:
    """A file of the same name with another ending."""
    return path.with_name(stem_of(path) + ending)

"""Files that commands read and write: steps, plans, and what is made of them."""

from __future__ import annotations

import json
import os
import re
from pathlib import Path
from typing import Any

from lowtide.errors import InvalidArgumentError, OutputError
from lowtide.step.files import head_of, refuse_foreign, write_whole
from lowtide.step.graph import StepGraph
from lowtide.step.plan import Plan
from lowtide.step.records import load as load

STEP_ENDING = ".step.json"
PLAN_ENDING = ".plan.json"


def refuse_early(path: Path | None, *, force: bool) -> None:
    """Raise before the work starts if its result could not be written.

    What only shows while writing (a disk that fills up) is found there.
    """
    if path is None:
        return
    refuse_foreign(path, force=force)
    folder = path.parent
    if not folder.is_dir():
        raise OutputError(
            str(path), f"there is no folder {folder}", "Make it, or choose another"
        )
    if not path.exists() and not os.access(folder, os.W_OK | os.X_OK):
        raise OutputError(
            str(path),
            f"the folder {folder} may not be written to",
            "Choose another folder, or change its permissions",
        )


def write(path: Path, content: str | bytes | dict[str, Any], *, force: bool) -> Path:
    """Write a file completely or not at all; data becomes JSON."""
    if isinstance(content, dict):
        content = json.dumps(content, indent=1) + "\n"
    return write_whole(path, content, force=force)


def load_plan(path: Path) -> Plan:
    """The plan in a file."""
    thing = load(path)
    if not isinstance(thing, Plan):
        raise InvalidArgumentError(
            str(path),
            "this is a step, and a plan is needed",
            f"Make one: `lowtide plan {path} --budget 60% -o NAME.plan.json`",
        )
    return thing


_FINGERPRINT = re.compile(rb'"fingerprint":\s*"([0-9a-f]+)"')


def step_beside(plan: Plan, path: Path) -> StepGraph | None:
    """The step of a plan, if it lies in the same folder."""
    own = beside(path, STEP_ENDING)
    others = sorted(path.parent.glob("*" + STEP_ENDING))
    for candidate in (own, *others):
        if _fingerprint_in(candidate) == plan.fingerprint:
            thing = load(candidate)
            if isinstance(thing, StepGraph):
                return thing
    return None


def _fingerprint_in(path: Path) -> str:
    """The fingerprint near the beginning of a step file, without reading all of it."""
    found = _FINGERPRINT.search(head_of(path))
    return found[1].decode() if found else ""


def stem_of(path: Path) -> str:
    """The name without the endings lowtide gives: `gpt` of `gpt.plan.json`."""
    for ending in (STEP_ENDING, PLAN_ENDING):
        if path.name.endswith(ending):
            return path.name.removesuffix(ending)
    return path.stem


def beside(path: Path, ending: str) -> Path:
    """A file of the same name with another ending."""
    return path.with_name(stem_of(path) + ending)


def compact(data: dict[str, Any]) -> str:
    """Data that nobody reads line by line."""
    return json.dumps(data, separators=(",", ":")) + "\n"

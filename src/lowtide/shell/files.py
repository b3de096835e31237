"""Files that commands read and write: steps, plans, and what is made of them."""

from __future__ import annotations

import json
import os
import re
from pathlib import Path
from typing import Any

from lowtide.errors import InvalidArgumentError, OutputError, StepFormatError
from lowtide.step.graph import StepGraph
from lowtide.step.plan import Plan

STEP_ENDING = ".step.json"
PLAN_ENDING = ".plan.json"


def refuse_early(path: Path | None, *, force: bool) -> None:
    """Raise before the work starts if its result could not be written.

    What only shows while writing (a disk that fills up) is found there.
    """
    if path is None or _is_device(path):
        return
    if path.is_dir():
        raise OutputError(str(path), "it is a folder", "Give the name of a file")
    if path.exists() and not force:
        raise OutputError(
            str(path),
            "the file exists",
            "Choose another name, or pass --force to replace it",
        )
    folder = path.parent
    if not folder.is_dir():
        raise OutputError(
            str(path), f"there is no folder {folder}", "Make it, or choose another"
        )
    if not os.access(folder, os.W_OK | os.X_OK):
        raise OutputError(
            str(path),
            f"the folder {folder} may not be written to",
            "Choose another folder, or change its permissions",
        )


def write(path: Path, content: str | bytes | dict[str, Any], *, force: bool) -> Path:
    """Write a file completely or not at all; to a device or pipe, write through."""
    if isinstance(content, dict):
        content = json.dumps(content, indent=1) + "\n"
    data = content.encode() if isinstance(content, str) else content
    if not _is_device(path):
        from lowtide.reporting.files import write_whole

        return write_whole(path, data, force=force)
    try:
        with open(path, "wb") as file:
            file.write(data)
    except OSError as error:
        raise OutputError(
            str(path),
            f"writing {len(data)} bytes failed: {error.strerror or error}",
            "Choose a file on a disk with room",
        ) from error
    return path


def _is_device(path: Path) -> bool:
    return path.exists() and not path.is_file() and not path.is_dir()


def load(path: Path) -> StepGraph | Plan:
    """The step or the plan in a file.

    Raises:
        InvalidArgumentError: There is no such file, or it cannot be opened.
        StepFormatError: It holds neither.
    """
    try:
        data = json.loads(path.read_text())
    except FileNotFoundError as error:
        raise InvalidArgumentError(
            str(path),
            "there is no such file",
            "Write one with `lowtide profile ... -o NAME.step.json` or "
            "`lowtide plan ... -o NAME.plan.json`",
        ) from error
    except OSError as error:
        raise InvalidArgumentError(
            str(path),
            f"it cannot be read: {error.strerror or error}",
            "Give a file written by `lowtide profile -o` or `lowtide plan -o`",
        ) from error
    except ValueError as error:
        raise StepFormatError(f"{path} is not JSON ({error})") from error
    kind = data.get("lowtide") if isinstance(data, dict) else None
    if kind == "plan":
        return Plan.from_dict(data)
    if kind == "step":
        return StepGraph.from_dict(data)
    raise StepFormatError(f"{path} holds neither a step nor a plan")


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


_FINGERPRINT = re.compile(r'"fingerprint":\s*"([0-9a-f]+)"')


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
    try:
        with path.open(encoding="utf-8") as file:
            found = _FINGERPRINT.search(file.read(4096))
    except (OSError, UnicodeDecodeError):
        return ""
    return found[1] if found else ""


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

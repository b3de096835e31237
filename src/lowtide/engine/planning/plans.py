"""Plans on disk, next to the op times: what was searched for once is not again.

A plan is found by the step it is for, the limit, and everything else that the search
depends on. Nothing that is read is believed: the schedule is simulated on the step at
hand, and one that does not fit is searched for anew. What goes wrong with the files (a
read-only or full disk, a damaged one) is logged, and the search goes on without them.
"""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Callable
from contextlib import suppress
from functools import cache
from pathlib import Path

import torch

from lowtide import __version__, planners
from lowtide.engine.costs.cache import cache_directory
from lowtide.errors import LowtideError
from lowtide.step.graph import StepGraph
from lowtide.step.plan import Plan
from lowtide.step.schedule import fitted

log = logging.getLogger("lowtide.run")

# The oldest are removed beyond this.
_MOST_FILES = 256


def kept_on_disk(
    step: StepGraph,
    limit_bytes: int | None,
    asked: tuple[object, ...],
    search: Callable[[], Plan],
) -> Plan:
    """The plan that an earlier process found, or else the one that the search finds.

    Without a limit it is the lowest. `asked` is what else the search depends on.
    """
    directory = cache_directory()
    if directory is None:
        return search()
    path = directory / "plans" / f"{_key(step, limit_bytes, asked)}.plan.json"
    known = _load(path, step, limit_bytes)
    if known is not None:
        return known
    log.info("looking for a plan of %d ops", len(step.ops))
    plan = search()
    _store(path, plan)
    return plan


def _key(step: StepGraph, limit_bytes: int | None, asked: tuple[object, ...]) -> str:
    # A search depends on the times too, but two measurements of them never agree, and
    # a schedule that was good for one is good for the other.
    versions = (torch.__version__, __version__, _planners_as_they_are())
    scratch = tuple(op.scratch_bytes for op in step.ops)
    parts = (step.fingerprint, scratch, limit_bytes, *versions, *asked)
    return hashlib.sha256(repr(parts).encode()).hexdigest()[:32]


@cache
def _planners_as_they_are() -> str:
    """What tells the planners' code from that before a change of it."""
    folder = Path(planners.__file__).parent
    files = [
        (p.name, p.stat().st_size, p.stat().st_mtime_ns) for p in folder.rglob("*.py")
    ]
    return repr(sorted(files))


def _load(path: Path, step: StepGraph, limit_bytes: int | None) -> Plan | None:
    """The plan in this file, if it is one for this step that keeps the limit."""
    if not path.is_file():
        return None
    try:
        plan = fitted(step, Plan.load(path), limit_bytes)
    except LowtideError as error:
        log.info("a plan on disk is not used: %s: %s", path, error)
        return None
    if plan is not None:
        log.info("the plan is one from disk: %s", path)
    return plan


def _store(path: Path, plan: Plan) -> None:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        plan.save(path, force=True)
        files = sorted(path.parent.glob("*.plan.json"), key=_age)
        for old in files[_MOST_FILES:]:
            old.unlink(missing_ok=True)
    except (OSError, LowtideError) as error:
        log.info("the plan is not kept: %s: %s", path, error)


def _age(path: Path) -> float:
    with suppress(OSError):
        return -path.stat().st_mtime
    return 0.0

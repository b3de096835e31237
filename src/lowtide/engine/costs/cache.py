"""Costs of ops on disk, shared by processes and by profiles.

One line of JSON per op, each with a checksum, appended under a lock. A line that is cut
short, edited or not ours is left out with a warning; the rest of the file still counts.
"""

from __future__ import annotations

import json
import logging
import math
import os
import zlib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

from lowtide.engine.costs.cost import Cost

try:
    import fcntl
except ImportError:  # Windows: appends of whole lines are all the safety there is
    fcntl = None

log = logging.getLogger("lowtide.profile")

_FILE = "op-costs.jsonl"


def cache_directory() -> Path:
    """Where lowtide keeps what it learns: LOWTIDE_CACHE_DIR, or ~/.cache/lowtide."""
    given = os.environ.get("LOWTIDE_CACHE_DIR")
    return Path(given).expanduser() if given else Path.home() / ".cache" / "lowtide"


def load_costs(directory: Path | None = None) -> dict[str, Cost]:
    """Everything the cache knows, by key. Never raises: a cache may always be empty."""
    path = (directory or cache_directory()) / _FILE
    try:
        text = path.read_text(encoding="utf-8", errors="replace")
    except FileNotFoundError:
        return {}
    except OSError as error:
        log.warning(
            "the op costs in %s cannot be read (%s): measuring anew", path, error
        )
        return {}
    found: dict[str, Cost] = {}
    bad = 0
    for line in text.splitlines():
        entry = _read(line)
        if entry is None:
            bad += bool(line.strip())
        else:
            found[entry[0]] = entry[1]
    if bad:
        log.warning(
            "%d of %d lines in %s are damaged or not lowtide's: they are ignored and "
            "those ops are measured anew. Delete the file to be rid of this warning",
            bad,
            bad + len(found),
            path,
        )
    return found


def store_costs(costs: Mapping[str, Cost], directory: Path | None = None) -> None:
    """Add these costs. If the directory cannot be written to, warn and go on."""
    if not costs:
        return
    path = (directory or cache_directory()) / _FILE
    lines = "".join(_line(key, cost) for key, cost in costs.items())
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with _locked(path) as file:
            # A writer that died may have left half a line: ours starts on a new one.
            file.write(("" if _ends_clean(path) else "\n") + lines)
    except OSError as error:
        log.warning("op costs are not kept for next time: %s: %s", path, error)


@contextmanager
def _locked(path: Path) -> Iterator[IO[str]]:
    with path.open("a", encoding="utf-8") as file:
        if fcntl is not None:
            fcntl.flock(file, fcntl.LOCK_EX)
        yield file
        file.flush()


def _ends_clean(path: Path) -> bool:
    with path.open("rb") as file:
        size = file.seek(0, os.SEEK_END)
        if size == 0:
            return True
        file.seek(size - 1)
        return file.read(1) == b"\n"


def _line(key: str, cost: Cost) -> str:
    row: list[Any] = [key, cost.seconds, cost.spread, cost.scratch_bytes]
    return json.dumps({"op": row, "sum": _sum(row)}) + "\n"


def _read(line: str) -> tuple[str, Cost] | None:
    try:
        data = json.loads(line)
        row = data["op"]
        key, seconds, spread, scratch = row
        if data["sum"] != _sum(row) or not isinstance(key, str):
            return None
        cost = Cost(float(seconds), float(spread), int(scratch))
    except (ValueError, TypeError, KeyError):
        return None
    finite = math.isfinite(cost.seconds) and math.isfinite(cost.spread)
    if not finite or cost.seconds < 0 or cost.spread < 0 or cost.scratch_bytes < 0:
        return None
    return key, cost


def _sum(row: list[Any]) -> int:
    return zlib.crc32(json.dumps(row).encode())

"""Measured op costs on disk, shared by processes and by profiles.

A small SQLite database. A cache may always be empty: whatever goes wrong with it (no
home directory, a read-only or full disk, a damaged file, somebody's lock) is logged
once, and the profile goes on without it.

Each cost is kept with how busy the machine was and how far its runs lay apart, so that
times taken on a busy machine do not stay for good: they are measured again as soon as
the machine is quieter.
"""

from __future__ import annotations

import logging
import math
import os
import sqlite3
import time
from collections.abc import Callable, Iterable, Mapping
from contextlib import closing
from dataclasses import astuple, dataclass, field
from pathlib import Path
from typing import Any, Literal

from lowtide.engine.costs.cost import Cost

log = logging.getLogger("lowtide.profile")

# Whether to use the cache; "refresh" measures everything anew and keeps that.
Caching = bool | Literal["refresh"]

Row = tuple[Any, ...]

_FILE = "op-costs.sqlite"
_LOCK_SECONDS = 1.0
# More than one runnable task per core, or runs that lie further apart than this part of
# their median, make a time doubtful; it takes this much less load to try again.
_BUSY_LOAD = 1.0
_WIDE_SPREAD = 0.2
_QUIETER = 0.25

_TABLE = """
create table if not exists costs (
    key text primary key, seconds real, spread real, scratch_bytes integer,
    runs integer, load real, measured_at real
) without rowid
"""


@dataclass(frozen=True, slots=True)
class Entry:
    """A measured cost, and the circumstances: runs, load per core, time of day."""

    cost: Cost
    runs: int = 0
    load: float = 0.0
    measured_at: float = field(default_factory=time.time)

    def is_outdone(self, load: float) -> bool:
        """Whether this time is doubtful, and a machine this busy would do better."""
        doubtful = self.load > _BUSY_LOAD or self.cost.spread > _WIDE_SPREAD
        return doubtful and load < self.load - _QUIETER


def cache_directory() -> Path | None:
    """Where lowtide keeps what it learns: LOWTIDE_CACHE_DIR, or ~/.cache/lowtide.

    None if there is no such place: a user without a home directory, say.
    """
    given = os.environ.get("LOWTIDE_CACHE_DIR")
    try:
        return Path(given).expanduser() if given else Path.home() / ".cache" / "lowtide"
    except RuntimeError:
        return None


def machine_load() -> float:
    """Runnable tasks per core over the last minute; 0 where the system cannot tell."""
    try:
        return os.getloadavg()[0] / (os.cpu_count() or 1)
    except (OSError, AttributeError):
        return 0.0


class CostCache:
    """The costs on disk, for the length of one profile."""

    def __init__(self, directory: Path | None = None) -> None:
        directory = directory or cache_directory()
        self.path = None if directory is None else directory / _FILE
        if self.path is None:
            log.warning(
                "op costs are not kept: there is no home directory; set "
                "LOWTIDE_CACHE_DIR to a folder for them"
            )

    def load(self, keys: Iterable[str]) -> dict[str, Entry]:
        wanted = [(key,) for key in keys]

        def select(database: sqlite3.Connection) -> list[Row]:
            one = "select * from costs where key = ?"
            return [row for key in wanted for row in database.execute(one, key)]

        found = {row[0]: _entry(row) for row in self._ask(select)}
        return {key: entry for key, entry in found.items() if entry is not None}

    def store(self, entries: Mapping[str, Entry]) -> None:
        """Keep these costs, in place of older ones."""
        rows = [
            (key, *astuple(e.cost)[:3], e.runs, e.load, e.measured_at)
            for key, e in entries.items()
        ]

        def insert(database: sqlite3.Connection) -> list[Row]:
            line = "insert or replace into costs values (?, ?, ?, ?, ?, ?, ?)"
            return database.executemany(line, rows).fetchall()

        self._ask(insert)

    def ages(self) -> list[float]:
        """Seconds since each cost was measured."""
        rows = self._ask(lambda d: d.execute("select * from costs").fetchall())
        entries = [entry for row in rows if (entry := _entry(row)) is not None]
        return [time.time() - entry.measured_at for entry in entries]

    def _ask(self, question: Callable[[sqlite3.Connection], list[Row]]) -> list[Row]:
        """The database's answer; after a failure it is not asked any more."""
        if self.path is None:
            return []
        try:
            try:
                return _answer(self.path, question)
            except sqlite3.OperationalError:
                raise  # locked, full, read-only: nothing is wrong with the file
            except sqlite3.DatabaseError as error:
                log.warning("%s is damaged (%s) and begun anew", self.path, error)
                self.path.unlink()
                return _answer(self.path, question)
        except (sqlite3.Error, OSError) as error:
            log.warning("op costs are not kept: %s: %s", self.path, error)
            self.path = None
            return []


def _answer(
    path: Path, question: Callable[[sqlite3.Connection], list[Row]]
) -> list[Row]:
    path.parent.mkdir(parents=True, exist_ok=True)
    if path.exists() and not path.is_file():
        raise OSError("it is no file")
    opened = sqlite3.connect(path, timeout=_LOCK_SECONDS)
    with closing(opened) as database, database:  # the second is the transaction
        database.execute(_TABLE)
        return question(database)


def _entry(row: Row) -> Entry | None:
    """The entry in a row, if it is one: SQLite keeps whatever it is given."""
    try:
        seconds, spread, scratch_bytes, runs, load, measured_at = row[1:]
        numbers = (seconds, spread, scratch_bytes, runs, load, measured_at)
        if not all(math.isfinite(n) and n >= 0 for n in numbers):
            return None
        cost = Cost(float(seconds), float(spread), int(scratch_bytes))
        return Entry(cost, int(runs), float(load), float(measured_at))
    except (TypeError, ValueError):
        return None

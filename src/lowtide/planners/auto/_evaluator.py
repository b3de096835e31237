"""Runs the moves of the search on the drafts of one step, compiled where possible."""

from __future__ import annotations

import ctypes
import inspect
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Any

import numpy as np

from lowtide.planners.auto import (
    _greedy,
    _improve,
    _keep,
    _moves,
    _native,
    _order,
    _tables,
)
from lowtide.planners.auto._native import (
    PREFIX,
    as_struct,
    compiled,
    to_c,
)
from lowtide.planners.auto._tables import RECORDS, State, Work, blank

if TYPE_CHECKING:
    from lowtide.planners.auto._problem import Problem

# Units of work in a second: what a time limit stands for, whatever the machine does.
COMPILED_UNITS = 400e6
INTERPRETED_UNITS = 1e6
# How many others an op may pass at once.
REACH = 300
_MODULES = (_moves, _keep, _greedy, _order, _improve)


@dataclass(frozen=True, slots=True, eq=False)
class Draft:
    """A sequence of ops, and its live bytes at each position while the op runs."""

    ops: list[int]
    live: np.ndarray
    peak_bytes: float
    seconds: float


class Evaluator:
    """The moves on one step, and the count of the work they do."""

    def __init__(self, problem: Problem) -> None:
        self._problem = problem
        self._library = _library()
        self.units_per_second = (
            INTERPRETED_UNITS if self._library is None else COMPILED_UNITS
        )
        self._accesses = [
            len(reads) + len(writes)
            for reads, writes in zip(problem.reads, problem.writes, strict=True)
        ]
        # Plans in which everything runs four times are rare: then more is allocated.
        self._allocate(4 * len(self._accesses) + 64, 4 * sum(self._accesses) + 256)

    def _allocate(self, length: int, accesses: int) -> None:
        """Make room for sequences with this many positions and accesses."""
        ops, storages = len(self._problem.seconds), len(self._problem.size)
        self._most = (length, accesses)
        sizes = {
            "Op": ops,
            "OpStart": ops + 1,
            "Storage": storages,
            "StorageStart": storages + 1,
            "Position": length,
            "Access": accesses + 2 * storages,
            "Single": 1,
        }
        kinds = (Work, State, State, State, State)
        as_arrays = self._library is not None
        records = [blank(kind, sizes, as_arrays=as_arrays) for kind in kinds]
        self._work: Work = records[0]
        self._states: list[State] = records[1:]
        _fill(self._work, self._problem)
        if as_arrays:  # as pointers into the arrays
            records = [ctypes.byref(as_struct(record)) for record in records]
        self._passed, *self._slots = records

    @property
    def units(self) -> float:
        """Work done so far."""
        return float(self._work.units[0])

    def spend(self, seconds: float) -> None:
        """Count work that was done elsewhere and takes about this long."""
        self._work.units[0] += seconds * self.units_per_second

    def draft(self, ops: Sequence[int]) -> Draft:
        """The draft of a sequence, without the ops nobody needs."""
        self._load(ops)
        return self._draft()

    def lower(
        self,
        draft: Draft,
        budget: float,
        limit_units: float,
        *,
        limit_seconds: float = np.inf,
        tried: int = 48,
        batch: float = 0.7,
    ) -> Draft:
        """A draft that fits the budget, or the nearest to it that evictions reach."""
        self._load(draft.ops)
        self._work.factor[:] = [1.0] * len(self._work.factor)
        self._work.early[0] = 0
        how = (float(budget), float(limit_seconds), tried, batch, float(limit_units))
        self._run(_greedy.lower, *self._slots[:2], *how)
        return self._draft()

    def raise_up(self, draft: Draft, budget: float, limit_units: float) -> Draft:
        """The draft without the recomputations that the budget does not need."""
        self._load(draft.ops)
        how = (float(budget), 0.0, float(limit_units))
        self._run(_keep.raise_up, *self._slots[:2], *how)
        return self._draft()

    def reorder(self, draft: Draft, level: float, limit_units: float) -> Draft:
        """The draft with ops in other places, less over the level."""
        self._load(draft.ops)
        how = (float(level), REACH, float(limit_units))
        self._run(_order.reorder, self._slots[0], *how)
        return self._draft()

    def improve(
        self,
        draft: Draft,
        current: Draft,
        budget: float,
        heat: float,
        limit_units: float,
    ) -> tuple[Draft, Draft]:
        """A better draft than this, if one is found, and where to go on from."""
        self._load(draft.ops, current.ops)
        how = (float(budget), float(heat), float(limit_units))
        found = self._run(_improve.improve, *self._slots, *how)
        return self._draft() if found else draft, self._draft(1)

    def _load(self, *sequences: Sequence[int]) -> None:
        length = max(map(len, sequences))
        accesses = max(sum(self._accesses[op] for op in ops) for ops in sequences)
        if length + 2 > self._most[0] or accesses + 2 > self._most[1]:
            units, number = self._work.units[0], self._work.random[0]
            self._allocate(2 * length + 64, 2 * accesses + 256)
            self._work.units[0], self._work.random[0] = units, number
        for state, slot, ops in zip(self._states, self._slots, sequences, strict=False):
            state.ops[: len(ops)] = ops
            state.length[0] = len(ops)
            self._run(_moves.build, slot)

    def _draft(self, number: int = 0) -> Draft:
        state = self._states[number]
        length = int(state.length[0])
        return Draft(
            np.asarray(state.ops[:length]).tolist(),
            np.array(state.live[:length]),
            float(state.peak_bytes[0]),
            float(state.seconds[0]),
        )

    def _run(self, function: Callable[..., Any], *arguments: Any) -> Any:
        if self._library is None:
            return function(self._passed, *arguments)
        plain = {float: ctypes.c_double, int: ctypes.c_int64}
        passed = [plain[type(a)](a) if type(a) in plain else a for a in arguments]
        return self._library[PREFIX + function.__name__](self._passed, *passed)


def _fill(work: Work, problem: Problem) -> None:
    """Write the step into its tables."""
    step, regions = problem.step, problem.step.regions
    columns: dict[str, Sequence[float]] = {
        "size": problem.size,
        "seconds": problem.seconds,
        "fresh_bytes": problem.fresh_bytes,
        "passing_bytes": [float(nbytes) for nbytes in step.passing_bytes],
        "fixed": problem.fixed,
        "ordered": problem.once,
        "remaker": problem.remaker,
        "held": problem.held,
        "piece": problem.piece,
        "leads": [regions[k].piece if k >= 0 else -2 for k in problem.opens],
        "op_class": problem.op_class,
        "storage_class": problem.storage_class,
        "first_piece": [regions[0].piece],
        "resident_bytes": [problem.resident_bytes],
        "tiny_seconds": [problem.tiny_seconds],
        "baseline_seconds": [step.baseline_seconds],
        "random": [1],
    }
    for name, rows in (("reads", problem.reads), ("writes", problem.writes)):
        columns[name] = [s for row in rows for s in row]
        columns[f"{name}_at"] = np.cumsum([0, *map(len, rows)]).tolist()
    for name, column in columns.items():
        getattr(work, name)[: len(column)] = column


@cache
def _library() -> ctypes.CDLL | None:
    functions = [
        function
        for module in _MODULES
        for function in vars(module).values()
        if inspect.isfunction(function) and function.__module__ == module.__name__
    ]
    key = "".join(inspect.getsource(m) for m in (*_MODULES, _tables, _native))
    return compiled(key, lambda: to_c(functions, RECORDS))

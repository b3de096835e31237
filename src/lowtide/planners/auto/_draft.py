"""A sequence of ops under construction, with everything the moves ask about it.

A storage lives from the op that makes it to its last read before it is made again. So
inserting an op frees its outputs earlier, leaving one out keeps them, and any sequence
in which every read has an earlier writer is valid: moves never have to be repaired,
they only have to be scored.

`Draft` is rebuilt as a whole after a move (one sort of all accesses, in numpy) rather
than patched: a rebuild costs about a microsecond per op, less than keeping ten
structures consistent would.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

import numpy as np

from lowtide.planners.auto._problem import Problem


class Change(NamedTuple):
    """Bytes added to what is alive from `start` up to `stop`; negative if freed."""

    start: int
    stop: int
    nbytes: float


class Accesses(NamedTuple):
    """The accesses of all storages, as lists: fast to bisect from Python.

    Those of storage s are `at[k]` for `first[s] <= k < first[s + 1]`, in order of
    position; `made[k]` tells a write from a read.
    """

    at: list[int]
    made: list[bool]
    first: list[int]


class Gaps(NamedTuple):
    """Stretches over which a storage is only held, from one access to the next.

    `made` says whether the first of the two is a write.
    """

    storage: np.ndarray
    start: np.ndarray
    stop: np.ndarray
    made: np.ndarray


class Draft:
    """A sequence and, for each of its positions, the live bytes.

    `carry[p]` is what is alive just before the op at p runs, `live[p]` while it runs.
    """

    def __init__(self, problem: Problem, sequence: Sequence[int] | np.ndarray) -> None:
        self.problem = problem
        problem.units += 200.0 + 0.8 * len(sequence)
        self.sequence = np.asarray(sequence, dtype=np.int64)
        self._build()
        while True:
            useless = self._useless()
            if not useless.size:
                break
            self.sequence = np.delete(self.sequence, useless)
            self._build()
        self.seconds = float(problem.seconds_array[self.sequence].sum())
        self.peak_bytes = float(self.live.max()) if self.live.size else 0.0
        self._accesses: Accesses | None = None
        self._pieces: list[int] | None = None
        self._ops: list[int] | None = None

    def _build(self) -> None:
        problem, sequence = self.problem, self.sequence
        length = len(sequence)
        starts, counts, codes = problem.access_rows
        number = counts[sequence]
        before = np.cumsum(number) - number
        index = np.repeat(starts[sequence] - before, number)
        index += np.arange(index.size)
        code = codes[index]
        key = (code >> 1) * (2 * length) + (code & 1)
        key += 2 * np.repeat(np.arange(length), number)
        key.sort()
        storage = key // max(1, 2 * length)
        rest = key - storage * (2 * length)
        self._storage, self._at, self._made = storage, rest >> 1, (rest & 1) == 1
        followed = np.zeros(key.size, dtype=bool)
        if key.size:
            followed[:-1] = (storage[1:] == storage[:-1]) & ~self._made[1:]
        self._followed = followed
        held = problem.held_array[storage]
        ends = np.flatnonzero(followed & ~held) + 1
        self.gap_storage = storage[ends]
        self.gap_start, self.gap_stop = self._at[ends - 1], self._at[ends]
        self._gap_made = self._made[ends - 1]
        weight = problem.sizes[self.gap_storage]
        change = np.zeros(length + 1)
        change += np.bincount(self.gap_start + 1, weight, minlength=length + 1)
        change -= np.bincount(self.gap_stop + 1, weight, minlength=length + 1)
        first = np.ones(key.size, dtype=bool)
        first[1:] = storage[1:] != storage[:-1]
        self._first_access = first
        holding = np.flatnonzero(held & first)
        change += np.bincount(
            self._at[holding] + 1,
            problem.sizes[storage[holding]],
            minlength=length + 1,
        )
        self.carry = np.cumsum(change)[:length] + problem.resident_bytes
        self.live = self.carry + problem.write_bytes[sequence]

    def _useless(self) -> np.ndarray:
        """Positions whose op nobody needs: no output is read before it is remade."""
        problem = self.problem
        held = problem.held_array[self._storage]
        useful = self._made & np.where(held, self._first_access, self._followed)
        needed = np.bincount(self._at[useful], minlength=len(self.sequence)) > 0
        return np.flatnonzero(~needed & ~problem.fixed_array[self.sequence])

    @property
    def ops(self) -> list[int]:
        """The sequence as a list."""
        if self._ops is None:
            self._ops = list(self.sequence.tolist())
        return self._ops

    @property
    def pieces(self) -> list[int]:
        """For each position, the piece whose ops may be inserted before it."""
        if self._pieces is None:
            self._pieces = self.problem.pieces_along(self.ops)
        return self._pieces

    def accesses(self) -> Accesses:
        """Who reads and writes what, where."""
        if self._accesses is None:
            count = len(self.problem.size)
            first = np.searchsorted(self._storage, np.arange(count + 1))
            self._accesses = Accesses(
                self._at.tolist(), self._made.tolist(), first.tolist()
            )
        return self._accesses

    def gaps(self) -> Gaps:
        """Where storages are held without being used."""
        wide = self.gap_stop - self.gap_start > 1
        return Gaps(
            self.gap_storage[wide],
            self.gap_start[wide],
            self.gap_stop[wide],
            self._gap_made[wide],
        )

    def with_inserted(self, pieces: Iterable[tuple[int, Sequence[int]]]) -> Draft:
        """The draft with ops inserted: pairs of a position and what runs before it."""
        ordered = sorted(pieces, key=lambda pair: pair[0])
        where = [p for p, ops in ordered for _ in ops]
        what = [op for _, ops in ordered for op in ops]
        return Draft(self.problem, np.insert(self.sequence, where, what))

    def without(self, positions: Sequence[int]) -> Draft:
        """The draft with the ops at these positions left out."""
        return Draft(self.problem, np.delete(self.sequence, positions))

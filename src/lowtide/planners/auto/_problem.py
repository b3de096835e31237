"""The step as flat arrays and lists: what the inner loops of the search read.

Residents are left out of reads and writes: they are always alive, so no decision of the
search depends on them. Bytes are floats: whole numbers up to 2**53 stay exact.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cached_property

import numpy as np

from lowtide.step.graph import StepGraph


class Problem:
    """One step, prepared for the search."""

    def __init__(self, step: StepGraph) -> None:
        self.step = step
        self.units = 0.0  # work done on this problem, see `Effort`
        resident = [s.resident for s in step.storages]
        self.reads: list[tuple[int, ...]] = [
            tuple(dict.fromkeys(s for s in op.reads if not resident[s]))
            for op in step.ops
        ]
        self.writes: list[tuple[int, ...]] = [
            tuple(dict.fromkeys(s for s in op.writes if not resident[s]))
            for op in step.ops
        ]
        self.size: list[float] = [float(b) for b in step.sizes]
        self.sizes = np.array(self.size)
        self.seconds: list[float] = [op.seconds for op in step.ops]
        self.scratch = np.array([float(op.scratch_bytes) for op in step.ops])
        # What is counted for an op that takes no time, so that ratios stay finite.
        self.tiny_seconds = max(step.baseline_seconds, 1e-12) * 1e-7
        self.once: list[bool] = [bool(op.once) for op in step.ops]
        # An op that updates a storage in place cannot be repeated as it is.
        in_place = [bool(set(op.reads) & set(op.writes)) for op in step.ops]
        # An op without outputs is run for something the graph does not show.
        self.fixed: list[bool] = [
            bool(op.once) or in_place[op.id] or not self.writes[op.id]
            for op in step.ops
        ]
        self.remaker: list[int] = [
            -1 if i >= 0 and in_place[i] else i for i in step.remakers
        ]
        self.piece: list[int] = [op.piece for op in step.ops]
        self.opens: list[int] = [op.opens for op in step.ops]
        self.held: list[bool] = [False] * len(step.storages)
        for s in step.outputs:
            self.held[s] = True
        self.residents = frozenset(step.resident)
        self.resident_bytes = float(step.resident_bytes)
        self.has_one_piece = len({r.piece for r in step.regions}) == 1
        self.baseline: list[int] = list(step.baseline)

    @cached_property
    def held_array(self) -> np.ndarray:
        return np.array(self.held)

    @cached_property
    def seconds_array(self) -> np.ndarray:
        return np.array(self.seconds)

    @cached_property
    def remaker_array(self) -> np.ndarray:
        return np.array(self.remaker, dtype=np.int64)

    @cached_property
    def remake_seconds(self) -> np.ndarray:
        """For each storage, the time of the op that makes it again; inf if none."""
        seconds = np.append(self.seconds_array, np.inf)
        return seconds[self.remaker_array]

    @cached_property
    def fixed_array(self) -> np.ndarray:
        return np.array(self.fixed)

    @cached_property
    def write_bytes(self) -> np.ndarray:
        """For each op, the bytes it writes and its scratch."""
        # A resident that is written counts too: while the op runs, both copies exist.
        fresh = [sum(self.size[s] for s in set(op.writes)) for op in self.step.ops]
        return np.array(fresh) + self.scratch

    @cached_property
    def op_class(self) -> list[int]:
        """Equal numbers for ops that compute the same: the same op in other layers."""
        numbers: dict[str, int] = {}
        return [
            numbers.setdefault(op.signature or op.target, len(numbers))
            for op in self.step.ops
        ]

    @cached_property
    def storage_class(self) -> list[int]:
        """Equal numbers for storages made alike, as those of repeated layers are."""
        found = [-1 - s for s in range(len(self.size))]
        for number, writes in enumerate(self.writes):
            for k, s in enumerate(writes):
                found[s] = 64 * self.op_class[number] + k
        return found

    @cached_property
    def access_rows(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """For each op its accesses: starts, counts, and 2 * storage + is_write."""
        counts = [len(r) + len(w) for r, w in zip(self.reads, self.writes, strict=True)]
        codes = [
            code
            for r, w in zip(self.reads, self.writes, strict=True)
            for code in (*(2 * s for s in r), *(2 * s + 1 for s in w))
        ]
        starts = np.concatenate(([0], np.cumsum(counts)))[:-1]
        return (
            starts.astype(np.int64),
            np.array(counts, dtype=np.int64),
            np.array(codes, dtype=np.int64),
        )

    def only_maker(self, storage: int) -> int:
        """The op that makes a storage in every schedule, or -1 if several could."""
        makers = self.step.producers[storage]
        return makers[0] if len(makers) == 1 else -1

    def makers_in(self, piece: int) -> Callable[[int], int]:
        """What makes a storage again while only ops of one piece can run."""
        remaker, pieces = self.remaker, self.piece

        def maker_of(storage: int) -> int:
            maker = remaker[storage]
            return maker if maker >= 0 and pieces[maker] == piece else -1

        return maker_of

    def pieces_along(self, sequence: Sequence[int]) -> list[int]:
        """For each position, the piece whose ops may be inserted before it."""
        regions = self.step.regions
        now = regions[0].piece
        if self.has_one_piece:
            return [now] * len(sequence)
        pieces: list[int] = []
        for number in sequence:
            pieces.append(now)
            if self.opens[number] >= 0:
                now = regions[self.opens[number]].piece
        return pieces

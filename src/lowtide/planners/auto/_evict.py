"""Evictions: free a storage over a gap between two uses, make it again at its end.

The measure that drives the search is the excess: the sum over positions of the bytes
above the budget. Unlike the peak it falls with every useful eviction, also while the
peak is a plateau. An eviction's score is the excess it removes per second it costs.
"""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from lowtide.planners.auto._draft import Change, Draft


@dataclass(slots=True)
class Eviction:
    """Run `cone` before `position`. `seconds` is what that costs, `gain` the excess
    that goes; `changes` are the ranges of live bytes that move."""

    position: int
    cone: list[int]
    seconds: float
    gain: float
    changes: list[Change]
    needs: list[int]
    frees: list[int]
    inserted: float

    @property
    def score(self) -> float:
        return self.gain / self.seconds


class Candidates(NamedTuple):
    """Gaps that may be worth an eviction; `bound` is the most that its score can be."""

    storage: np.ndarray
    start: np.ndarray
    stop: np.ndarray
    bound: np.ndarray


class Evictor:
    """Scores evictions on one draft.

    `live` starts as the draft's and moves with every eviction that is `taken`, so that
    several can be chosen before the draft is rebuilt.
    """

    def __init__(self, draft: Draft, budget: float) -> None:
        self.draft, self.budget = draft, budget
        self.problem = draft.problem
        self.live = draft.live.copy()
        self.carry = draft.carry.copy()
        self.at, self.made, self.first = draft.accesses()
        self.pieces = draft.pieces

    def excess(self) -> float:
        """Bytes above the budget, summed over positions."""
        return float(np.maximum(self.live - self.budget, 0.0).sum())

    def candidates(self) -> Candidates:
        """The gaps over the budget, best first."""
        storage, start, stop, made = self.draft.gaps()
        over = np.maximum(self.live - self.budget, 0.0)
        area = np.concatenate(([0.0], np.cumsum(over)))
        count = np.concatenate(([0.0], np.cumsum(over > 0.0)))
        inside = area[stop] - area[start + 1]
        positions = count[stop] - count[start + 1]
        bound = np.minimum(self.problem.sizes[storage] * positions, inside)
        seconds = self.problem.remake_seconds[storage]
        ok = (bound > 0.0) & np.isfinite(seconds)
        storage, start, stop = storage[ok], start[ok], stop[ok]
        bound, made, seconds = bound[ok], made[ok], seconds[ok]
        # Nothing may have to run twice if nobody reads the storage before the gap.
        seconds = np.where(made, 0.3 * seconds, seconds) + self.problem.tiny_seconds
        order = np.argsort(-bound / seconds, kind="stable")
        return Candidates(
            storage[order], start[order], stop[order], (bound / seconds)[order]
        )

    def evaluate(
        self, storage: int, start: int, stop: int, rate: float
    ) -> Eviction | None:
        """The eviction of a storage between two uses, or None if it cannot be.

        `rate` is the excess a second is worth: it decides whether an input that is not
        alive at the end of the gap is made again (time) or held until then (excess).
        """
        problem = self.problem
        problem.units += 60.0 + 0.01 * len(self.live)
        cone = _Cone(self, stop, rate)
        cone.shift(start + 1, stop, -problem.size[storage])
        cone.freed[storage] = start
        if not cone.remake(storage):
            return None
        return cone.finish()

    def take(self, eviction: Eviction) -> None:
        """Count an eviction as done."""
        for start, stop, nbytes in eviction.changes:
            self.live[start:stop] += nbytes
            self.carry[start:stop] += nbytes


class _Cone:
    """The ops that make a storage again at a position, chosen input by input."""

    def __init__(self, evictor: Evictor, position: int, rate: float) -> None:
        self.evictor, self.position, self.rate = evictor, position, rate
        self.live = evictor.live.copy()
        self.low = position
        self.changes: list[Change] = []
        self.ops: list[int] = []
        self.chosen: set[int] = set()
        self.fresh: set[int] = set()
        self.busy: set[int] = set()
        self.freed: dict[int, int] = {}
        self.extended: list[int] = []
        self.needs: list[int] = []
        self.known: dict[int, float] = {}

    def shift(self, start: int, stop: int, nbytes: float) -> None:
        if start < stop:
            self.live[start:stop] += nbytes
            self.changes.append(Change(start, stop, nbytes))
            self.low = min(self.low, start)

    def remake(self, storage: int) -> bool:
        """Add the ops that make this storage; False if that is not possible."""
        problem = self.evictor.problem
        number = problem.remaker[storage]
        if number in self.chosen:
            return True
        if number < 0 or number in self.busy:
            return False
        if problem.piece[number] != self.evictor.pieces[self.position]:
            return False
        self.busy.add(number)
        for s in problem.reads[number]:
            if not self._provide(s):
                return False
        self.busy.discard(number)
        self.chosen.add(number)
        self.ops.append(number)
        for s in problem.writes[number]:
            self.fresh.add(s)
            if s not in self.freed and not problem.held[s]:
                last = self._alive_since(s)
                if last >= 0:
                    self.freed[s] = last
                    self.shift(last + 1, self.position, -problem.size[s])
        return True

    def _alive_since(self, storage: int) -> int:
        """Last access before the position if the storage is alive there, else -1."""
        evictor = self.evictor
        low, high = evictor.first[storage], evictor.first[storage + 1]
        k = bisect_left(evictor.at, self.position, low, high)
        if k == low:
            return -1
        if k < high and not evictor.made[k]:
            return evictor.at[k - 1]
        return -1

    def _last_access(self, storage: int) -> int:
        """Last access before the position, or -1."""
        evictor = self.evictor
        low, high = evictor.first[storage], evictor.first[storage + 1]
        k = bisect_left(evictor.at, self.position, low, high)
        return evictor.at[k - 1] if k > low else -1

    def _provide(self, storage: int) -> bool:
        if storage in self.fresh or storage in self.extended:
            return True
        if storage in self.freed:
            return self.remake(storage)
        if self.evictor.problem.held[storage]:
            return self._last_access(storage) >= 0
        if self._alive_since(storage) >= 0:
            self.needs.append(storage)
            return True
        hold = self._hold_seconds(storage)
        if hold <= self._make_seconds(storage, hold):
            if hold == np.inf:
                return False
            self.extended.append(storage)
            self.shift(
                self._last_access(storage) + 1,
                self.position,
                self.evictor.problem.size[storage],
            )
            return True
        return self.remake(storage)

    def _hold_seconds(self, storage: int) -> float:
        """What it is worth not to hold a storage from its last use to the position."""
        last = self._last_access(storage)
        if last < 0:
            return np.inf
        size = self.evictor.problem.size[storage]
        over = self.live[last + 1 : self.position] + (size - self.evictor.budget)
        if not over.size:
            return 0.0
        np.maximum(over, 0.0, out=over)
        np.minimum(over, size, out=over)
        return float(over.sum()) / self.rate

    def _make_seconds(self, storage: int, limit: float) -> float:
        """Time to make a storage here, its inputs included; inf if above the limit."""
        if storage in self.known:
            return self.known[storage]
        problem = self.evictor.problem
        number = problem.remaker[storage]
        if number < 0 or number in self.busy:
            return np.inf
        if problem.piece[number] != self.evictor.pieces[self.position]:
            return np.inf
        seconds = problem.seconds[number]
        self.busy.add(number)
        for s in problem.reads[number]:
            if seconds > limit:
                break
            if s in self.fresh or s in self.extended or problem.held[s]:
                continue
            if s not in self.freed and self._alive_since(s) >= 0:
                continue
            hold = self._hold_seconds(s)
            seconds += min(hold, self._make_seconds(s, min(hold, limit - seconds)))
        self.busy.discard(number)
        if seconds > limit:
            return np.inf
        self.known[storage] = seconds
        return seconds

    def finish(self) -> Eviction:
        evictor, problem = self.evictor, self.evictor.problem
        before = np.maximum(
            evictor.live[self.low : self.position] - evictor.budget, 0.0
        )
        after = np.maximum(self.live[self.low : self.position] - evictor.budget, 0.0)
        inserted = self._inserted_excess()
        gain = float(before.sum() - after.sum()) - inserted
        seconds = sum(problem.seconds[i] for i in self.ops) - self._saved_seconds()
        return Eviction(
            position=self.position,
            cone=self.ops,
            seconds=max(seconds, 0.0) + problem.tiny_seconds,
            gain=gain,
            changes=self.changes,
            needs=self.needs,
            frees=list(self.freed),
            inserted=inserted,
        )

    def _inserted_excess(self) -> float:
        """Excess while the cone runs."""
        evictor, problem = self.evictor, self.evictor.problem
        size = problem.size
        now = float(evictor.carry[self.position])
        now -= sum(size[s] for s in self.freed)
        now += sum(size[s] for s in self.extended)
        last: dict[int, int] = {}
        for index, number in enumerate(self.ops):
            for s in problem.reads[number]:
                last[s] = index
        temporary = set(self.extended) | (self.fresh - self.freed.keys())
        total = 0.0
        for index, number in enumerate(self.ops):
            now += sum(size[s] for s in problem.writes[number])
            over = now + float(problem.scratch[number]) - evictor.budget
            if over > 0.0:
                total += over
            for s in problem.writes[number]:
                if s in temporary and last.get(s, -1) < index:
                    now -= size[s]
            for s in problem.reads[number]:
                if s in temporary and last[s] == index:
                    now -= size[s]
        return total

    def _saved_seconds(self) -> float:
        """Time of the earlier runs that nobody needs once the cone makes it again."""
        evictor, problem = self.evictor, self.evictor.problem
        ops = evictor.draft.ops
        saved = 0.0
        for position in {x for x in self.freed.values()}:
            number = ops[position]
            if problem.fixed[number]:
                continue
            if all(self._unread(s, position) for s in problem.writes[number]):
                saved += problem.seconds[number]
        return saved

    def _unread(self, storage: int, position: int) -> bool:
        if self.evictor.problem.held[storage]:
            return False
        if self.freed.get(storage) == position:
            return storage not in self.needs
        k = bisect_left(
            self.evictor.at,
            position + 1,
            self.evictor.first[storage],
            self.evictor.first[storage + 1],
        )
        return k == self.evictor.first[storage + 1] or bool(self.evictor.made[k])

"""The reverse of eviction: leave out a recomputation where the budget has room.

Leaving out a run means that the storages it made live on from their last use before it.
What ran only to feed it is left out with it.
"""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import dataclass

import numpy as np

from lowtide.planners.auto._draft import Change, Draft
from lowtide.planners.auto._effort import Effort


@dataclass(slots=True)
class Removal:
    """Leave out the ops at `positions`: saves `seconds`, moves `changes`."""

    positions: list[int]
    seconds: float
    changes: list[Change]

    @property
    def low(self) -> int:
        return min(c.start for c in self.changes) if self.changes else 0

    @property
    def high(self) -> int:
        return max(c.stop for c in self.changes) if self.changes else 0

    def added(self) -> float:
        """Byte-positions that the removal adds, less those it frees."""
        return sum((b - a) * nbytes for a, b, nbytes in self.changes)


class Remover:
    """Finds and scores removals on one draft."""

    def __init__(self, draft: Draft) -> None:
        self.draft = draft
        self.problem = draft.problem
        self.live = draft.live.copy()
        self.at, self.made, self.first = draft.accesses()

    def repeated(self) -> list[int]:
        """Positions of runs that may be left out: all they write was made before."""
        problem = self.problem
        ops = self.draft.ops
        seen: set[int] = set()
        found: list[int] = []
        for position, number in enumerate(ops):
            writes = problem.writes[number]
            if not problem.fixed[number] and seen.issuperset(writes):
                found.append(position)
            seen.update(writes)
        return found

    def removal(self, position: int) -> Removal:
        """What leaving out the run at a position changes."""
        problem, ops = self.problem, self.draft.ops
        problem.units += 40.0
        removal = Removal([], 0.0, [])
        gone: set[int] = set()
        waiting = [position]
        while waiting:
            q = waiting.pop()
            gone.add(q)
            removal.positions.append(q)
            removal.seconds += problem.seconds[ops[q]]
            freed = -float(problem.write_bytes[ops[q]])
            removal.changes.append(Change(q, q + 1, freed))
            if q == position:
                for s in problem.writes[ops[q]]:
                    self._live_on(s, q, removal)
            for s in problem.reads[ops[q]]:
                self._unread(s, q, gone, waiting, removal)
        return removal

    def _live_on(self, storage: int, position: int, removal: Removal) -> None:
        if self.problem.held[storage]:
            return
        k = self._find(storage, position)
        if k + 1 >= self.first[storage + 1] or self.made[k + 1]:
            return
        last = self.at[k - 1]
        nbytes = self.problem.size[storage]
        removal.changes.append(Change(last + 1, position + 1, nbytes))

    def _unread(
        self,
        storage: int,
        position: int,
        gone: set[int],
        waiting: list[int],
        removal: Removal,
    ) -> None:
        """A read at the position goes: the storage may die earlier, its maker too."""
        if self.problem.held[storage]:
            return
        low, high = self.first[storage], self.first[storage + 1]
        k = self._find(storage, position)
        # Later reads of the same copy keep it; those already left out do not.
        following = k + 1
        while following < high and not self.made[following]:
            if self.at[following] not in gone:
                return
            following += 1
        before = k - 1
        while before > low and not self.made[before] and self.at[before] in gone:
            before -= 1
        end = self.at[following - 1]
        removal.changes.append(
            Change(self.at[before] + 1, end + 1, -self.problem.size[storage])
        )
        maker = self.at[before]
        if not self.made[before] or maker in gone:
            return
        number = self.draft.ops[maker]
        if not self.problem.fixed[number] and self._is_idle(number, maker, gone):
            waiting.append(maker)
            gone.add(maker)

    def _is_idle(self, number: int, position: int, gone: set[int]) -> bool:
        for s in self.problem.writes[number]:
            if self.problem.held[s]:
                return False
            k = self._find(s, position) + 1
            while k < self.first[s + 1] and not self.made[k]:
                if self.at[k] not in gone:
                    return False
                k += 1
        return True

    def _find(self, storage: int, position: int) -> int:
        return bisect_left(
            self.at, position, self.first[storage], self.first[storage + 1]
        )

    def fits(self, removal: Removal, budget: float) -> bool:
        """Whether the draft without these runs stays within the budget."""
        low, high = removal.low, removal.high
        window = self.live[low:high].copy()
        for a, b, nbytes in removal.changes:
            window[a - low : b - low] += nbytes
        for q in removal.positions:
            if low <= q < high:
                window[q - low] = 0.0
        return bool(window.max(initial=0.0) <= budget)

    def take(self, removal: Removal) -> None:
        """Count a removal as done."""
        for a, b, nbytes in removal.changes:
            self.live[a:b] += nbytes
        self.live[removal.positions] = -np.inf  # no longer a position


def raise_up(
    draft: Draft, budget: float, effort: Effort, *, power: float = 0.0
) -> Draft:
    """The draft without the recomputations that the budget does not need.

    Those that save most time go first; with `power`, time per byte-position added to
    that power.
    """
    while not effort.is_over():
        remover = Remover(draft)
        found: list[tuple[float, int, Removal]] = []
        for position in remover.repeated():
            removal = remover.removal(position)
            area = max(1.0, removal.added()) ** power if power else 1.0
            found.append((-removal.seconds / area, position, removal))
        found.sort(key=lambda item: item[:2])
        chosen = _together(remover, [f[2] for f in found], budget)
        if not chosen:
            return draft
        following = draft.without([q for r in chosen for q in r.positions])
        if following.peak_bytes > budget:
            # Rounding aside this is the effect of removals on each other.
            following = draft.without(chosen[0].positions)
            if following.peak_bytes > budget:
                return draft
        draft = following
    return draft


def _together(remover: Remover, found: list[Removal], budget: float) -> list[Removal]:
    """Removals that fit one after the other and touch different storages."""
    problem, ops = remover.problem, remover.draft.ops
    chosen: list[Removal] = []
    touched: set[int] = set()
    for removal in found:
        if not remover.fits(removal, budget):
            continue
        touches = {
            s
            for q in removal.positions
            for s in (*problem.reads[ops[q]], *problem.writes[ops[q]])
        }
        if touched.isdisjoint(touches):
            remover.take(removal)
            touched |= touches
            chosen.append(removal)
    return chosen

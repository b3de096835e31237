"""Plans for steps of many equal blocks: one block is decided on, and all do the same.

What a block may drop is tried on a step with five of them. First each of its results
alone: by the bytes that it frees for each second that it costs. Then one after another
in that order, which gives a ladder of ways to run a block, from keeping everything to
keeping the least; what would raise the peak of the whole step stays. On the whole step
all blocks stand on one rung, or the first ones on one and the others on the next,
whichever is the fastest that fits.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from lowtide.planners._tried import Tried, best_plan
from lowtide.step.blocks import blocks_of, few_blocks
from lowtide.step.graph import StepGraph
from lowtide.step.plan import Plan
from lowtide.step.schedule import from_kept, saved_by_baseline, sequence_from_kept
from lowtide.step.simulate import simulate

Slot = tuple[int, int]


@dataclass(frozen=True)
class _Rung:
    """What a block drops of what it makes, by the place of the op and of the result."""

    dropped: frozenset[Slot]
    kept_bytes: int
    seconds: float


def plan_blocks(step: StepGraph, budget_bytes: int | None) -> Plan:
    """The fastest plan found within the budget; without one, the lowest peak found."""
    whole = _Whole(step)
    count = len(whole.at)
    rungs = _ladder(step, whole)

    def at(low: int, number: int) -> Tried:
        """All blocks on a rung, and so many of them on the one below."""
        below = min(low + 1, len(rungs) - 1)
        own = [rungs[below]] * number + [rungs[low]] * (count - number)
        return Tried.of(step, sequence_from_kept(step, whole.kept(own)))

    tried = [at(k, 0) for k in range(len(rungs))]
    limit = budget_bytes or 0
    for k, (above, below) in enumerate(pairwise(list(tried))):
        if not below.peak_bytes <= limit < above.peak_bytes:
            continue
        # As many blocks as fit stay on the rung above.
        few, many = 0, count
        while few < many:
            middle = (few + many) // 2
            tried.append(at(k, middle))
            if tried[-1].peak_bytes <= limit:
                many = middle
            else:
                few = middle + 1
    return best_plan(step, tried, planner="auto", budget_bytes=budget_bytes)


class _Whole:
    """The results of each block by their places, and what is kept in any case."""

    def __init__(self, step: StepGraph) -> None:
        blocks = blocks_of(step)
        self.saved = set(saved_by_baseline(step))
        self.at: list[dict[Slot, int]] = [
            {
                (place, k): s
                for place, i in enumerate(block.forward)
                for k, s in enumerate(step.ops[i].writes)
                if s in self.saved
            }
            for block in blocks
        ]

    def kept(self, rungs: Sequence[_Rung]) -> set[int]:
        gone = {
            slots[slot]
            for slots, rung in zip(self.at, rungs, strict=True)
            for slot in rung.dropped
            if slot in slots
        }
        return self.saved - gone


def _ladder(step: StepGraph, whole: _Whole) -> list[_Rung]:
    """Ways to run a block, from the fastest to the one that keeps the least."""
    small, _ = few_blocks(step)
    few = _Whole(small)
    slots = list(few.at[2])

    def at(dropped: frozenset[Slot]) -> _Rung:
        rung = _Rung(dropped, 0, 0.0)
        kept = few.kept([rung] * len(few.at))
        found = simulate(small, from_kept(small, kept))
        nbytes = sum(small.sizes[s] for s in kept)
        return _Rung(dropped, nbytes, found.seconds)

    first = at(frozenset())

    def price(slot: Slot) -> float:
        alone = at(frozenset({slot}))
        freed = first.kept_bytes - alone.kept_bytes
        return (alone.seconds - first.seconds) / max(1, freed)

    def peak_bytes(rung: _Rung) -> int:
        kept = whole.kept([rung] * len(whole.at))
        return simulate(step, from_kept(step, kept)).peak_bytes

    rungs, dropped, lowest = [first], frozenset[Slot](), peak_bytes(first)
    for slot in sorted(slots, key=price):
        rung = at(dropped | {slot})
        peak = peak_bytes(rung)
        if peak > lowest:
            continue
        dropped, lowest = rung.dropped, peak
        while rungs and rung.seconds <= rungs[-1].seconds and len(rungs) > 1:
            rungs.pop()  # what it cost before is not needed any more
        rungs.append(rung)
    return rungs

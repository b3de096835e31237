"""Plans of a chain in which every segment is either saved whole or run again.

The methods of Chen and of Hong choose where to cut; all of them then save some segments
and run others again. `least_peak` and `least_seconds` are the exact choices under the
tables of a chain, for given cuts or over all of them. What they propose for a fixed
ladder of budgets is simulated, and the answer is taken from what really fits.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from lowtide.planners._chain.chain import Chain, chain_of
from lowtide.step.graph import StepGraph
from lowtide.step.schedule import sequence_from_kept

_MOST_WAYS = 32
_FEW_WAYS = 20
_MOST_CUTS = 600

# A way to reach a cut: from which other way, and whether the segment between is saved.
_WAY = np.dtype(
    [("cut", int), ("kept", int), ("seconds", float), ("before", int), ("saved", int)]
)


@dataclass(frozen=True, slots=True)
class Choice:
    """Cuts of a chain from the first to the last, and which segments are saved.

    `peak_bytes` and `seconds`, the extra time, are those of the tables.
    """

    chain: Chain
    cuts: tuple[int, ...]
    saved: tuple[bool, ...]
    peak_bytes: int
    seconds: float

    @classmethod
    def of(cls, chain: Chain, cuts: Sequence[int], saved: Sequence[bool]) -> Choice:
        """Add up the tables along the choice."""
        kept = peak = 0
        seconds = 0.0
        for at, is_saved in zip(pairwise(cuts), saved, strict=True):
            peaks = chain.saved_peak if is_saved else chain.again_peak
            peak = max(peak, kept + int(peaks[at]))
            kept += int((chain.saved_bytes if is_saved else chain.cut_bytes)[at])
            seconds += 0.0 if is_saved else float(chain.seconds[at])
        return cls(chain, tuple(cuts), tuple(saved), peak, seconds)

    def kept(self) -> frozenset[int]:
        """The storages this choice keeps over the turn."""
        spans = zip(pairwise(self.cuts), self.saved, strict=True)
        whole = [span for span, saved in spans if saved]
        return frozenset(self.chain.kept(self.cuts, whole))


def least_peak(chain: Chain, *, reach: int = _MOST_CUTS) -> Choice:
    """The choice of least peak by the tables; `reach` is the longest segment in cuts.

    From the last cut back: M(i) = min over j of max(kept by (i, j) + M(j), peak(i, j)),
    for saving and for running again.
    """
    count = len(chain)
    least = np.zeros(count, np.int64)
    following = np.zeros(count, np.int64)
    is_saved = np.zeros(count, bool)
    for i in range(count - 2, -1, -1):
        span = slice(i + 1, i + 1 + reach)
        again = chain.cut_bytes[i, span] + least[span]
        again = np.maximum(again, chain.again_peak[i, span])
        saved = chain.saved_bytes[i, span] + least[span]
        saved = np.maximum(saved, chain.saved_peak[i, span])
        both = np.minimum(again, saved)
        best = int(both.argmin())
        least[i] = both[best]
        following[i] = i + 1 + best
        is_saved[i] = saved[best] <= again[best]
    cuts = [0]
    while cuts[-1] < count - 1:
        cuts.append(int(following[cuts[-1]]))
    return Choice.of(chain, cuts, [bool(is_saved[c]) for c in cuts[:-1]])


def least_seconds(
    chain: Chain,
    budget_bytes: int,
    *,
    reach: int = _MOST_CUTS,
    most_ways: int = _MOST_WAYS,
) -> Choice | None:
    """The fastest choice whose peak by the tables is at most the budget, if any.

    Ways (bytes kept, seconds) run from the first cut to the last; at each cut only
    those that no other beats are held, thinned evenly to `most_ways`.
    """
    ways = np.zeros(1 + (len(chain) - 1) * most_ways, _WAY)
    ends = [0, 1]
    for cut in range(1, len(chain)):
        start, end = ends[max(0, cut - reach)], ends[-1]
        found = _extended(chain, ways[start:end], cut, budget_bytes)
        found["before"] += start
        found = _unbeaten(found, most_ways)
        ends.append(end + len(found))
        ways[end : ends[-1]] = found
    if ends[-2] == ends[-1]:
        return None
    at = ends[-2] + int(ways["seconds"][ends[-2] : ends[-1]].argmin())
    cuts = [len(chain) - 1]
    saved: list[bool] = []
    while cuts[-1] > 0:
        saved.append(bool(ways["saved"][at]))
        at = int(ways["before"][at])
        cuts.append(int(ways["cut"][at]))
    return Choice.of(chain, cuts[::-1], saved[::-1])


def _extended(
    chain: Chain, ways: np.ndarray, cut: int, budget_bytes: int
) -> np.ndarray:
    """These ways with one more segment, run again or saved, as far as they fit."""
    start, kept, number = ways["cut"], ways["kept"], np.arange(len(ways))
    again = number[kept + chain.again_peak[start, cut] <= budget_bytes]
    saved = number[kept + chain.saved_peak[start, cut] <= budget_bytes]
    found = np.empty(len(again) + len(saved), _WAY)
    found["cut"] = cut
    found["before"] = both = np.concatenate([again, saved])
    found["kept"] = kept[both]
    found["seconds"] = ways["seconds"][both]
    reruns, saves = found[: len(again)], found[len(again) :]
    reruns["kept"] += chain.cut_bytes[start[again], cut]
    reruns["seconds"] += chain.seconds[start[again], cut]
    saves["kept"] += chain.saved_bytes[start[saved], cut]
    reruns["saved"], saves["saved"] = False, True
    return found


def _unbeaten(ways: np.ndarray, most: int) -> np.ndarray:
    order = np.argsort(ways["kept"], kind="stable")
    fastest = np.minimum.accumulate(ways["seconds"][order])
    better = np.ones(len(order), bool)
    better[1:] = fastest[1:] < fastest[:-1]
    order = order[better]
    if len(order) > most:
        picks = np.linspace(0, len(order) - 1, most).round().astype(int)
        order = order[picks]
    return ways[order]


def ladder(chain: Chain, *, levels: int, reach: int = _MOST_CUTS) -> list[Choice]:
    """The best choices for evenly spaced budgets, from least peak to saving all."""
    lowest = least_peak(chain, reach=reach)
    low, high = lowest.peak_bytes, int(chain.saved_peak[0, -1])
    budgets = [low + (high - low) * level // levels for level in range(levels)]
    choices = [least_seconds(chain, budget, reach=reach) for budget in budgets]
    return [lowest, *filter(None, choices)]


def rich_chain(step: StepGraph, *, max_cuts: int = 192) -> Chain:
    """The chain of the cuts that matter: narrow ones, and those that good choices use.

    A wide place can be worth cutting at too, to drop what lies behind it for little
    time (the inside of an attention). Which ones, a coarse search over all places says.
    """
    every = chain_of(step, max_cuts=_MOST_CUTS)
    if len(every) <= max_cuts:
        return every
    low = least_peak(every).peak_bytes
    high = int(every.saved_peak[0, -1])
    narrow = set(chain_of(step, max_cuts=max_cuts).places)
    used = {cut for cut, place in enumerate(every.places) if place in narrow}
    for percent in (10, 35, 60, 80):
        budget_bytes = low + (high - low) * percent // 100
        choice = least_seconds(every, budget_bytes, most_ways=_FEW_WAYS)
        used.update(choice.cuts if choice else ())
    return every.at(sorted(used))


def num_levels(step: StepGraph) -> int:
    """How many budgets to try: fewer on long steps, where each takes longer."""
    return max(16, min(40, 80_000 // (1 + len(step.ops))))


def sequences_at(chains: Iterable[Chain], levels: int) -> Iterator[list[int]]:
    """Op sequences that cut chains at all their cuts, for this many budgets each."""
    ladders = [ladder(chain, levels=levels, reach=1) for chain in chains]
    return kept_sequences(choice for found in ladders for choice in found)


def kept_sequences(choices: Iterable[Choice]) -> Iterator[list[int]]:
    """Op sequences of the choices that no other beats in bytes and seconds."""
    known: set[frozenset[int]] = set()
    seconds = float("inf")
    for c in sorted(choices, key=lambda c: (c.peak_bytes, c.seconds)):
        if c.seconds < seconds:
            seconds, kept = c.seconds, c.kept()
            if kept not in known:
                known.add(kept)
                yield sequence_from_kept(c.chain.step, kept)

"""Plans of a chain in which every segment is either saved whole or run again.

The methods of Chen and of Hong choose where to cut; all of them then save some segments
and run others again. `least_peak` and `least_seconds` are the exact choices under the
tables of a chain, for given cuts or over all of them; `plan_of_sequences` simulates
what they propose, for a fixed ladder of budgets, and answers from what really fits. The
ladder does not depend on the budget asked for, so a larger budget never gives a slower
plan.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from lowtide.planners._chain import Chain, chain_of
from lowtide.planners._memory import recall
from lowtide.planners._tried import Tried, best_plan
from lowtide.step.graph import StepGraph
from lowtide.step.plan import Plan
from lowtide.step.schedule import sequence_from_kept

_MAX_LABELS = 32
_FEW_LABELS = 20
_MOST_CUTS = 600


@dataclass(frozen=True, slots=True)
class Choice:
    """Cuts from the first to the last, and for each segment whether it is saved."""

    cuts: tuple[int, ...]
    saved: tuple[bool, ...]

    def kept(self, chain: Chain) -> frozenset[int]:
        """The storages this choice keeps over the turn."""
        spans = zip(pairwise(self.cuts), self.saved, strict=True)
        whole = [span for span, saved in spans if saved]
        return frozenset(chain.kept(self.cuts, whole))


def least_peak(chain: Chain, *, reach: int | None = None) -> Choice:
    """The choice of least peak by the tables; `reach` is the longest segment in cuts.

    From the last cut back: M(i) = min over j of max(kept by (i, j) + M(j), peak(i, j)),
    for saving and for running again.
    """
    count = len(chain)
    least = np.zeros(count, np.int64)
    following = np.zeros(count, np.int64)
    is_saved = np.zeros(count, bool)
    for i in range(count - 2, -1, -1):
        span = slice(i + 1, count if reach is None else min(count, i + 1 + reach))
        again = np.maximum(
            chain.cut_bytes[i, span] + least[span], chain.again_peak[i, span]
        )
        saved = np.maximum(
            chain.saved_bytes[i, span] + least[span], chain.saved_peak[i, span]
        )
        both = np.minimum(again, saved)
        best = int(both.argmin())
        least[i] = both[best]
        following[i] = i + 1 + best
        is_saved[i] = saved[best] <= again[best]
    cuts = [0]
    while cuts[-1] < count - 1:
        cuts.append(int(following[cuts[-1]]))
    return Choice(tuple(cuts), tuple(bool(is_saved[c]) for c in cuts[:-1]))


def least_seconds(
    chain: Chain,
    budget_bytes: int,
    *,
    reach: int | None = None,
    max_labels: int = _MAX_LABELS,
) -> Choice | None:
    """The fastest choice whose peak by the tables is at most the budget, if any.

    Labels (bytes kept, seconds) run from the first cut to the last; at each cut only
    those that no other beats are held, thinned evenly to `max_labels`.
    """
    count = len(chain)
    labels = [_Labels.start()]
    for j in range(1, count):
        low = 0 if reach is None else max(0, j - reach)
        reached = _extend(chain, labels, (low, j), budget_bytes)
        labels.append(_unbeaten(reached, max_labels))
    if not len(labels[-1].kept):
        return None
    return _trace(labels, int(labels[-1].seconds.argmin()))


@dataclass(frozen=True, slots=True)
class _Labels:
    """Ways to reach one cut, as columns. `cut`, `row` say which label they extend."""

    kept: np.ndarray
    seconds: np.ndarray
    cut: np.ndarray
    row: np.ndarray
    saved: np.ndarray

    @classmethod
    def start(cls) -> _Labels:
        zero = np.zeros(1, np.int64)
        return cls(zero, np.zeros(1), zero - 1, zero, np.zeros(1, bool))

    def take(self, rows: np.ndarray) -> _Labels:
        return _Labels(
            self.kept[rows],
            self.seconds[rows],
            self.cut[rows],
            self.row[rows],
            self.saved[rows],
        )


def _extend(
    chain: Chain, labels: Sequence[_Labels], span: tuple[int, int], budget: int
) -> _Labels:
    low, j = span
    sources = labels[low:j]
    lengths = [len(source.kept) for source in sources]
    cut = np.repeat(np.arange(low, j), lengths)
    row = np.concatenate([np.arange(n) for n in lengths])
    kept = np.concatenate([source.kept for source in sources])
    seconds = np.concatenate([source.seconds for source in sources])
    again = kept + chain.again_peak[cut, j] <= budget
    saved = kept + chain.saved_peak[cut, j] <= budget
    return _Labels(
        np.concatenate(
            [
                (kept + chain.cut_bytes[cut, j])[again],
                (kept + chain.saved_bytes[cut, j])[saved],
            ]
        ),
        np.concatenate([(seconds + chain.seconds[cut, j])[again], seconds[saved]]),
        np.concatenate([cut[again], cut[saved]]),
        np.concatenate([row[again], row[saved]]),
        np.repeat([False, True], [int(again.sum()), int(saved.sum())]),
    )


def _unbeaten(labels: _Labels, max_labels: int) -> _Labels:
    order = np.argsort(labels.kept, kind="stable")
    fastest = np.minimum.accumulate(labels.seconds[order])
    better = np.ones(len(order), bool)
    better[1:] = fastest[1:] < fastest[:-1]
    order = order[better]
    if len(order) > max_labels:
        picks = np.linspace(0, len(order) - 1, max_labels).round().astype(int)
        order = order[picks]
    return labels.take(order)


def _trace(labels: Sequence[_Labels], row: int) -> Choice:
    cuts = [len(labels) - 1]
    saved: list[bool] = []
    while cuts[-1] > 0:
        here = labels[cuts[-1]]
        saved.append(bool(here.saved[row]))
        cuts.append(int(here.cut[row]))
        row = int(here.row[row])
    return Choice(tuple(reversed(cuts)), tuple(reversed(saved)))


@dataclass(frozen=True, slots=True)
class Candidate:
    """A choice on a chain, with its peak and its extra seconds by the tables."""

    chain: Chain
    choice: Choice
    peak_bytes: int
    seconds: float

    @classmethod
    def of(cls, chain: Chain, choice: Choice) -> Candidate:
        """Add up the tables along the choice."""
        kept = peak = 0
        seconds = 0.0
        for (i, j), saved in zip(pairwise(choice.cuts), choice.saved, strict=True):
            if saved:
                peak = max(peak, kept + int(chain.saved_peak[i, j]))
                kept += int(chain.saved_bytes[i, j])
            else:
                peak = max(peak, kept + int(chain.again_peak[i, j]))
                kept += int(chain.cut_bytes[i, j])
                seconds += float(chain.seconds[i, j])
        return cls(chain, choice, peak, seconds)


def ladder(chain: Chain, *, levels: int, reach: int | None = None) -> list[Candidate]:
    """The best choices for evenly spaced budgets, from least peak to saving all."""
    lowest = Candidate.of(chain, least_peak(chain, reach=reach))
    low, high = lowest.peak_bytes, int(chain.saved_peak[0, -1])
    found = [lowest]
    for level in range(levels):
        choice = least_seconds(chain, low + (high - low) * level // levels, reach=reach)
        if choice is not None:
            found.append(Candidate.of(chain, choice))
    return found


def rich_chain(step: StepGraph, *, max_cuts: int = 192) -> Chain:
    """The chain of the cuts that matter: narrow ones, and those that good choices use.

    A wide place can be worth cutting at too, to drop what lies behind it for little
    time (the inside of an attention). Which ones, a coarse search over all places says.
    """
    every = chain_of(step, max_cuts=_MOST_CUTS)
    if len(every) <= max_cuts:
        return every
    low = Candidate.of(every, least_peak(every)).peak_bytes
    high = int(every.saved_peak[0, -1])
    narrow = set(chain_of(step, max_cuts=max_cuts).places)
    used = {cut for cut, place in enumerate(every.places) if place in narrow}
    for percent in (10, 35, 60, 80):
        budget_bytes = low + (high - low) * percent // 100
        choice = least_seconds(every, budget_bytes, max_labels=_FEW_LABELS)
        used.update(choice.cuts if choice else ())
    return every.at(sorted(used))


def num_levels(step: StepGraph) -> int:
    """How many budgets to try: fewer on long steps, where each takes longer."""
    return max(16, min(40, 80_000 // (1 + len(step.ops))))


def kept_sequences(
    step: StepGraph, candidates: Iterable[Candidate]
) -> Iterator[tuple[int, ...]]:
    """Op sequences of the candidates that no other beats in bytes and seconds."""
    for kept in dict.fromkeys(c.choice.kept(c.chain) for c in _front(candidates)):
        yield tuple(sequence_from_kept(step, kept))


def plan_of_sequences(
    step: StepGraph,
    sequences: Callable[[StepGraph], Iterable[tuple[int, ...]]],
    *,
    planner: str,
    budget_bytes: int | None,
) -> Plan:
    """The fastest of the sequences that fits; that of least peak without a budget.

    Running everything once is always among them. Sequences do not depend on the budget,
    so they are simulated once per step.
    """

    def simulated() -> list[Tried]:
        distinct = dict.fromkeys((step.baseline, *sequences(step)))
        return [Tried.of(step, sequence) for sequence in distinct]

    if budget_bytes is not None and step.baseline_peak_bytes <= budget_bytes:
        tried = [Tried.of(step, step.baseline)]
    else:
        tried = recall(step, planner, simulated)
    return best_plan(step, tried, planner=planner, budget_bytes=budget_bytes)


def _front(candidates: Iterable[Candidate]) -> list[Candidate]:
    """The candidates that no other beats, lowest peak first."""
    front: list[Candidate] = []
    for c in sorted(candidates, key=lambda c: (c.peak_bytes, c.seconds)):
        if not front or c.seconds < front[-1].seconds:
            front.append(c)
    return front

"""mu-TWO's greedy choice of what to recompute.

Problem: bring the peak under a limit by recomputing some of the storages that the
forward makes and the backward reads, for the least time.

Idea:

1. Profile: for each such storage its bytes, its last use in the forward, its first and
   last use in the backward, its sources (the nearest storages before it that are kept)
   and the seconds of the ops in between.
2. Take the storage with the highest recompute ratio: bytes over total recompute
   seconds.
3. Those chosen before that have it as a source now start from its sources, and pay its
   seconds too; it is made once for itself and once for each of them.
4. Those not yet chosen that have it as a source do the same, unless they are first
   needed while it is alive again; and its own sources now count how often they serve.
5. Stop when the simulated peak is under the limit.

A chosen storage is made again just before its first use in the backward and lives to
its last. Only the recompute half of the paper is here: nothing is swapped.

Reference: S. Purandare, A. Wasay, S. Idreos, A. Jain, mu-TWO: 3x faster multi-model
training with orchestration and memory optimization, MLSys 2023.

The paper's simulation subtracts a chosen storage from its last forward use to its first
backward use and does not see what recomputing it needs meanwhile, so a step that is
said to fit may not. The search stops at the paper's limit only if the exact simulator
agrees, and goes on otherwise.

Complexity: quadratic in the candidates, and one simulation for each of up to 150 of
them.

Loses near its lowest peak: what is recomputed from what is recomputed is made again and
again, and a choice that would run five times the step's ops ends the search. Loses too
where storages must go together: it takes one at a time, never reconsiders, adds
up seconds that recomputations share, and does not ask whether a storage is there at the
peak at all.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import takewhile

import numpy as np

from lowtide.planners._lifetimes import Lifetimes
from lowtide.planners._tried import Tried, best_plan
from lowtide.step.graph import StepGraph
from lowtide.step.plan import Plan
from lowtide.step.remake import missing_cone
from lowtide.step.schedule import walk_baseline

# Up to this many choices are simulated one by one; of more, evenly spaced ones, and
# then those around the best.
_MOST_SIMULATED = 150
# A choice that runs this many times the baseline's ops ends the search.
_THRASHING = 5


def plan(
    step: StepGraph, budget_bytes: int | None = None, *, time_limit: float = 10.0
) -> Plan:
    """The greedy's first plan under the budget, or its lowest peak."""
    choices = list(_choices(Profile(step)))
    chosen = None
    if budget_bytes is not None:
        promising = [c for c in choices if c.paper_bytes <= budget_bytes]
        # The paper's simulation is no bound either way: if nothing that it lets pass
        # fits, the choices it holds back are looked at too.
        chosen = _first_that_fits(promising, budget_bytes)
        chosen = chosen or _first_that_fits(choices, budget_bytes)
    tried = [(chosen or _lowest(choices)).tried]
    return best_plan(step, tried, planner="mu_two", budget_bytes=budget_bytes)


def _spaced(choices: Sequence[_Choice]) -> tuple[int, Iterator[int]]:
    """How far apart to look at the choices, and which that are, until they thrash."""
    stride = -(-len(choices) // _MOST_SIMULATED) or 1
    every = range(0, len(choices), stride)
    return stride, takewhile(lambda k: not choices[k].is_thrashing, every)


def _first_that_fits(choices: Sequence[_Choice], budget_bytes: int) -> _Choice | None:
    stride, looked_at = _spaced(choices)
    for k in looked_at:
        if choices[k].tried.peak_bytes <= budget_bytes:
            near = choices[max(0, k - stride + 1) : k + 1]
            return next(c for c in near if c.tried.peak_bytes <= budget_bytes)
    return None


def _lowest(choices: Sequence[_Choice]) -> _Choice:
    def rank(k: int) -> tuple[int, float]:
        return choices[k].tried.peak_bytes, choices[k].tried.seconds

    stride, looked_at = _spaced(choices)
    best = min(looked_at, key=rank, default=0)
    near = range(max(0, best - stride + 1), min(len(choices), best + stride))
    return choices[min((k for k in near if not choices[k].is_thrashing), key=rank)]


@dataclass(slots=True)
class Recomputable:
    """A storage that may be recomputed, with the paper's statistics.

    Accesses are positions in the baseline. `recompute_seconds` makes it once from its
    sources; `total_seconds` is what choosing it adds to the step.
    """

    storage: int
    nbytes: int
    last_forward_access: int
    first_backward_access: int
    last_backward_access: int
    sources: frozenset[int]
    recompute_seconds: float
    total_seconds: float

    @property
    def ratio(self) -> float:
        """Bytes over the seconds they cost: the recompute ratio."""
        if self.total_seconds <= 0:
            return float("inf")
        return self.nbytes / self.total_seconds


class Profile:
    """What the greedy knows of a step (Algorithm A of the paper)."""

    def __init__(self, step: StepGraph) -> None:
        self.step = step
        life = Lifetimes(step)
        self.turn_place = len(life.forward)
        self.near = life.pinned.union(step.resident, life.last_backward)
        self.recomputable: dict[int, Recomputable] = {}
        for s in sorted(life.last_backward.keys() - life.pinned):
            # The nearest kept storages it can be made from, and the seconds that takes.
            ops = [step.ops[i] for i in missing_cone(step, [s], self.near - {s})]
            seconds = sum(op.seconds for op in ops)
            self.recomputable[s] = Recomputable(
                s,
                step.sizes[s],
                life.last_forward[s],
                self.turn_place + life.first_backward[s],
                self.turn_place + life.last_backward[s],
                self.near.intersection(r for op in ops for r in op.reads),
                seconds,
                seconds,
            )


@dataclass(frozen=True)
class _Choice:
    """The greedy after some steps: the paper's peak, and the exact one on demand."""

    profile: Profile
    chosen: frozenset[int]
    paper_bytes: int

    @cached_property
    def is_thrashing(self) -> bool:
        """Whether it runs too many ops to be worth a look."""
        most = _THRASHING * len(self.profile.step.baseline)
        return len(recompute_late(self.profile, self.chosen, most=most)) > most

    @cached_property
    def tried(self) -> Tried:
        return Tried.of(self.profile.step, recompute_late(self.profile, self.chosen))


def _choices(profile: Profile) -> Iterator[_Choice]:
    """The greedy's choices, from nothing recomputed to everything."""
    remaining = {s: replace(c) for s, c in profile.recomputable.items()}
    chosen: dict[int, Recomputable] = {}
    # What Algorithm G starts from.
    live = np.array(walk_baseline(profile.step).live_bytes, np.int64)
    yield _Choice(profile, frozenset(), int(live.max(initial=0)))
    while remaining:
        best = max(remaining.values(), key=lambda c: (c.ratio, c.nbytes, -c.storage))
        del remaining[best.storage]
        count = _update_chosen(chosen.values(), best)
        chosen[best.storage] = best
        _update_remaining(remaining.values(), best, count, chosen.values())
        live[best.last_forward_access + 1 : best.first_backward_access] -= best.nbytes
        yield _Choice(profile, frozenset(chosen), int(live.max()))


def _update_chosen(chosen: Iterable[Recomputable], best: Recomputable) -> int:
    """Let those made from `best` start at its sources; how often it is made (E)."""
    count = 1
    for other in chosen:
        if best.storage in other.sources:
            other.sources = other.sources - {best.storage} | best.sources
            other.recompute_seconds += best.recompute_seconds
            count += 1
    return count


def _update_remaining(
    remaining: Iterable[Recomputable],
    best: Recomputable,
    count: int,
    chosen: Iterable[Recomputable],
) -> None:
    """Bring sources, seconds and counts of the open candidates up to date (F)."""
    for other in remaining:
        if best.storage in other.sources:
            first = other.first_backward_access
            if best.first_backward_access <= first <= best.last_backward_access:
                continue  # It will be alive again just then.
            other.sources = other.sources - {best.storage} | best.sources
            other.recompute_seconds += best.recompute_seconds
            serves = sum(other.storage in c.sources for c in chosen)
            other.total_seconds = other.recompute_seconds * (1 + serves)
        if other.storage in best.sources:
            other.total_seconds = count * other.recompute_seconds


def recompute_late(
    profile: Profile, chosen: frozenset[int], *, most: float = float("inf")
) -> list[int]:
    """The op sequence that makes each chosen storage at its first backward use.

    It then lives to its last use. Whatever else has to be made on the way there lives
    only as long as that takes, and is made again the next time. A sequence longer than
    `most` is broken off.
    """
    step = profile.step
    alive = set(profile.near - chosen)
    until = {s: profile.recomputable[s].last_backward_access for s in chosen}
    ending: dict[int, list[int]] = defaultdict(list)
    for s, position in until.items():
        ending[position].append(s)
    sequence: list[int] = []
    for position, number in enumerate(step.baseline):
        op = step.ops[number]
        if position > profile.turn_place and op.opens < 0:
            missing = [s for s in op.reads if s in until and s not in alive]
            if missing:
                sequence += missing_cone(step, missing, alive)
                for s in missing:
                    writes = step.ops[step.remakers[s]].writes
                    alive.update(w for w in writes if until.get(w, -1) >= position)
        sequence.append(number)
        alive.difference_update(ending[position])
        if len(sequence) > most:
            break
    return sequence

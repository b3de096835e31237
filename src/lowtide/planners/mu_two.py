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
said to fit may not. `simulation="paper"` (the default) stops at the paper's limit only
if the exact simulator agrees, and goes on otherwise. `simulation="exact"` steers by the
exact simulator as well: the next storage is the best of those that are held, unused,
while the exact peak is reached.

Complexity: quadratic in the candidates, and one simulation for each of up to 150 of
them.

Loses near its lowest peak: what is recomputed from what is recomputed is made again and
again, and a choice that would run five times the step's ops ends the search. Loses too
where storages must go together: it takes one at a time, never reconsiders, adds
up seconds that recomputations share, and in its default form does not ask whether a
storage is there at the peak at all.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Literal, NamedTuple

from lowtide.step.graph import StepGraph
from lowtide.step.plan import Plan, Run, Schedule
from lowtide.step.schedule import (
    make_plan,
    must_keep,
    plan_or_raise,
    saved_by_baseline,
    with_frees,
)
from lowtide.step.simulate import LiveBytes, simulate

Simulation = Literal["paper", "exact"]


def plan(
    step: StepGraph,
    budget_bytes: int | None = None,
    *,
    time_limit: float = 10.0,
    simulation: Simulation = "paper",
) -> Plan:
    """The greedy's first plan under the budget, or its lowest peak."""
    del time_limit
    if step.turn < 0:
        return plan_or_raise(
            step,
            with_frees(step, step.baseline),
            planner="mu_two",
            budget_bytes=budget_bytes,
        )
    points = list(_points(Profile(step), simulation))
    if budget_bytes is not None:
        promising = points
        if simulation == "paper":
            promising = [p for p in points if p.paper_bytes <= budget_bytes]
        # The paper's simulation is no bound either way: if nothing that it lets pass
        # fits, the choices it holds back are looked at too.
        for some in (promising, points):
            fitting = _first_that_fits(some, budget_bytes)
            if fitting is not None:
                return make_plan(
                    step, fitting.schedule, planner="mu_two", budget_bytes=budget_bytes
                )
    lowest = _lowest(points)
    return plan_or_raise(
        step, lowest.schedule, planner="mu_two", budget_bytes=budget_bytes
    )


# Up to this many choices are simulated one by one; of more, every so-manieth, and then
# those around the best.
_MOST_POINTS = 150
# A choice that runs this many times the baseline's ops ends the search.
_THRASHING = 5


def _first_that_fits(points: Sequence[_Point], budget_bytes: int) -> _Point | None:
    stride = -(-len(points) // _MOST_POINTS)
    for start in range(0, len(points), stride or 1):
        if points[start].is_thrashing:
            break
        if points[start].exact.peak_bytes <= budget_bytes:
            near = points[max(0, start - stride + 1) : start + 1]
            return next(p for p in near if p.exact.peak_bytes <= budget_bytes)
    return None


def _lowest(points: Sequence[_Point]) -> _Point:
    def rank(k: int) -> tuple[int, float]:
        return points[k].exact[:2]

    stride = -(-len(points) // _MOST_POINTS)
    best = 0
    for k in range(0, len(points), stride):
        if points[k].is_thrashing:
            break
        best = min(best, k, key=rank)
    near = range(max(0, best - stride + 1), min(len(points), best + stride))
    return points[min((k for k in near if not points[k].is_thrashing), key=rank)]


@dataclass(slots=True)
class Candidate:
    """A storage that may be recomputed, with the paper's statistics.

    Accesses are positions in the baseline. `recompute_seconds` makes it once from its
    sources; `total_seconds` is what choosing it adds to the step.
    """

    storage: int
    nbytes: int
    last_forward_access: int
    first_backward_access: int
    last_backward_access: int
    inactive_seconds: float
    sources: frozenset[int]
    recompute_seconds: float
    total_seconds: float = 0.0

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
        place = step.baseline.index(step.turn)
        self.turn_place = place
        self.saved = frozenset(saved_by_baseline(step))
        self.fixed = must_keep(step).union(step.resident, step.outputs)
        accesses: dict[int, list[int]] = {}
        for position, number in enumerate(step.baseline):
            op = step.ops[number]
            for s in (*op.reads, *op.writes):
                accesses.setdefault(s, []).append(position)
        clock = [0.0]
        for number in step.baseline:
            clock.append(clock[-1] + step.ops[number].seconds)
        self.candidates: dict[int, Candidate] = {}
        for s in sorted(self.saved - self.fixed):
            forward = max(p for p in accesses[s] if p <= place)
            backward = [p for p in accesses[s] if p > place]
            sources, seconds = self._sources(s)
            self.candidates[s] = Candidate(
                s,
                step.sizes[s],
                forward,
                backward[0],
                backward[-1],
                clock[backward[0]] - clock[forward + 1],
                sources,
                seconds,
                seconds,
            )

    def _sources(self, storage: int) -> tuple[frozenset[int], float]:
        """The nearest kept storages it can be made from, and the seconds that takes."""
        step = self.step
        ops: set[int] = set()
        sources: set[int] = set()
        stack = [storage]
        while stack:
            number = step.remakers[stack.pop()]
            if number in ops:
                continue
            ops.add(number)
            for s in step.ops[number].reads:
                if s in self.fixed or s in self.saved:
                    sources.add(s)
                else:
                    stack.append(s)
        return frozenset(sources), sum(step.ops[i].seconds for i in sorted(ops))


@dataclass(frozen=True)
class _Point:
    """The greedy after some choices: the paper's peak, and the exact one on demand."""

    profile: Profile
    chosen: frozenset[int]
    paper_bytes: int

    @property
    def schedule(self) -> Schedule:
        sequence = recompute_late(self.profile, self.chosen)
        return with_frees(self.profile.step, sequence)

    @cached_property
    def is_thrashing(self) -> bool:
        """Whether it runs too many ops to be worth a look."""
        most = _THRASHING * len(self.profile.step.baseline)
        return len(recompute_late(self.profile, self.chosen, most=most)) > most

    @cached_property
    def exact(self) -> _Exact:
        step, schedule = self.profile.step, self.schedule
        timeline = simulate(step, schedule)
        seen: set[int] = set()
        for item in schedule[: timeline.peak_index + 1]:
            if type(item) is Run and not step.ops[item.op].standby:
                seen.add(item.op)
        item = schedule[timeline.peak_index]
        runs_again = type(item) is Run and item.op != step.baseline[len(seen) - 1]
        place = min(len(seen) - 1 + runs_again, len(step.baseline) - 1)
        return _Exact(timeline.peak_bytes, timeline.seconds, place)


class _Exact(NamedTuple):
    """Peak, time, and the position of the baseline's op that runs or is served then."""

    peak_bytes: int
    seconds: float
    peak_place: int


def _points(profile: Profile, simulation: Simulation) -> Iterator[_Point]:
    """The greedy's states, from nothing chosen to everything."""
    remaining = {s: replace(c) for s, c in profile.candidates.items()}
    chosen: dict[int, Candidate] = {}
    live = _baseline_live(profile.step)
    point = _Point(profile, frozenset(), live.peak_bytes)
    yield point
    stride = -(-len(remaining) // _MOST_POINTS)
    peak = 0
    while remaining:
        pool: Iterable[Candidate] = remaining.values()
        if simulation == "exact":
            if len(chosen) % stride == 0:
                if point.is_thrashing:
                    return
                peak = point.exact.peak_place
            pool = [
                c
                for c in pool
                if c.last_forward_access < peak < c.first_backward_access
            ] or pool
        best = max(pool, key=lambda c: (c.ratio, c.nbytes, -c.storage))
        del remaining[best.storage]
        count = _update_chosen(chosen.values(), best)
        chosen[best.storage] = best
        _update_remaining(remaining.values(), best, count, chosen.values())
        start, stop = best.last_forward_access + 1, best.first_backward_access
        live.add(start, stop, -best.nbytes)
        point = _Point(profile, frozenset(chosen), live.peak_bytes)
        yield point


def _update_chosen(chosen: Iterable[Candidate], best: Candidate) -> int:
    """Let those made from `best` start at its sources; how often it is made (E)."""
    count = 1
    for other in chosen:
        if best.storage in other.sources:
            other.sources = other.sources - {best.storage} | best.sources
            other.recompute_seconds += best.recompute_seconds
            count += 1
    return count


def _update_remaining(
    remaining: Iterable[Candidate],
    best: Candidate,
    count: int,
    chosen: Iterable[Candidate],
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


def _baseline_live(step: StepGraph) -> LiveBytes:
    """Live bytes at each op of the baseline (what G starts from)."""
    schedule = with_frees(step, step.baseline)
    live = simulate(step, schedule).live_bytes
    return LiveBytes(
        [b for b, item in zip(live, schedule, strict=True) if type(item) is Run]
    )


def recompute_late(
    profile: Profile, chosen: frozenset[int], *, most: float = float("inf")
) -> list[int]:
    """The op sequence that makes each chosen storage at its first backward use.

    It then lives to its last use. Whatever else has to be made on the way there lives
    only as long as that takes, and is made again the next time. A sequence longer than
    `most` is broken off.
    """
    step = profile.step
    held = profile.fixed.union(profile.saved) - chosen
    until = {s: profile.candidates[s].last_backward_access for s in chosen}
    alive: dict[int, int] = {}
    sequence: list[int] = []
    for position, number in enumerate(step.baseline):
        op = step.ops[number]
        if position > profile.turn_place and op.opens < 0:
            missing = [
                s for s in op.reads if s in until and alive.get(s, -1) < position
            ]
            if missing:
                alive = {s: last for s, last in alive.items() if last >= position}
                sequence += _cone(step, missing, held, alive)
                for s in missing:
                    for made in step.ops[step.remakers[s]].writes:
                        if made in until:
                            alive[made] = until[made]
        sequence.append(number)
        if len(sequence) > most:
            break
    return sequence


def _cone(
    step: StepGraph,
    needed: Iterable[int],
    held: frozenset[int],
    alive: Mapping[int, int],
) -> list[int]:
    """Ops that make what is needed from what is there, in baseline order."""
    ops: set[int] = set()
    stack = list(needed)
    while stack:
        number = step.remakers[stack.pop()]
        if number not in ops:
            ops.add(number)
            stack.extend(
                s for s in step.ops[number].reads if s not in held and s not in alive
            )
    return sorted(ops)

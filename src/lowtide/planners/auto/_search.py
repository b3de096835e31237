"""The order in which the parts of the search run, and what they leave behind."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from functools import cached_property

import numpy as np

from lowtide.errors import BudgetTooSmallError
from lowtide.planners._memory import recall
from lowtide.planners.auto._effort import Effort
from lowtide.planners.auto._evaluator import Draft
from lowtide.planners.auto._exact import ExactSearch
from lowtide.planners.auto._floor import HEAT, deepen, descend, peak_bound_bytes, sink
from lowtide.planners.auto._guide import guided
from lowtide.planners.auto._others import SMALL_OPS, other_plans
from lowtide.planners.auto._problem import Problem, outputs_late
from lowtide.planners.auto._prove import bound_seconds, promising, refined_seconds
from lowtide.step.graph import StepGraph
from lowtide.step.plan import Plan, Proof
from lowtide.step.schedule import blame, make_plan, with_frees

# Budgets, as shares of the span above residents, from which plans are raised again: the
# detour through a lower peak often ends in a faster plan.
DETOURS = (1.0, 0.96, 0.91, 0.85, 0.78)
# While it is lowered a draft may be slower than the best plan by this share of the
# baseline's time: leaving out what is not needed may win it back.
WORTH_RAISING = 0.01
GUIDED_OPS = 30_000
LARGE_OPS = 10_000
# Seconds per op that a first plan may take, if the time limit is shorter.
FIRST_PLAN_SECONDS = 0.0015
# Steps on which the optimum itself is looked for.
EXACT_OPS = 60
MOST_STATES = 100_000
# A plan this near its bound, as a share of the baseline's time, is not improved.
CLOSE_ENOUGH = 2e-4
# A small step is not searched for longer than this, or than this for the fourth power
# of the number of its ops: nothing more is found.
SMALL_SECONDS = 0.3
FOURTH_POWER_SECONDS = 1.2e-8
FIFTH_POWER_SECONDS = 1.1e-10  # the same for proving that there is nothing more
# What is left between plan and bound, as a share of the baseline's time, for which
# larger programs are solved; what share of the search they get; and up to how many ops
# they are solved in whole numbers.
WORTH_REFINING = 0.04
REFINED_SHARE = 0.35
WHOLE_OPS = 500
WORTH_DESCENDING = 0.1  # the same, for which plans of larger steps come from above
SLICES = 40  # how often the search looks at the clock and notes what it has found

# The lowest peak is asked for by error messages and sweeps: nobody should wait long.
FLOOR_SECONDS = 12.0
FLOOR_PER_SECOND = 1.2  # if less: seconds for it for each that a search is given


class Search:
    """One search on one step."""

    def __init__(
        self,
        step: StepGraph,
        time_limit: float,
        *,
        clock: Callable[[], float] = time.thread_time,
        problem: Problem | None = None,
    ) -> None:
        self.step = step
        self.problem = problem or Problem(step)
        self.evaluator = self.problem.evaluator
        self.exact_seconds = 0.4 * time_limit
        self.floor_seconds = floor_seconds(time_limit)
        enough = max(SMALL_SECONDS, FOURTH_POWER_SECONDS * len(step.ops) ** 4)
        self.effort = Effort(self.evaluator, min(time_limit, enough), clock=clock)
        self.refine_seconds = min(
            0.5 * time_limit,
            max(0.0, time_limit - enough),
            FIFTH_POWER_SECONDS * len(step.ops) ** 5,
        )
        given = self.evaluator.draft(self.problem.baseline)
        self.problem.baseline = outputs_late(self.problem)
        self.base = self.evaluator.draft(self.problem.baseline)
        self.drafts: list[Draft] = []
        self.found_by_others: list[tuple[int, ...]] = []
        self.history: list[tuple[float, float]] = []
        self.moments: Counter[int] = Counter()
        self.chosen: list[int] = []  # the moments of the bound
        self.proven = 0.0
        self.proven_bytes = 0.0
        self.budget = 0.0
        self.is_interrupted = False
        self.is_large = len(step.ops) > WHOLE_OPS
        self.offer(given)
        self.offer(self.base)

    @cached_property
    def needed_seconds(self) -> float:
        """Time of the ops that every schedule runs at least once."""
        return sum(self.problem.seconds[i] for i in sorted(self.problem.must_run))

    def offer(self, draft: Draft) -> None:
        """Keep a draft unless a known one is as low and as fast."""
        for known in self.drafts:
            if known.peak_bytes <= draft.peak_bytes and known.seconds <= draft.seconds:
                return
        self.drafts = [
            known
            for known in self.drafts
            if known.peak_bytes < draft.peak_bytes or known.seconds < draft.seconds
        ]
        self.drafts.append(draft)
        least = self.history[-1][1] if self.history else np.inf
        if draft.peak_bytes <= self.budget and draft.seconds < least:
            self.history.append((self.effort.elapsed_seconds, draft.seconds))

    def best(self) -> Draft | None:
        """The fastest known draft within the budget."""
        fitting = [d for d in self.drafts if d.peak_bytes <= self.budget]
        return min(fitting, key=lambda d: (d.seconds, d.peak_bytes), default=None)

    def _fastest(self) -> Draft:
        best = self.best()
        assert best is not None
        return best

    @contextmanager
    def until_interrupted(self) -> Iterator[None]:
        """What was found when the user interrupts this block is what is used."""
        try:
            yield
        except KeyboardInterrupt:
            self.is_interrupted = True

    def lowest(self) -> Plan:
        """The plan with the lowest peak found."""
        with self.until_interrupted():
            with self.effort.section(0.5):
                sink(self.problem, self.base, self.effort, offer=self.offer)
            self.others(None)
            self._sink_from_others()
            self._sink_exactly()
            if not self.proven_bytes:
                lowest = min(self.drafts, key=lambda d: (d.peak_bytes, d.seconds))
                with self.effort.section(0.7):
                    deepen(self.problem, lowest, self.effort, offer=self.offer)
        draft = min(self.drafts, key=lambda d: (d.peak_bytes, d.seconds))
        draft = self.raise_up(draft, draft.peak_bytes)
        return self.plan(draft, None)

    def fastest(self, budget_bytes: int) -> Plan:
        """The fastest plan within the budget."""
        self.budget = float(budget_bytes)
        with self.until_interrupted():
            self._search(budget_bytes)
        draft = self.best()
        if draft is None:
            if self.is_interrupted:
                raise KeyboardInterrupt
            # The same floor that is found when it is asked for.
            floor = lowest(self.step)
            raise BudgetTooSmallError(
                budget_bytes,
                floor.peak_bytes,
                blame(self.step, floor.schedule),
                floor.proof.bound_bytes,
            )
        return self.plan(draft, budget_bytes)

    def _search(self, budget_bytes: int) -> None:
        if self.base.peak_bytes <= self.budget:
            self.proven = self.base.seconds if self._baseline_is_least() else 0.0
            return
        if self.solve_exactly():
            return
        # On a very large step the first program takes most of the time there is.
        large = len(self.step.ops) > LARGE_OPS
        with self.effort.section(0.9 if large else 0.4):
            self.begin()
            is_cut_short = self.effort.is_over()
        if self.best() is None and self.is_large and not is_cut_short:
            # Near the lowest peak nothing that begins elsewhere comes down to it.
            self._take_lowest()
        with self.effort.section(0.4):
            self.others(budget_bytes)
        if self.best() is None:
            self._insist()
        if self.best() is None:
            self._take_lowest()
        best = self.best()
        if best is None:
            return
        self.offer(self.raise_up(best))
        if self.is_close():
            return
        if self._unproven() >= WORTH_DESCENDING and self.is_large:
            given = self.problem, self._fastest(), self.budget, self.effort
            descend(*given, offer=self.offer)
        # Where much is not proven, a part of the time is for that.
        is_far = self._unproven() >= WORTH_REFINING
        leave = REFINED_SHARE if is_far and not self.refine_seconds else 0.0
        with self.effort.section(1.0 - leave):
            self.improve()
        self.refine()

    def _take_lowest(self) -> None:
        """Start from the lowest peak found."""
        # A short search takes a short look first; errors quote what the long one finds.
        for seconds in dict.fromkeys((self.floor_seconds, FLOOR_SECONDS)):
            if self.best() is None:
                floor = lowest(self.step, seconds)
                self.offer(self.evaluator.draft(floor.ops))

    def _insist(self) -> None:
        """Look for a first plan beyond the time limit.

        On a large step a short limit may end before the first start has come to its
        end; a plan that is late is better than an error that is wrong.
        """
        if self.budget < peak_bound_bytes(self.problem):
            return
        with self.effort.aside(FIRST_PLAN_SECONDS * len(self.step.ops)):
            self.guide(1.0)
            if self.best() is None:
                self.greedy(1.0)

    def begin(self) -> None:
        """Starts of our own: guided and evicted, straight and by way of less room."""
        for share in DETOURS:
            if self.effort.is_over():
                break
            self.guide(share)
            if share == 1.0:
                self.prove(0.1)
            self.greedy(share)
            if self.is_close():
                return
            if self.best() is None and self.is_large:
                return  # what does not fit goes no lower either
        self.prove(0.4)

    def _baseline_is_least(self) -> bool:
        return self.base.seconds <= self.needed_seconds * (1 + 1e-12)

    def solve_exactly(self) -> bool:
        """Find the optimum of a small step; True if nothing is left to do."""
        if len(self.step.ops) > EXACT_OPS:
            return False
        exact = ExactSearch(self.problem, self.budget)
        with self.effort.aside(self.exact_seconds):
            found = exact.run(self.effort, most_states=MOST_STATES)
        self.proven = max(self.proven, found.bound_seconds)
        if found.sequence is not None:
            self.offer(self.evaluator.draft(found.sequence))
            return True
        return not found.is_feasible

    def _sink_exactly(self) -> None:
        """Lower the peak of a small step until it is proven the lowest."""
        if len(self.step.ops) > EXACT_OPS:
            return
        with self.effort.aside(self.exact_seconds):
            while not self.effort.is_over() and not self.proven_bytes:
                lowest = min(d.peak_bytes for d in self.drafts)
                exact = ExactSearch(self.problem, lowest - 1.0)
                found = exact.run(self.effort, most_states=MOST_STATES)
                self.proven_bytes = 0.0 if found.is_feasible else lowest
                if found.sequence is None:
                    break
                self.offer(self.evaluator.draft(found.sequence))

    def prove(self, share: float) -> None:
        """Raise the proven bound by linear programs, for this share of what is left."""
        if self.step.turn < 0 or len(self.step.ops) > GUIDED_OPS:
            return
        with self.effort.section(share):
            given = self.problem, self.budget, self._moments(), self.effort
            found, moments = bound_seconds(*given)
        if found > self.proven:
            self.proven, self.chosen = found, moments

    def refine(self) -> None:
        """Raise the bound by larger programs where it leaves much open."""
        is_far = self._unproven() >= WORTH_REFINING
        if self.step.turn < 0 or len(self.step.ops) > GUIDED_OPS or not is_far:
            return
        given = self.problem, self.budget, self._moments(), self.effort
        moments = self.chosen or [self.step.turn]
        with self.effort.aside(self.refine_seconds + self.effort.seconds_left()):
            for whole in (False,) if self.is_large else (False, True):
                is_last = whole or self.is_large
                with self.effort.section(1.0 if is_last else 0.4):
                    found, moments = refined_seconds(
                        *given, moments=moments, whole=whole
                    )
                self.proven = max(self.proven, found)

    def _unproven(self) -> float:
        """The best draft's time that is not proven necessary, as a share; or nan."""
        best = self.best()
        if best is None:
            return np.nan
        open_seconds = best.seconds - max(self.proven, self.needed_seconds)
        return open_seconds / max(self.step.baseline_seconds, 1e-30)

    def is_close(self) -> bool:
        """Whether the best draft is within `CLOSE_ENOUGH` of the bound."""
        return self._unproven() <= CLOSE_ENOUGH

    def guide(self, share: float) -> None:
        """Start from what a linear program would hold at the turn and at the peaks."""
        if self.step.turn < 0 or len(self.step.ops) > GUIDED_OPS:
            return
        found: list[Draft] = []
        given = self.problem, self._target(share), self.effort
        moments = guided(*given, offer=found.append, first_moment=self.step.turn)
        self.moments.update(moments)
        # The last knows most moments; once it fits, the others are soon given up.
        for draft in reversed(found):
            self.settle(draft, self.budget)

    def greedy(self, share: float) -> None:
        """Evict from the baseline, once also with ops in better places."""
        target = self._target(share)
        self.settle(self.base, target)
        if share == 1.0:
            with self.effort.section(0.1):
                units = self.effort.limit_units
                reordered = self.evaluator.reorder(self.base, target, units)
            self.settle(reordered, target)

    def _target(self, share: float) -> float:
        resident = self.problem.resident_bytes
        return resident + share * (self.budget - resident)

    def settle(self, draft: Draft, target: float) -> None:
        """Make a draft fit, use all of the budget, and offer it."""
        best = self.best()
        limit = np.inf if best is None else best.seconds
        limit += WORTH_RAISING * self.step.baseline_seconds
        units = self.effort.limit_units
        draft = self.evaluator.lower(draft, target, units, limit_seconds=limit)
        self.offer(draft)
        if draft.peak_bytes <= self.budget:
            self.offer(self.raise_up(draft))

    def raise_up(self, draft: Draft, budget: float | None = None) -> Draft:
        """The draft without the recomputations that the budget does not need."""
        budget = self.budget if budget is None else budget
        return self.evaluator.raise_up(draft, budget, self.effort.limit_units)

    def improve(self, *, goal: float = 0.0) -> None:
        """Offer ever better drafts until the effort is spent, or bound or goal met."""
        current = best = self._fastest()
        share = HEAT + 0.5 / len(self.step.ops)
        for k in range(SLICES):
            if self.effort.is_over():
                return
            heat = share * self.step.baseline_seconds * (1.0 - k / SLICES)
            with self.effort.section(1.0 / (SLICES - k)):
                units = self.effort.limit_units
                found, current = self.evaluator.improve(
                    best, current, self.budget, heat, units
                )
            if found is not best:
                best = found
                self.offer(best)
                if self.is_close() or best.seconds <= goal:
                    return

    def _sink_from_others(self) -> None:
        """Evict from the lowest plan of another planner.

        Plans of whole blocks recompute in an order that single evictions do not find.
        """
        starts = [self.evaluator.draft(ops) for ops in self.found_by_others]
        if starts:
            start = min(starts, key=lambda d: (d.peak_bytes, d.seconds))
            best = min(self.drafts, key=lambda d: d.peak_bytes)
            sink(self.problem, start, self.effort, offer=self.offer, best=best)

    def others(self, budget_bytes: int | None) -> None:
        """Start from what other planners find."""
        gap = np.inf if self.best() is None else self._unproven()
        starts = other_plans(self.problem, budget_bytes, self.effort, gap=gap)
        # On a small step they would take all the effort there is.
        is_small = len(self.step.ops) <= SMALL_OPS
        with self.effort.aside(1.0) if is_small else nullcontext():
            for sequence in starts:
                self.found_by_others.append(sequence)
                draft = self.evaluator.draft(sequence)
                self.offer(draft)
                if budget_bytes is None:
                    continue
                if draft.peak_bytes > self.budget:
                    # However slow that gets: such plans recompute whole blocks, much of
                    # it for nothing.
                    units = self.effort.limit_units
                    draft = self.evaluator.lower(draft, self.budget, units)
                if draft.peak_bytes <= self.budget:
                    self.offer(self.raise_up(draft))

    def _moments(self) -> list[int]:
        draft = self.best() or min(self.drafts, key=lambda d: d.peak_bytes)
        noted = [number for number, _ in self.moments.most_common(6)]
        return promising(self.problem, draft, noted)

    def plan(self, draft: Draft, budget: int | None) -> Plan:
        """The plan of a draft, with what is proven about it."""
        stopped = self.effort.stopped_by or "search"
        if self.is_interrupted:
            stopped = "interrupted"
        schedule = with_frees(self.step, draft.ops)
        bound = max(self.needed_seconds, 0.0 if budget is None else self.proven)
        bound = min(bound, draft.seconds)
        if budget is not None and bound >= draft.seconds * (1 - 1e-12):
            stopped = "optimal"
        proof = Proof(
            bound_seconds=bound,
            gap=1.0 - bound / draft.seconds if draft.seconds > 0 else 0.0,
            stopped_by=stopped,
            bound_bytes=int(max(self.proven_bytes, peak_bound_bytes(self.problem))),
            search_seconds=self.effort.elapsed_seconds,
            history=tuple(self.history),
        )
        return make_plan(
            self.step, schedule, planner="auto", budget_bytes=budget, proof=proof
        )


def floor_seconds(time_limit: float) -> float:
    """How long to look for the lowest peak in a search of this limit."""
    return min(FLOOR_SECONDS, FLOOR_PER_SECOND * time_limit)


def lowest(step: StepGraph, seconds: float | None = None) -> Plan:
    """The plan with the lowest peak found in a few seconds, once for each step."""
    given = FLOOR_SECONDS if seconds is None else seconds
    return recall(
        step,
        ("the lowest peak of auto", given),
        lambda: Search(step, given).lowest(),
        is_final=lambda plan: plan.proof.stopped_by != "interrupted",
    )

"""The order in which the parts of the search run, and what they leave behind."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Sequence
from functools import cached_property

import numpy as np

from lowtide.errors import BudgetTooSmallError
from lowtide.planners._memory import recall
from lowtide.planners.auto._bound import ancestors, bound_seconds, must_run
from lowtide.planners.auto._draft import Draft
from lowtide.planners.auto._effort import Effort
from lowtide.planners.auto._exact import ExactSearch
from lowtide.planners.auto._floor import peak_bound_bytes, sink
from lowtide.planners.auto._greedy import Options, lower
from lowtide.planners.auto._guide import guided, worst_moment
from lowtide.planners.auto._improve import improve
from lowtide.planners.auto._keep import raise_up
from lowtide.planners.auto._order import outputs_late
from lowtide.planners.auto._others import other_plans
from lowtide.planners.auto._problem import Problem
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
# Seconds per op that a first plan may take, if the time limit is shorter.
FIRST_PLAN_SECONDS = 0.0015
# Steps on which the optimum itself is looked for.
EXACT_OPS = 60
MOST_STATES = 100_000
# A plan this near its bound, as a share of the baseline's time, is not improved.
CLOSE_ENOUGH = 2e-4

# The floor is asked for by error messages and sweeps: nobody should wait long for it.
FLOOR_SECONDS = 12.0


class Search:
    """One search on one step."""

    def __init__(
        self,
        step: StepGraph,
        time_limit: float,
        *,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        self.step = step
        self.problem = Problem(step)
        self.effort = Effort(self.problem, time_limit, clock=clock)
        given = Draft(self.problem, self.problem.baseline)
        self.problem.baseline = outputs_late(self.problem)
        self.base = Draft(self.problem, self.problem.baseline)
        self.drafts: list[Draft] = []
        self.found_by_others: list[tuple[int, ...]] = []
        self.history: list[tuple[float, float]] = []
        self.moments: Counter[int] = Counter()
        self.proven = 0.0
        self.proven_bytes = 0.0
        self.proved: set[tuple[float, ...]] = set()
        self.budget = 0.0
        self.offer(given)
        self.offer(self.base)

    @cached_property
    def needed_seconds(self) -> float:
        """Time of the ops that every schedule runs at least once."""
        return sum(self.problem.seconds[i] for i in sorted(self.must))

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
        if draft.peak_bytes <= self.budget:
            self.history.append((self.effort.elapsed_seconds, draft.seconds))

    def best(self) -> Draft | None:
        """The fastest known draft within the budget."""
        fitting = [d for d in self.drafts if d.peak_bytes <= self.budget]
        return min(fitting, key=lambda d: (d.seconds, d.peak_bytes), default=None)

    def lowest(self) -> Plan:
        """The plan with the lowest peak found."""
        stopped = "search"
        try:
            with self.effort.section(0.5):
                self.sink()
            self.others(None)
            self._sink_from_others()
            self._sink_exactly()
        except KeyboardInterrupt:
            stopped = "interrupted"
        draft = min(self.drafts, key=lambda d: (d.peak_bytes, d.seconds))
        draft = raise_up(draft, draft.peak_bytes, self.effort)
        return self._plan(draft, None, self._why(stopped))

    def fastest(self, budget_bytes: int) -> Plan:
        """The fastest plan within the budget."""
        self.budget = float(budget_bytes)
        stopped = "search"
        try:
            self._search(budget_bytes)
        except KeyboardInterrupt:
            if self.best() is None:
                raise
            stopped = "interrupted"
        draft = self.best()
        if draft is None:
            floor = lowest(self.step)
            raise BudgetTooSmallError(
                budget_bytes, floor.peak_bytes, blame(self.step, floor.schedule)
            )
        return self._plan(draft, budget_bytes, self._why(stopped))

    def along(self, budgets: Sequence[int]) -> list[Plan | None]:
        """The fastest plan for each budget, None where none was found to fit.

        All budgets share one set of drafts, so no plan is slower than that of a lower
        budget.
        """
        stopped = "search"
        ordered = sorted(set(budgets))
        bounds: dict[int, float] = {}
        try:
            self._visit(ordered, bounds)
        except KeyboardInterrupt:
            stopped = "interrupted"
        plans: list[Plan | None] = []
        for budget in budgets:
            self.budget, self.proven = float(budget), bounds.get(budget, 0.0)
            draft = self.best()
            done = self._why(stopped)
            plans.append(None if draft is None else self._plan(draft, budget, done))
        return plans

    def _visit(self, ordered: Sequence[int], bounds: dict[int, float]) -> None:
        # From the lowest: what is found there is a start for those above.
        bound_bytes = peak_bound_bytes(self.problem)
        for k, budget in enumerate(ordered):
            if self.base.peak_bytes <= budget or budget < bound_bytes:
                continue
            with self.effort.section(0.7 / (len(ordered) - k)):
                self.budget, self.proven = float(budget), 0.0
                self.moments.clear()
                best = self.best()
                if best is not None:
                    self.offer(raise_up(best, self.budget, self.effort))
                if not self._solve_exactly():
                    self.begin()
                bounds[budget] = self.proven
        for k, budget in enumerate(ordered):
            self.budget, self.proven = float(budget), bounds.get(budget, 0.0)
            if self.best() is None or self.is_close():
                continue
            with self.effort.section(1.0 / (len(ordered) - k)):
                improve(self, self.budget, self.effort)

    def within(self, limit_seconds: float, *, steps: int = 8) -> Plan:
        """The plan with the lowest peak that takes at most this long."""
        low, high = peak_bound_bytes(self.problem), self.base.peak_bytes
        stopped = "search"
        try:
            for k in range(steps):
                if high - low <= 0.002 * high or self.effort.is_over():
                    break
                self.budget, self.proven = low + 0.5 * (high - low), 0.0
                with self.effort.section(1.0 / (steps - k)):
                    self.begin()
                    best = self.best()
                    if best is not None and best.seconds > limit_seconds:
                        improve(self, self.budget, self.effort, goal=limit_seconds)
                best = self.best()
                if best is not None and best.seconds <= limit_seconds:
                    high = best.peak_bytes
                else:
                    low = self.budget
        except KeyboardInterrupt:
            stopped = "interrupted"
        fitting = [d for d in self.drafts if d.seconds <= limit_seconds] or [self.base]
        draft = min(fitting, key=lambda d: (d.peak_bytes, d.seconds))
        self.proven = 0.0
        budget = int(draft.peak_bytes)
        return self._plan(draft, budget, self._why(stopped))

    def _search(self, budget_bytes: int) -> None:
        if self.base.peak_bytes <= self.budget:
            self.proven = self.base.seconds if self._baseline_is_least() else 0.0
            return
        if self._solve_exactly():
            return
        with self.effort.section(0.6):
            self.begin()
        self.others(budget_bytes)
        if self.best() is None:
            self._insist()
        if self.best() is None:
            # The same floor that is found when it is asked for: errors quote it.
            self.offer(Draft(self.problem, lowest(self.step).ops))
        best = self.best()
        if best is None:
            return
        self.offer(raise_up(best, self.budget, self.effort))
        if not self.is_close():
            improve(self, self.budget, self.effort)

    def _insist(self) -> None:
        """Look for a first plan beyond the time limit.

        On a large step a short limit may end before the first start has come to its
        end; a plan that is late is better than an error that is wrong.
        """
        if self.budget < peak_bound_bytes(self.problem):
            return
        with self.effort.extended(FIRST_PLAN_SECONDS * len(self.step.ops)):
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
                self.prove()
            self.greedy(share)
            if self.is_close():
                return
        self._note_peaks()
        self.prove()

    def _note_peaks(self) -> None:
        """Let the next bound look where the best draft has least room left."""
        best = self.best()
        if best is None or self.step.turn < 0:
            return
        noted = [self.step.turn]
        for _ in range(3):
            moment = worst_moment(best, 0.97 * self.budget, noted)
            if moment < 0:
                break
            noted.append(moment)
            self.moments[moment] += 1000

    def _baseline_is_least(self) -> bool:
        return self.base.seconds <= self.needed_seconds * (1 + 1e-12)

    def _solve_exactly(self) -> bool:
        """Find the optimum of a small step; True if nothing is left to do."""
        if len(self.step.ops) > EXACT_OPS:
            return False
        exact = ExactSearch(self.problem, self.budget)
        with self.effort.section(0.4):
            found = exact.run(self.effort, most_states=MOST_STATES)
        self.proven = max(self.proven, found.bound_seconds)
        if found.sequence is not None:
            self.offer(Draft(self.problem, found.sequence))
            return True
        return not found.is_feasible

    def _sink_exactly(self) -> None:
        """Lower the peak of a small step until it is proven the lowest."""
        if len(self.step.ops) > EXACT_OPS:
            return
        with self.effort.section(0.6):
            while not self.effort.is_over():
                lowest = min(d.peak_bytes for d in self.drafts)
                exact = ExactSearch(self.problem, lowest - 1.0)
                found = exact.run(self.effort, most_states=MOST_STATES)
                if not found.is_feasible:
                    self.proven_bytes = lowest
                if found.sequence is None:
                    break
                self.offer(Draft(self.problem, found.sequence))

    def prove(self) -> None:
        """Raise the proven bound by linear programs."""
        if self.step.turn < 0 or len(self.step.ops) > GUIDED_OPS:
            return
        limit = max(0.5, 0.25 * self.effort.seconds_left())
        chains = [c for c in self._chains() if (self.budget, *c) not in self.proved]
        self.proved.update((self.budget, *c) for c in chains)
        found = bound_seconds(self.problem, self.budget, chains, time_limit=limit)
        self.proven = max(self.proven, found)

    def is_close(self) -> bool:
        """Whether the best draft is within `CLOSE_ENOUGH` of the bound."""
        best = self.best()
        if best is None:
            return False
        least = max(self.proven, self.needed_seconds)
        return best.seconds - least <= CLOSE_ENOUGH * self.step.baseline_seconds

    def guide(self, share: float) -> None:
        """Start from what a linear program would hold at the turn and at the peaks."""
        if self.step.turn < 0 or len(self.step.ops) > GUIDED_OPS:
            return
        found: list[Draft] = []
        moments = guided(
            self.problem,
            self._target(share),
            self.effort,
            offer=found.append,
            first_moment=self.step.turn,
        )
        self.moments.update(moments)
        # The last knows most moments; once it fits, the others are soon given up.
        for draft in reversed(found):
            self.settle(draft, self.budget)

    def greedy(self, share: float) -> None:
        """Evict from the baseline."""
        self.settle(self.base, self._target(share))

    def _target(self, share: float) -> float:
        resident = self.problem.resident_bytes
        return resident + share * (self.budget - resident)

    def settle(self, draft: Draft, target: float) -> None:
        """Make a draft fit, use all of the budget, and offer it."""
        best = self.best()
        limit = np.inf if best is None else best.seconds
        limit += WORTH_RAISING * self.step.baseline_seconds
        options = Options(limit_seconds=limit)
        draft = lower(draft, target, self.effort, options)
        self.offer(draft)
        if draft.peak_bytes <= self.budget:
            self.offer(raise_up(draft, self.budget, self.effort))

    def sink(self) -> None:
        """Look for the lowest peak."""
        sink(self.base, self.effort, offer=self.offer)

    def _sink_from_others(self) -> None:
        """Evict from the lowest plan of another planner.

        Plans of whole blocks recompute in an order that single evictions do not find.
        """
        starts = [Draft(self.problem, ops) for ops in self.found_by_others]
        if starts:
            sink(
                min(starts, key=lambda d: (d.peak_bytes, d.seconds)),
                self.effort,
                offer=self.offer,
                best=min(self.drafts, key=lambda d: d.peak_bytes),
            )

    def others(self, budget_bytes: int | None) -> None:
        """Start from what other planners find."""
        best = self.best()
        least = max(self.proven, self.needed_seconds)
        gap = np.inf if best is None else best.seconds - least
        starts = other_plans(
            self.problem,
            budget_bytes,
            self.effort,
            gap=gap / max(self.step.baseline_seconds, 1e-30),
        )
        for sequence in starts:
            self.found_by_others.append(sequence)
            draft = Draft(self.problem, sequence)
            self.offer(draft)
            if draft.peak_bytes <= self.budget:
                self.offer(raise_up(draft, self.budget, self.effort))

    @cached_property
    def must(self) -> frozenset[int]:
        """Ops that every schedule runs."""
        return must_run(self.problem)

    def _chains(self) -> list[list[int]]:
        """Moments for the bound: the turn, the peaks, and the turn with each peak."""
        turn, must = self.step.turn, self.must
        chains = [[turn]]
        for number, _ in self.moments.most_common(6):
            if number == turn or number not in must:
                continue
            chains.append([number])
            if turn in ancestors(self.problem, number):
                chains.append([turn, number])
            elif number in ancestors(self.problem, turn):
                chains.append([number, turn])
        return chains

    def _why(self, stopped: str) -> str:
        """What ended the search; an interrupt comes before all else."""
        return (
            stopped if stopped == "interrupted" else self.effort.stopped_by or stopped
        )

    def _plan(self, draft: Draft, budget: int | None, stopped: str) -> Plan:
        schedule = with_frees(self.step, draft.ops)
        bound = max(self.needed_seconds, 0.0 if budget is None else self.proven)
        bound = min(bound, draft.seconds)
        if budget is not None and bound >= draft.seconds * (1 - 1e-12):
            stopped = "optimal"
        proof = Proof(
            bound_seconds=bound,
            gap=_gap(bound, draft.seconds),
            stopped_by=stopped,
            bound_bytes=int(max(self.proven_bytes, peak_bound_bytes(self.problem))),
            search_seconds=self.effort.elapsed_seconds,
            history=tuple(self.history),
        )
        return make_plan(
            self.step, schedule, planner="auto", budget_bytes=budget, proof=proof
        )


def _gap(bound: float, seconds: float) -> float:
    return 0.0 if seconds <= 0 else max(0.0, 1.0 - bound / seconds)


def lowest(step: StepGraph) -> Plan:
    """The plan with the lowest peak found in a few seconds, once for each step."""
    return recall(
        step,
        "the lowest peak of auto",
        lambda: Search(step, FLOOR_SECONDS).lowest(),
        is_final=lambda plan: plan.proof.stopped_by != "interrupted",
    )

"""The order in which the parts of the search run, and what they leave behind."""

from __future__ import annotations

import logging
from collections import Counter

from lowtide._graph import StepGraph
from lowtide._plan import Plan, Proof
from lowtide._schedule import blame, make_plan, with_frees
from lowtide.errors import BudgetTooSmallError, LowtideError
from lowtide.planners.auto._bound import ancestors, bound_seconds, must_run
from lowtide.planners.auto._draft import Draft
from lowtide.planners.auto._effort import Effort
from lowtide.planners.auto._floor import peak_bound_bytes, sink
from lowtide.planners.auto._greedy import lower
from lowtide.planners.auto._guide import guided
from lowtide.planners.auto._improve import improve
from lowtide.planners.auto._keep import raise_up
from lowtide.planners.auto._problem import Problem

log = logging.getLogger("lowtide.plan")

# Budgets, as shares of the span above residents, from which plans are raised again: the
# detour through a lower peak often ends in a faster plan.
DETOURS = (1.0, 0.97, 0.93, 0.88, 0.8)
# The same for the linear program: what happens between its moments needs room too.
HEADROOMS = (1.0, 0.97, 0.93, 0.87, 0.8)
BOUNDED_OPS = 6_000
GUIDED_OPS = 30_000
# Other planners as starts: work units per op that each may cost, and the largest step
# on which that is worth it. A planner of another package counts as `_UNKNOWN`.
_STARTS = {
    "keep_all": (10.0, 100_000),
    "recompute_all": (20.0, 100_000),
    "chen_sqrt": (250.0, 20_000),
    "chen_greedy": (250.0, 20_000),
    "hong_static": (300.0, 10_000),
    "hong_dynamic": (1500.0, 3_000),
    "feng": (900.0, 3_000),
    "rotor": (1500.0, 3_000),
    "mu_two": (2000.0, 1_500),
    "dtr": (2000.0, 1_500),
    "checkmate": (20_000.0, 60),
}
_UNKNOWN = (2000.0, 1_500)


class Search:
    """One search on one step."""

    def __init__(self, step: StepGraph, time_limit: float) -> None:
        self.step = step
        self.problem = Problem(step)
        self.effort = Effort(self.problem, time_limit)
        self.base = Draft(self.problem, self.problem.baseline)
        self.drafts: list[Draft] = []
        self.history: list[tuple[float, float]] = []
        self.moments: Counter[int] = Counter()
        self.budget = 0.0
        self.offer(self.base)

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
        """The plan with the lowest peak."""
        stopped = "search"
        try:
            self.sink()
            self.others(None)
        except KeyboardInterrupt:
            stopped = "interrupted"
        draft = min(self.drafts, key=lambda d: (d.peak_bytes, d.seconds))
        return self._plan(draft, None, self.effort.stopped_by or stopped)

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
            lowest = min(self.drafts, key=lambda d: (d.peak_bytes, d.seconds))
            schedule = with_frees(self.step, lowest.ops)
            raise BudgetTooSmallError(
                budget_bytes, int(lowest.peak_bytes), blame(self.step, schedule)
            )
        return self._plan(draft, budget_bytes, self.effort.stopped_by or stopped)

    def _search(self, budget_bytes: int) -> None:
        if self.base.peak_bytes <= self.budget:
            return
        self.guide()
        self.greedy()
        self.others(budget_bytes)
        if self.best() is None:
            self.sink()
        best = self.best()
        if best is None:
            return
        self.offer(raise_up(best, self.budget, self.effort))
        best = self.best()
        assert best is not None
        improve(best, self.budget, self.effort, offer=self.offer)

    def guide(self) -> None:
        """Start from what a linear program would hold at the turn and at the peaks."""
        if self.step.turn < 0 or len(self.step.ops) > GUIDED_OPS:
            return
        span = self.budget - self.problem.resident_bytes
        for share in HEADROOMS:
            found: list[Draft] = []
            target = self.problem.resident_bytes + share * span
            moments = guided(
                self.problem,
                target,
                self.effort,
                offer=found.append,
                first_moment=self.step.turn,
            )
            self.moments.update(moments)
            for draft in found:
                self.settle(draft)

    def settle(self, draft: Draft) -> None:
        """Make a draft fit, use all of the budget, and offer it."""
        draft = lower(draft, self.budget, self.effort)
        self.offer(draft)
        if draft.peak_bytes <= self.budget:
            self.offer(raise_up(draft, self.budget, self.effort))

    def greedy(self) -> None:
        """Evict from the baseline, straight to the budget and by way of lower ones."""
        span = self.budget - self.problem.resident_bytes
        for share in DETOURS:
            target = self.problem.resident_bytes + share * span
            draft = lower(self.base, target, self.effort)
            self.offer(draft)
            if draft.peak_bytes <= self.budget:
                self.offer(raise_up(draft, self.budget, self.effort))
            elif share < 1.0:
                break

    def sink(self) -> None:
        """Look for the lowest peak."""
        sink(self.base, self.effort, offer=self.offer)

    def others(self, budget_bytes: int | None) -> None:
        """Start from what every other planner finds."""
        from lowtide import planners

        count = len(self.step.ops)
        for name in planners.available():
            units, most = _STARTS.get(name, _UNKNOWN)
            if name == "auto" or count > most or self.effort.is_over():
                continue
            self.problem.units += units * count
            try:
                found = planners.load(name).plan(
                    self.step, budget_bytes, time_limit=1.0
                )
            except BudgetTooSmallError:
                continue
            except LowtideError as error:
                log.warning("planner %s gave no start: %s", name, error)
                continue
            self.offer(Draft(self.problem, found.ops))

    def bound(self, budget: int | None) -> float:
        """Seconds that no schedule within the budget can go below."""
        needed = sum(self.problem.seconds[i] for i in sorted(must_run(self.problem)))
        if budget is None or self.step.turn < 0 or self.base.peak_bytes <= budget:
            return needed
        if len(self.step.ops) > BOUNDED_OPS:
            return needed
        chains = self._chains()
        found = bound_seconds(self.problem, float(budget), chains, time_limit=3.0)
        return max(needed, found)

    def _chains(self) -> list[list[int]]:
        """Moments for the bound: the turn, the peaks, and the turn with each peak."""
        turn, must = self.step.turn, must_run(self.problem)
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

    def _plan(self, draft: Draft, budget: int | None, stopped: str) -> Plan:
        schedule = with_frees(self.step, draft.ops)
        bound = min(self.bound(budget), draft.seconds)
        proof = Proof(
            bound_seconds=bound,
            gap=_gap(bound, draft.seconds),
            stopped_by=stopped,
            bound_bytes=int(peak_bound_bytes(self.problem)),
            search_seconds=self.effort.elapsed_seconds,
            history=tuple(self.history),
        )
        return make_plan(
            self.step, schedule, planner="auto", budget_bytes=budget, proof=proof
        )


def _gap(bound: float, seconds: float) -> float:
    return 0.0 if seconds <= 0 else max(0.0, 1.0 - bound / seconds)

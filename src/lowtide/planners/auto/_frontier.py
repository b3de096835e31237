"""One search for many budgets, or for the lowest peak within a time."""

from __future__ import annotations

from collections.abc import Sequence

from lowtide.planners.auto._floor import peak_bound_bytes
from lowtide.planners.auto._forms import choices, formed, original_plan
from lowtide.planners.auto._search import Search
from lowtide.step.graph import StepGraph
from lowtide.step.plan import Plan

# How often `lowest_within` halves the range of peaks.
_BISECTIONS = 8


def frontier(
    step: StepGraph, budgets: Sequence[int], *, time_limit: float = 30.0
) -> list[Plan | None]:
    """The fastest plan for each budget, None where none was found to fit.

    All budgets share one set of drafts, so no plan is slower than that of a lower
    budget.
    """
    kinds = choices(step)
    found = [
        [
            plan and original_plan(step, choice, plan)
            for plan in _frontier(
                formed(step, choice).step, budgets, time_limit / len(kinds)
            )
        ]
        for choice in kinds
    ]
    return [
        min(filter(None, plans), key=lambda plan: plan.seconds, default=None)
        for plans in zip(*found, strict=True)
    ]


def _frontier(
    step: StepGraph, budgets: Sequence[int], time_limit: float
) -> list[Plan | None]:
    search = Search(step, time_limit)
    bounds: dict[int, float] = {}
    with search.until_interrupted():
        _visit(search, sorted(set(budgets)), bounds)
    plans: list[Plan | None] = []
    for budget in budgets:
        search.budget, search.proven = float(budget), bounds.get(budget, 0.0)
        draft = search.best()
        plans.append(None if draft is None else search.plan(draft, budget))
    return plans


def _visit(search: Search, ordered: Sequence[int], bounds: dict[int, float]) -> None:
    # From the lowest: what is found there is a start for those above.
    bound_bytes = peak_bound_bytes(search.problem)
    for k, budget in enumerate(ordered):
        if search.base.peak_bytes <= budget or budget < bound_bytes:
            continue
        with search.effort.section(0.7 / (len(ordered) - k)):
            search.budget, search.proven = float(budget), 0.0
            search.moments.clear()
            best = search.best()
            if best is not None:
                search.offer(search.raise_up(best))
            if not search.solve_exactly():
                search.begin()
            bounds[budget] = search.proven
    for k, budget in enumerate(ordered):
        search.budget, search.proven = float(budget), bounds.get(budget, 0.0)
        if search.best() is None or search.is_close():
            continue
        with search.effort.section(1.0 / (len(ordered) - k)):
            search.improve()


def lowest_within(
    step: StepGraph, limit_seconds: float, *, time_limit: float = 10.0
) -> Plan:
    """The plan with the lowest peak found that takes at most this long."""
    kinds = choices(step)
    found = [
        original_plan(
            step,
            choice,
            _lowest_within(
                formed(step, choice).step, limit_seconds, time_limit / len(kinds)
            ),
        )
        for choice in kinds
    ]
    fitting = [plan for plan in found if plan.seconds <= limit_seconds * (1 + 1e-12)]
    return min(fitting or found[:1], key=lambda plan: (plan.peak_bytes, plan.seconds))


def _lowest_within(step: StepGraph, limit_seconds: float, time_limit: float) -> Plan:
    search = Search(step, time_limit)
    low, high = peak_bound_bytes(search.problem), search.base.peak_bytes
    with search.until_interrupted():
        for k in range(_BISECTIONS):
            if high - low <= 0.002 * high or search.effort.is_over():
                break
            search.budget, search.proven = low + 0.5 * (high - low), 0.0
            with search.effort.section(1.0 / (_BISECTIONS - k)):
                search.begin()
                best = search.best()
                if best is not None and best.seconds > limit_seconds:
                    search.improve(goal=limit_seconds)
            best = search.best()
            if best is not None and best.seconds <= limit_seconds:
                high = best.peak_bytes
            else:
                low = search.budget
    fitting = [d for d in search.drafts if d.seconds <= limit_seconds] or [search.base]
    draft = min(fitting, key=lambda d: (d.peak_bytes, d.seconds))
    search.proven = 0.0
    return search.plan(draft, int(draft.peak_bytes))

"""`lowtide.plan`: from a step and a limit to a plan, without torch."""

from __future__ import annotations

from lowtide import planners
from lowtide.errors import InvalidArgumentError
from lowtide.step.graph import StepGraph
from lowtide.step.plan import Plan
from lowtide.step.units import to_bytes, to_fraction


def plan(
    step: StepGraph,
    *,
    budget: str | int | None = None,
    max_overhead: str | float | None = None,
    planner: str = "auto",
    time_limit: float = 10.0,
) -> Plan:
    """The fastest plan within the budget, or the lowest within the overhead.

    Exactly one of `budget` and `max_overhead` is given.
    """
    if (budget is None) == (max_overhead is None):
        raise InvalidArgumentError(
            "lowtide.plan",
            "exactly one of budget and max_overhead must be given",
            'Write budget="6 GiB" or max_overhead="10%"',
        )
    if max_overhead is not None:
        from lowtide.planners._sweep import lowest_peak

        return lowest_peak(
            step,
            max_overhead=to_fraction(max_overhead),
            planner=planner,
            time_limit=time_limit,
        )
    budget_bytes = to_bytes(budget, baseline_bytes=step.eager_peak_bytes)
    return planners.load(planner).plan(step, budget_bytes, time_limit=time_limit)

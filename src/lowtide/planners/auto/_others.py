"""The other planners as starts, as far as their time allows."""

from __future__ import annotations

import logging
from collections.abc import Iterator

from lowtide.errors import BudgetTooSmallError
from lowtide.planners.auto._effort import Effort
from lowtide.planners.auto._problem import Problem

log = logging.getLogger("lowtide.plan")

# Work units per op that a planner may cost, and the largest step on which that is worth
# it. What another package brings counts as the last.
_COSTS = {
    "keep_all": (10.0, 100_000),
    "recompute_all": (20.0, 100_000),
    "chen_sqrt": (500.0, 6_000),
    "chen_greedy": (500.0, 6_000),
    "hong_static": (500.0, 6_000),
    "feng": (1000.0, 3_000),
    "dtr": (1000.0, 3_000),
    "mu_two": (1000.0, 3_000),
    "hong_dynamic": (8000.0, 600),
    "rotor": (8000.0, 600),
    "checkmate": (20_000.0, 60),
}
_UNKNOWN = (8000.0, 600)

# Up to here every planner is a start, whatever the bound and the clock say: together
# they take some tenths of a second.
SMALL_OPS = 150
# Nobody can be faster by more than the gap; below this share of the baseline's time the
# planners that take seconds are left out.
WORTH_ASKING = 0.01
HARDLY_WORTH_ASKING = 0.002


def other_plans(
    problem: Problem, budget_bytes: int | None, effort: Effort, *, gap: float
) -> Iterator[tuple[int, ...]]:
    """The op sequences of the other planners' plans that fit."""
    from lowtide import planners

    count = len(problem.step.ops)
    for name in planners.available():
        units, most = _COSTS.get(name, _UNKNOWN)
        if name == "auto" or count > most:
            continue
        if count > SMALL_OPS and effort.is_over():
            continue
        is_slow = units > 2000.0 or (name == "mu_two" and budget_bytes is None)
        if (
            count > SMALL_OPS
            and is_slow
            and (budget_bytes is None or gap < WORTH_ASKING)
        ):
            continue
        if count > SMALL_OPS and gap < HARDLY_WORTH_ASKING:
            continue
        problem.units += units * count
        try:
            found = planners.load(name).plan(
                problem.step,
                budget_bytes,
                time_limit=max(0.1, min(1.0, effort.seconds_left())),
            )
        except BudgetTooSmallError:
            continue
        except Exception as error:
            # Any planner may be installed; a broken one must not stop this one.
            log.warning("planner %s gave no start: %s", name, error)
            continue
        yield found.ops

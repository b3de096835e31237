"""The other planners as starts, as far as their time allows."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from functools import partial

from lowtide.errors import BudgetTooSmallError
from lowtide.planners.auto._effort import Effort
from lowtide.planners.auto._problem import Problem

log = logging.getLogger("lowtide.plan")

INFINITE = float("inf")

# Work units per op that a planner may cost, and the largest step on which that is worth
# it. What another package brings counts as the last.
_COSTS = {
    "keep_all": (10.0, 100_000),
    "recompute_all": (20.0, 100_000),
    "chen_sqrt": (500.0, 6_000),
    "chen_greedy": (500.0, 6_000),
    "hong_static": (200.0, 6_000),
    "feng": (1000.0, 3_000),
    "dtr": (1000.0, 3_000),
    "mu_two": (1000.0, 3_000),
    "hong_dynamic": (2500.0, 900),
    "rotor": (2500.0, 900),
}
_UNKNOWN = (8000.0, 600)
# Without a budget, the lowest peak is wanted. Some never go as low as related
# planners, and take longer; rotor goes lowest of all and is asked on larger steps too.
_NEVER_LOWEST = ("hong_dynamic", "mu_two")
_LOWEST_OPS = {"rotor": 3_000}

# Up to here planners are starts whatever was spent: together they take some tenths of a
# second.
SMALL_OPS = 150
# Nobody can be faster by more than the gap; below this share of the baseline's time the
# planners that take seconds are left out, and then all.
WORTH_ASKING = 0.01
HARDLY_WORTH_ASKING = 0.002
# A small step is searched so well that others have to promise more.
WORTH_ASKING_SMALL = 0.05
HARDLY_WORTH_ASKING_SMALL = 0.02
_SECONDS_UNITS = 2000.0
# These are asked even when the effort is over, if there is no plan yet.
_QUICK_UNITS = 200.0


def other_plans(
    problem: Problem, budget_bytes: int | None, effort: Effort, *, gap: float
) -> Iterator[tuple[int, ...]]:
    """The op sequences of the other planners' plans; where none fits, of the lowest."""
    from lowtide import planners

    count = len(problem.step.ops)
    slow, quick = WORTH_ASKING, HARDLY_WORTH_ASKING
    if count <= SMALL_OPS:
        slow, quick = WORTH_ASKING_SMALL, HARDLY_WORTH_ASKING_SMALL
    for name in planners.available():
        units, most = _COSTS.get(name, _UNKNOWN)
        if budget_bytes is None:
            most = _LOWEST_OPS.get(name, most)
        # checkmate stops by the clock: with it the same limit may give another plan.
        if name in ("auto", "checkmate") or count > most:
            continue
        if gap < (slow if units > _SECONDS_UNITS else quick):
            continue
        if count > SMALL_OPS:
            if effort.is_over() and units > _QUICK_UNITS:
                continue
            if gap < INFINITE and 1e-6 * units * count > effort.seconds_left():
                continue
            if budget_bytes is None and name in _NEVER_LOWEST:
                continue
        problem.evaluator.spend(1e-6 * units * count)
        find = partial(planners.load(name).plan, problem.step, time_limit=1.0)
        try:
            try:
                found = find(budget_bytes)
            except BudgetTooSmallError:
                if name in _NEVER_LOWEST:
                    continue
                # They remember what they tried: this takes them little more.
                found = find(None)
        except Exception as error:
            # Any planner may be installed; a broken one must not stop this one.
            log.warning("planner %s gave no start: %s", name, error)
            continue
        yield found.ops

"""The best schedule known: search over op sequences, started from every other planner.

Problem: the least time whose peak stays within the budget, over all schedules: any op
may run again anywhere, storages may be freed and made again any number of times, and
independent ops may change places.

Idea: a schedule is a plain sequence of ops, in which a storage lives from its making to
its last read before it is made again. Inserting an op is then an eviction and leaving
one out is keeping, so every sequence is valid and a move only has to be scored. (1)
Evict by excess removed per second spent, the excess being the bytes above the budget
summed over the sequence, until it fits. (2) Leave out recomputations that the budget
does not need. (3) Undo some decisions and decide them again, as long as time allows.
Every plan of the other planners is a start, so none of them is better.

References: the excess-area eviction is ours; it generalises the gap choice of mu-TWO
(Purandare et al., MLSys 2023) and DTR (Kirisame et al., ICLR 2021). Removing and
reinserting is large neighbourhood search (Shaw, CP 1998).

Complexity: about a microsecond per op and change; 500 ops take a second, the rest of
the time limit goes into improvement. Loses where the bound in `plan.proof` says that it
may: nobody knows the optimum of a large step.
"""

from __future__ import annotations

from collections.abc import Sequence

from lowtide._graph import StepGraph
from lowtide._plan import Plan
from lowtide.planners.auto._search import Search


def frontier(
    step: StepGraph, budgets: Sequence[int], *, time_limit: float = 30.0
) -> list[Plan | None]:
    """The fastest plan found for each budget, None where none fits.

    One search serves all budgets: time never rises with a larger one.
    """
    return Search(step, time_limit).along(budgets)


def lowest_within(
    step: StepGraph, limit_seconds: float, *, time_limit: float = 10.0
) -> Plan:
    """The plan with the lowest peak found that takes at most this long."""
    return Search(step, time_limit).within(limit_seconds)


def plan(
    step: StepGraph, budget_bytes: int | None = None, *, time_limit: float = 10.0
) -> Plan:
    """The fastest plan found within the budget; without one, the lowest peak found.

    Args:
        step: The step to plan.
        budget_bytes: What the peak may be, everything included.
        time_limit: Seconds of search. The same limit gives the same plan.

    Raises:
        BudgetTooSmallError: No plan found fits; the error says how low one gets.
    """
    search = Search(step, time_limit)
    if budget_bytes is None:
        return search.lowest()
    return search.fastest(budget_bytes)

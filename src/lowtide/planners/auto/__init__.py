"""The best schedule known: search over op sequences, guided by a linear program.

Problem: the least time whose peak stays within the budget, over all schedules: any op
may run again anywhere, storages may be freed and made again any number of times, and
independent ops may change places.

Idea: a schedule is a plain sequence of ops, in which a storage lives from its making to
its last read before it is made again. Inserting an op is then an eviction and leaving
one out is keeping, so every sequence is valid and a move only has to be scored.

1. Order: what makes outputs from fewer bytes than it writes runs last.
2. Guide: a linear program over the whole step says what to hold at the turn; where the
   resulting sequence is most over the budget, it gets one more moment to look at.
3. Evict by excess removed per second spent, the excess being the bytes above the budget
   summed over the sequence, until it fits. Ops change places where that lowers it.
4. Leave out recomputations that the budget does not need.
5. Undo some decisions, shuffle some ops, and decide again, as long as the limit allows.

An op that is too large for the budget runs in another form, where it has one: some
rows at a time. Other forms are tried where they may cost less than recomputation.

Plans of other planners are starts too, where the bound leaves room for them and the
step is not too large. The same linear program without a fixed order proves a bound: it
looks at the turn and at those moments, found by trying, that raise it most. On steps of
up to about 170 ops it is then solved in whole numbers, which raises it further. It
bounds the sum of the op times that planning uses; a measured step can be faster than
that, because ops that follow each other find their arguments in the cache. Steps of a
few dozen ops are solved exactly. What is called the lowest peak is the lowest found;
the proof beside it says what no plan can go below.

The moves are compiled where the machine has a C compiler, and score about a million
changes a second. A time limit stands for a fixed amount of work, so the same limit
gives the same plan on a slow, fast or busy machine. Only a search that computes for ten
times its limit is ended by the clock, and its plan says so. Without a compiler a second
stands for 400 times less work, or ten seconds would take more than an hour; so the
plans are other ones there.

Reference: the excess-area eviction is ours; it generalises the gap choice of mu-TWO
(Purandare et al., MLSys 2023) and DTR (Kirisame et al., ICLR 2021). The program is a
coarse relaxation of Checkmate (Jain et al., MLSys 2020). Removing and reinserting is
large neighbourhood search (Shaw, CP 1998).

Complexity: some nanoseconds per op and change, and linear programs with a few rows per
op, which take most of the time on large steps.

Loses most against its bound near the lowest peak, where the room that recomputation
itself needs decides, which the program does not see.
"""

from __future__ import annotations

from lowtide.planners._blocks import plan_blocks
from lowtide.planners.auto._forms import Choice, with_forms
from lowtide.planners.auto._frontier import frontier as frontier
from lowtide.planners.auto._frontier import lowest_within as lowest_within
from lowtide.planners.auto._problem import Problem
from lowtide.planners.auto._search import Search, floor_seconds, lowest
from lowtide.step.graph import StepGraph
from lowtide.step.plan import Plan

# What share of the limit more is for the bound of a step that has forms.
PROOF_SHARE = 0.5


def plan(
    step: StepGraph, budget_bytes: int | None = None, *, time_limit: float = 10.0
) -> Plan:
    """The fastest plan found within the budget; without one, the lowest peak found.

    Args:
        step: The step to plan.
        budget_bytes: What the peak may be, everything included.
        time_limit: Seconds of search within a budget. The same limit gives the same
            plan, whatever was planned before. The lowest peak always takes a few
            seconds.

    Raises:
        BudgetTooSmallError: No plan found fits; the error says how low one gets.
    """
    if "blocks" in step.facts:
        return with_forms(step, budget_bytes, plan_blocks)

    def find(step: StepGraph, budget_bytes: int | None) -> Plan:
        if budget_bytes is None:
            return lowest(step)
        return Search(step, time_limit).fastest(budget_bytes)

    def prove(
        step: StepGraph, plan: Plan, sure: Choice, never: Choice, share: float
    ) -> float:
        problem = Problem(step, sure=sure, never=never)
        search = Search(step, share * PROOF_SHARE * time_limit, problem=problem)
        search.budget = float(plan.budget_bytes)
        search.offer(search.evaluator.draft(plan.ops))
        search.prove(0.5)
        search.refine()
        return max(search.proven, search.needed_seconds)

    return with_forms(step, budget_bytes, find, prove)


def low(step: StepGraph, *, time_limit: float) -> Plan:
    """A plan with a low peak; where there is little time, not the lowest."""
    seconds = floor_seconds(time_limit)
    return with_forms(step, None, lambda step, _: lowest(step, seconds))

"""Chooses the moments of the bound: where its own answer would not fit.

A program looks at a few moments only, and holds what it likes between them. Its answer
is walked as a schedule; where that is most over the budget, the next program looks too.
Moments have to come in the same order in every schedule, so some are passed over.
"""

from __future__ import annotations

from itertools import pairwise

from lowtide.planners.auto._bound import Bound, Relaxation
from lowtide.planners.auto._effort import Effort
from lowtide.planners.auto._evaluator import Draft
from lowtide.planners.auto._guide import first_runs, forgetting
from lowtide.planners.auto._problem import Problem

# A moment is worth its while if it raises the bound by this share; after so many in a
# row that do not, no more are tried.
WORTH_A_MOMENT = 1e-4
MOST_FAILURES = 8
MOST_REFINED_FAILURES = 40


def promising(problem: Problem, draft: Draft, noted: list[int]) -> list[int]:
    """Moments for the bound: the turn, those noted, then where a draft is fullest."""
    places = first_runs(problem, draft)
    fullest = sorted(places, key=lambda p: (-draft.live[p], p))
    ordered = [problem.step.turn, *noted, *(draft.ops[p] for p in fullest)]
    return [i for i in dict.fromkeys(ordered) if i in problem.must_run]


def bound_seconds(
    problem: Problem, budget: float, candidates: list[int], effort: Effort
) -> tuple[float, list[int]]:
    """The best bound found by choosing moments one after the other, and the moments.

    Candidates come with the most promising first; one that fits the order of those
    chosen is kept if it raises the bound, and at last left out if that raises it more.
    Programs without windows are quick.
    """
    chosen: list[int] = []
    best, failures = 0.0, 0
    for candidate in candidates:
        if effort.is_over() or failures >= MOST_FAILURES or best == float("inf"):
            break
        moments = _in_order(problem, [*chosen, candidate])
        if moments is None:
            continue
        bound = Relaxation(problem, budget, moments).solve(effort.seconds_left())
        if bound.seconds > best * (1 + WORTH_A_MOMENT):
            best, chosen, failures = bound.seconds, moments, 0
        else:
            failures += 1
    # Where ops may run by halves, a moment less may prove more.
    left = list(chosen)
    while left and len(chosen) > 1 and best < float("inf") and not effort.is_over():
        moment = left.pop()
        moments = [number for number in chosen if number != moment]
        bound = Relaxation(problem, budget, moments).solve(effort.seconds_left())
        if bound.seconds > best:
            best, chosen, left = bound.seconds, moments, list(moments)
    return best, chosen


def refined_seconds(
    problem: Problem,
    budget: float,
    candidates: list[int],
    effort: Effort,
    *,
    moments: list[int],
    whole: bool,
) -> tuple[float, list[int]]:
    """The bound of larger programs, and the moments at which it was found.

    They have windows, or with `whole` whole numbers. Moments are added where the last
    answer does not fit; where it does, the candidates follow.
    """
    best, best_moments, failures = 0.0, moments, 0
    left = [number for number in candidates if number not in moments]
    while not effort.is_over() and failures < MOST_REFINED_FAILURES:
        relaxation = Relaxation(problem, budget, moments, windows=not whole)
        solve = relaxation.solve_whole if whole else relaxation.solve
        found = solve(effort.seconds_left())
        if found.seconds > best * (1 + WORTH_A_MOMENT):
            best, best_moments, failures = found.seconds, moments, 0
        else:
            failures += 1
        following = _next(problem, budget, moments, found, left)
        if best == float("inf") or following is None:
            break
        moments = following
    return best, best_moments


def _next(
    problem: Problem,
    budget: float,
    moments: list[int],
    found: Bound,
    candidates: list[int],
) -> list[int] | None:
    """The moments with one more: where the answer does not fit, or a candidate."""
    if found.alive:
        draft = forgetting(problem, moments, found.alive)
        places = first_runs(problem, draft)
        for position in sorted(places, key=lambda p: (-draft.live[p], p)):
            number = draft.ops[position]
            if draft.live[position] <= budget:
                break
            if number in problem.must_run and number not in moments:
                ordered = _in_order(problem, [*moments, number])
                if ordered is not None:
                    return ordered
    while candidates:
        ordered = _in_order(problem, [*moments, candidates.pop(0)])
        if ordered is not None:
            return ordered
    return None


def _in_order(problem: Problem, moments: list[int]) -> list[int] | None:
    """The moments so that each comes before the next in any schedule, if they do."""
    ordered = sorted(set(moments))
    if all(problem.comes_before(a, b) for a, b in pairwise(ordered)):
        return ordered
    return None

"""Starts for the search from a linear program: what to hold at a few moments.

Evicting one storage at a time cannot see that a whole set should go together. A linear
program over the whole step can: it says what is worth holding at the turn and at other
moments where memory is short. The baseline is then walked, forgetting at each moment
what the program does not hold and making again what a later op misses, just before it.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Sequence

import numpy as np

from lowtide.planners.auto._bound import Relaxation
from lowtide.planners.auto._effort import Effort
from lowtide.planners.auto._evaluator import Draft
from lowtide.planners.auto._problem import Problem
from lowtide.step.remake import makers_in, remaking
from lowtide.step.simulate import pieces_along


def guided(
    problem: Problem,
    budget: float,
    effort: Effort,
    *,
    offer: Callable[[Draft], None],
    first_moment: int,
    most_moments: int = 5,
) -> list[int]:
    """Offer the drafts of ever more moments; return the moments.

    Each next moment is the place where the last draft was furthest over the budget.
    """
    moments = [first_moment]
    order = {number: k for k, number in enumerate(problem.baseline)}
    while len(moments) <= most_moments and not effort.is_over():
        relaxation = Relaxation(problem, budget, moments)
        relaxation.fix_order()
        found = relaxation.solve(effort.seconds_left())
        if not found.alive:
            break
        draft = forgetting(problem, moments, found.alive)
        offer(draft)
        worst = worst_moment(problem, draft, budget, moments)
        if worst < 0:
            break
        moments = sorted([*moments, worst], key=order.__getitem__)
    return moments


def worst_moment(
    problem: Problem, draft: Draft, budget: float, moments: Sequence[int]
) -> int:
    """The first run nearest to where the draft is most over the budget, or -1."""
    runs = first_runs(problem, draft)
    for position in np.argsort(-draft.live, kind="stable").tolist():
        if draft.live[position] <= budget:
            return -1
        k = bisect_left(runs, position)
        if k < len(runs) and draft.ops[runs[k]] not in moments:
            return draft.ops[runs[k]]
    return -1


def first_runs(problem: Problem, draft: Draft) -> list[int]:
    """The positions at which ops run first that every schedule may be asked to run."""
    seen: set[int] = set()
    positions: list[int] = []
    for position, number in enumerate(draft.ops):
        is_standby = problem.step.ops[number].standby and number not in problem.sure
        if number not in seen and not is_standby:
            seen.add(number)
            positions.append(position)
    return positions


def forgetting(
    problem: Problem, moments: Sequence[int], alive: Sequence[frozenset[int]]
) -> Draft:
    """The baseline that at each moment forgets what is not in its set."""
    keep = dict(zip(moments, alive, strict=True))
    ops = problem.step.ops
    always = problem.residents.union(problem.step.outputs)
    there = set(problem.residents)
    sequence: list[int] = []
    pieces = pieces_along(problem.step, problem.baseline)
    for number, piece in zip(problem.baseline, pieces, strict=False):
        if number in keep:
            there &= keep[number] | always
        maker_of = makers_in(problem.step, piece)
        missing = remaking(problem.step, ops[number].reads, there, maker_of=maker_of)
        # What cannot be made again here was held all along: in a sequence, not making
        # a storage again is the same as keeping it.
        there |= missing.lost
        for again in (*missing.ops, number):
            sequence.append(again)
            there.update(ops[again].writes)
    return problem.evaluator.draft(sequence)

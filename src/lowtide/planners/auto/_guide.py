"""Starts for the search from a linear program: what to hold at a few moments.

Evicting one storage at a time cannot see that a whole set should go together. A linear
program over the whole step can: it says what is worth holding at the turn and at other
moments where memory is short. The baseline is then walked, forgetting at each moment
what the program does not hold and making again what a later op misses, just before it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from lowtide.planners.auto._bound import Relaxation
from lowtide.planners.auto._draft import Draft
from lowtide.planners.auto._effort import Effort
from lowtide.planners.auto._problem import Problem


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
        worst = worst_moment(draft, budget, moments)
        if worst < 0:
            break
        moments = sorted([*moments, worst], key=order.__getitem__)
    return moments


def worst_moment(draft: Draft, budget: float, moments: Sequence[int]) -> int:
    """The first run nearest to where the draft is most over the budget, or -1."""
    first_runs: list[int] = []
    seen: set[int] = set()
    following = [-1] * len(draft.ops)
    for position, number in enumerate(draft.ops):
        if number not in seen and not draft.problem.step.ops[number].standby:
            seen.add(number)
            first_runs.append(position)
    k = 0
    for position in range(len(draft.ops)):
        while k < len(first_runs) and first_runs[k] < position:
            k += 1
        if k < len(first_runs):
            following[position] = draft.ops[first_runs[k]]
    for position in np.argsort(-draft.live, kind="stable").tolist():
        if draft.live[position] <= budget:
            return -1
        if following[position] >= 0 and following[position] not in moments:
            return following[position]
    return -1


def forgetting(
    problem: Problem, moments: Sequence[int], alive: Sequence[frozenset[int]]
) -> Draft:
    """The baseline that at each moment forgets what is not in its set."""
    keep = dict(zip(moments, alive, strict=True))
    there: set[int] = set()
    sequence: list[int] = []
    pieces = iter(problem.pieces_along(problem.baseline))
    for number in problem.baseline:
        piece = next(pieces)
        if number in keep:
            held = keep[number]
            there = {s for s in there if s in held or problem.held[s]}
        for again in _missing(problem, number, there, piece):
            sequence.append(again)
            there.update(problem.writes[again])
        sequence.append(number)
        there.update(problem.writes[number])
    return Draft(problem, sequence)


def _missing(problem: Problem, number: int, there: set[int], piece: int) -> list[int]:
    """Ops that make what an op misses, inputs first.

    What cannot be made again here was held all along: in a sequence, not making a
    storage again is the same as keeping it.
    """
    cone: list[int] = []
    seen: set[int] = set()
    stack = [(s, False) for s in reversed(problem.reads[number]) if s not in there]
    while stack:
        s, is_ready = stack.pop()
        maker = problem.remaker[s]
        if maker < 0 or problem.piece[maker] != piece:
            there.add(s)
            continue
        if is_ready:
            cone.append(maker)
            continue
        if maker in seen:
            continue
        seen.add(maker)
        stack.append((s, True))
        stack.extend(
            (r, False) for r in reversed(problem.reads[maker]) if r not in there
        )
    return cone

"""The lowest peak: a bound that no schedule beats, and a draft that comes near it."""

from __future__ import annotations

from collections.abc import Callable

from lowtide.planners.auto._effort import Effort
from lowtide.planners.auto._evaluator import Draft
from lowtide.planners.auto._problem import Problem

# A plan that takes this many times the baseline is of no use to anyone.
MOST_SECONDS = 4.0
# What share of a search is for plans that come down from above.
DESCENT_SHARE = 0.9
# From how far above a budget near the lowest peak plans come down to it, how often they
# stop on the way, and what share of the work is done before they leave.
ABOVE = 0.05
STOPS = 10
SHARE_ABOVE = 0.3
HEAT = 0.003  # how far a move may lead astray, as a share of the baseline's time


def peak_bound_bytes(problem: Problem) -> float:
    """Bytes that are alive at some moment of every schedule of this step."""
    size, held = problem.size, problem.held
    end = sum(b for b, is_held in zip(size, held, strict=True) if is_held)
    most = end
    for number in sorted(problem.must_run):
        need = sum(size[s] for s in problem.reads[number])
        most = max(most, need + problem.fresh_bytes[number])
    return problem.resident_bytes + most


def sink(
    problem: Problem,
    start: Draft,
    effort: Effort,
    *,
    offer: Callable[[Draft], None],
    best: Draft | None = None,
    steps: int = 9,
) -> Draft:
    """The draft with the lowest peak that a bisection over budgets finds.

    It looks below the peak of `best`, if a draft is known, and evicts from `start`.
    """
    low, best = peak_bound_bytes(problem), best or start
    most = MOST_SECONDS * problem.step.baseline_seconds
    evaluator = problem.evaluator

    def lower(draft: Draft, target: float) -> Draft:
        with effort.section(0.05):
            draft = evaluator.reorder(draft, target, effort.limit_units)
        units = effort.limit_units
        return evaluator.lower(
            draft, target, units, limit_seconds=most, tried=24, batch=0.5
        )

    for _ in range(steps):
        if best.peak_bytes - low <= 0.004 * best.peak_bytes or effort.is_over():
            break
        target = low + 0.5 * (best.peak_bytes - low)
        draft = lower(start, target)
        if draft.peak_bytes > target and best is not start:
            again = lower(best, target)
            draft = min(draft, again, key=lambda d: d.peak_bytes)
        if draft.peak_bytes < best.peak_bytes:
            best = draft
            offer(best)
        if draft.peak_bytes > target:
            low = target
    return best


def deepen(
    problem: Problem, best: Draft, effort: Effort, *, offer: Callable[[Draft], None]
) -> None:
    """Look for ever lower peaks by random changes, in smaller and smaller steps."""
    evaluator = problem.evaluator
    low = peak_bound_bytes(problem)
    share = 0.02
    while not effort.is_over() and best.peak_bytes > low and share > 5e-5:
        # Bytes are whole: a step of less than one is none.
        target = best.peak_bytes - max(1.0, share * (best.peak_bytes - low))
        with effort.section(0.1):
            current = best
            found, _ = evaluator.improve(best, current, target, 0.0, effort.limit_units)
        if found.peak_bytes < best.peak_bytes:
            best = found
            offer(best)
        if found.peak_bytes > target:
            share *= 0.5


def descend(
    problem: Problem,
    start: Draft,
    budget: float,
    effort: Effort,
    *,
    offer: Callable[[Draft], None],
) -> None:
    """Offer what becomes of a draft with more room, if that room goes bit by bit.

    Near the lowest peak hardly any change fits, so that a search stays where it begins.
    A little above it moves freely, and much of what it finds there can be brought down.
    """
    evaluator = problem.evaluator
    most = MOST_SECONDS * problem.step.baseline_seconds

    def stop(draft: Draft, level: float, heat: float) -> Draft:
        with effort.section(0.2):
            draft = evaluator.reorder(draft, level, effort.limit_units)
        units = effort.limit_units
        draft = evaluator.lower(draft, level, units, limit_seconds=most, tried=24)
        if draft.peak_bytes <= level:
            draft = evaluator.raise_up(draft, level, units)
        return evaluator.improve(draft, draft, level, heat, units)[0]

    with effort.section(DESCENT_SHARE):
        draft = start
        for left in range(STOPS, -1, -1):
            if effort.is_over():
                return
            level = budget * (1.0 + ABOVE * left / STOPS)
            heat = HEAT * problem.step.baseline_seconds * left / STOPS
            with effort.section(SHARE_ABOVE if left == STOPS else 1.0 / (left + 1)):
                draft = stop(draft, level, heat)
            offer(draft)

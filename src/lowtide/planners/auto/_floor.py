"""The lowest peak: a bound that no schedule beats, and a draft that comes near it."""

from __future__ import annotations

from collections.abc import Callable

from lowtide.planners.auto._bound import must_run
from lowtide.planners.auto._draft import Draft
from lowtide.planners.auto._effort import Effort
from lowtide.planners.auto._greedy import Options, lower
from lowtide.planners.auto._problem import Problem

# A plan that takes this many times the baseline is of no use to anyone.
MOST_SECONDS = 4.0


def peak_bound_bytes(problem: Problem) -> float:
    """Bytes that are alive at some moment of every schedule of this step."""
    size, held = problem.size, problem.held
    end = sum(b for b, is_held in zip(size, held, strict=True) if is_held)
    most = end
    for number in sorted(must_run(problem)):
        need = sum(size[s] for s in problem.reads[number])
        most = max(most, need + float(problem.write_bytes[number]))
    return problem.resident_bytes + most


def sink(
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
    problem = start.problem
    low, best = peak_bound_bytes(problem), best or start
    limit = MOST_SECONDS * problem.step.baseline_seconds
    options = Options(tried=24, batch=0.5, limit_seconds=limit)
    for _ in range(steps):
        if best.peak_bytes - low <= 0.004 * best.peak_bytes or effort.is_over():
            break
        target = low + 0.5 * (best.peak_bytes - low)
        draft = lower(start, target, effort, options)
        if draft.peak_bytes > target and best is not start:
            again = lower(best, target, effort, options)
            draft = min(draft, again, key=lambda d: d.peak_bytes)
        if draft.peak_bytes < best.peak_bytes:
            best = draft
            offer(best)
        if draft.peak_bytes > target:
            low = target
    return best

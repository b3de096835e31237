"""A better order of the baseline: outputs made as late as is worth it.

An output of the step, such as a weight's gradient, lives from its making to the end. An
op that makes one from fewer bytes than it writes is better run last: its inputs wait
instead of its output. At small batches this decides the floor.
"""

from __future__ import annotations

from lowtide.planners.auto._problem import Problem


def outputs_late(problem: Problem) -> list[int]:
    """The baseline with such ops moved to its end; the same list if there are none."""
    size, held = problem.size, problem.held
    waiting: set[int] = set()
    late: list[int] = []
    candidates = _movable(problem)
    grown = True
    while grown:
        grown = False
        for number in candidates:
            fresh = [s for s in problem.reads[number] if s not in waiting]
            wait = sum(size[s] for s in fresh if not held[s])
            if wait < sum(size[s] for s in problem.writes[number]):
                late.append(number)
                waiting.update(fresh)
                grown = True
        candidates = [i for i in candidates if i not in set(late)]
    moved = set(late)
    # Largest inputs first: the last ones run when all outputs are there.
    late.sort(key=lambda i: (-sum(size[s] for s in problem.reads[i]), i))
    return [i for i in problem.baseline if i not in moved] + late


def _movable(problem: Problem) -> list[int]:
    """Ops after the last region's start that only make outputs nobody reads."""
    read = {s for number in problem.baseline for s in problem.reads[number]}
    last_piece = problem.step.regions[-1].piece
    begun = max(
        (k for k, i in enumerate(problem.baseline) if problem.opens[i] >= 0), default=-1
    )
    return [
        i
        for i in problem.baseline[begun + 1 :]
        if not problem.fixed[i]
        and problem.piece[i] == last_piece
        and all(problem.held[s] and s not in read for s in problem.writes[i])
        and all(len(problem.step.producers[s]) == 1 for s in problem.writes[i])
    ]

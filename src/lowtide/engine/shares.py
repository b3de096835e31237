"""Plans for graphs that run several times in one step."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from lowtide import planners
from lowtide.engine.prepare import with_room_at_turn
from lowtide.errors import BudgetTooSmallError
from lowtide.step.graph import StepGraph
from lowtide.step.plan import Plan
from lowtide.step.schedule import crossing, make_plan, with_frees
from lowtide.step.simulate import simulate
from lowtide.step.units import to_bytes

_HALVINGS = 6


def plans_by_share(
    steps: Sequence[StepGraph],
    visits: Sequence[int],
    *,
    budget: Any,
    planner: str,
    time_limit: float,
) -> list[Plan]:
    """A plan for each graph, which all runs of it share.

    Every graph gets the same part of the range between its floor and its baseline, the
    largest at which all runs of all graphs together stay within the budget. What a
    graph keeps at its turn stays while the others run, so it is planned as if its turn
    needed much: then a lower limit means that less is kept there.
    """
    baseline = _together(steps, [step.baseline for step in steps], visits)
    budget_bytes = to_bytes(budget, baseline_bytes=baseline)
    find = planners.load(planner).plan
    narrow = [with_room_at_turn(step, step.baseline_peak_bytes) for step in steps]

    def plans_at(part: float) -> list[Plan]:
        plans: list[Plan] = []
        for step, tight in zip(steps, narrow, strict=True):
            spare = tight.baseline_peak_bytes - tight.floor_bytes
            limit = int(tight.floor_bytes + part * spare)
            found = find(tight, limit, time_limit=time_limit / 8)
            plans.append(make_plan(step, found.schedule, planner=planner))
        return plans

    def peak_of(plans: Sequence[Plan]) -> int:
        return _together(steps, [plan.ops for plan in plans], visits)

    best = plans_at(1.0)
    if peak_of(best) <= budget_bytes:
        return best
    best = plans_at(0.0)
    if peak_of(best) > budget_bytes:
        held = f"graphs that run {max(visits)} times in a step"
        raise BudgetTooSmallError(budget_bytes, peak_of(best), held)
    low, high = 0.0, 1.0
    for _ in range(_HALVINGS):
        middle = (low + high) / 2
        plans = plans_at(middle)
        if peak_of(plans) <= budget_bytes:
            low, best = middle, plans
        else:
            high = middle
    return best


def _together(
    steps: Sequence[StepGraph],
    sequences: Sequence[Sequence[int]],
    visits: Sequence[int],
) -> int:
    """Most bytes of a step in which every graph runs so many times.

    Each run holds from its forward to its backward what is alive at its turn: what it
    keeps for itself, and its outputs, which the next run starts from. Beside all that
    is held, one run at a time needs more.
    """
    resident = max(step.resident_bytes for step in steps)
    held = more = 0
    for step, sequence, number in zip(steps, sequences, visits, strict=True):
        schedule = with_frees(step, sequence)
        peak = simulate(step, schedule).peak_bytes - step.resident_bytes
        early = sequence[: sequence.index(step.turn)]
        returned = {s for i in early for s in step.ops[i].writes} & {*step.outputs}
        kept = returned.union(crossing(step, sequence))
        at_turn = sum(step.sizes[s] for s in kept)
        held += number * at_turn
        more = max(more, peak - at_turn)
    return resident + held + more

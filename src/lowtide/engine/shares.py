"""Limits that are divided: among the graphs of one step, and around its updates."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from lowtide.engine.prepare import with_room_at_turn
from lowtide.errors import BudgetTooSmallError
from lowtide.step.graph import StepGraph
from lowtide.step.plan import Plan
from lowtide.step.schedule import (
    blame,
    crossing,
    make_plan,
    settled,
    with_frees,
    without_spending,
)
from lowtide.step.simulate import simulate
from lowtide.step.units import to_bytes

# How often to halve the range in which the common share of several graphs lies.
_HALVINGS = 6


def with_updates(
    step: StepGraph, limit_bytes: int, find: Callable[[StepGraph, int], Plan]
) -> Plan:
    """A plan whose updates, if any, stand behind all that reads what they change.

    Planners place them where the baseline has them. A recomputation may need a
    parameter later than that; then its gradient waits, and the plan is made for as much
    less as that takes.
    """
    if not any(op.spends for op in step.ops):
        return find(step, limit_bytes)
    plain, limit = without_spending(step), limit_bytes
    for _ in range(_HALVINGS):
        found = find(plain, limit)
        schedule = with_frees(step, settled(step, found.ops))
        plan = make_plan(
            step, schedule, planner=found.planner, budget_bytes=limit_bytes
        )
        if plan.peak_bytes <= limit_bytes:
            return plan
        limit -= plan.peak_bytes - limit_bytes
    raise BudgetTooSmallError(limit_bytes, plan.peak_bytes, blame(step, schedule))


def plans_by_share(
    steps: Sequence[StepGraph],
    visits: Sequence[int],
    budget: Any,
    find: Callable[[StepGraph, int], Plan],
) -> tuple[list[Plan], int, int]:
    """A plan for each graph, which all runs of it share; their peak, and the budget.

    Every graph gets the same part of the range between its floor and its baseline, the
    largest at which all runs of all graphs together stay within the budget. What a
    graph keeps at its turn stays while the others run, so it is planned as if its turn
    needed much: then a lower limit means that less is kept there.
    """
    baseline = _together(steps, [step.baseline for step in steps], visits)
    budget_bytes = to_bytes(budget, baseline_bytes=baseline)
    narrow = [with_room_at_turn(step, step.baseline_peak_bytes) for step in steps]

    def plans_at(part: float) -> tuple[list[Plan], int]:
        plans: list[Plan] = []
        for step, tight in zip(steps, narrow, strict=True):
            spare = tight.baseline_peak_bytes - tight.floor_bytes
            plan = find(tight, int(tight.floor_bytes + part * spare))
            plans.append(make_plan(step, plan.schedule, planner=plan.planner))
        return plans, _together(steps, [plan.ops for plan in plans], visits)

    best, best_bytes = plans_at(1.0)
    if best_bytes <= budget_bytes:
        return best, best_bytes, budget_bytes
    best, best_bytes = plans_at(0.0)
    if best_bytes > budget_bytes:
        held = f"graphs that run {sum(visits)} times in a step"
        raise BudgetTooSmallError(budget_bytes, best_bytes, held)
    low, high = 0.0, 1.0
    for _ in range(_HALVINGS):
        middle = (low + high) / 2
        plans, peak_bytes = plans_at(middle)
        if peak_bytes <= budget_bytes:
            low, best, best_bytes = middle, plans, peak_bytes
        else:
            high = middle
    return best, best_bytes, budget_bytes


def _together(
    steps: Sequence[StepGraph],
    sequences: Sequence[Sequence[int]],
    visits: Sequence[int],
) -> int:
    """Most bytes of a step in which each graph runs this many times.

    Each run holds from its forward to its backward what is alive at its turn: what it
    keeps for itself, and its outputs, which the next run starts from. Beside all that
    is held, one run at a time needs its own peak.
    """
    resident = max(step.resident_bytes for step in steps)
    held = beside = 0
    for step, sequence, number in zip(steps, sequences, visits, strict=True):
        schedule = with_frees(step, sequence)
        peak = simulate(step, schedule).peak_bytes - step.resident_bytes
        early = sequence[: sequence.index(step.turn)]
        returned = {s for i in early for s in step.ops[i].writes} & {*step.outputs}
        kept = returned.union(crossing(step, sequence))
        at_turn = sum(step.sizes[s] for s in kept)
        held += number * at_turn
        beside = max(beside, peak - at_turn)
    return resident + held + beside

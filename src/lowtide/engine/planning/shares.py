"""Limits that are divided: among the graphs of one step, and around its updates."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any

from lowtide.engine.planning.prepare import with_room_at_turn
from lowtide.errors import BudgetTooSmallError
from lowtide.step.graph import StepGraph
from lowtide.step.plan import Plan, Run
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

# Asks a planner for a plan within a limit, or else for the lowest.
Find = Callable[[StepGraph, int | None], Plan]

# How often to halve the range in which the common share of several graphs lies.
_HALVINGS = 6


def with_updates(step: StepGraph, limit_bytes: int | None, find: Find) -> Plan:
    """A plan whose updates, if any, stand behind all that reads what they change.

    Planners place them where the baseline has them. A recomputation may need a
    parameter later than that; then its gradient waits, and the plan is made for as much
    less as that takes. Without a limit, or if none fits, the lowest is looked for.
    """
    if not any(op.spends for op in step.ops):
        return find(step, limit_bytes)
    plain, limit = without_spending(step), limit_bytes

    def with_its_updates(found: Plan) -> Plan:
        schedule = with_frees(step, settled(step, found.ops))
        given = {"planner": found.planner, "budget_bytes": limit_bytes}
        return make_plan(step, schedule, **given)

    bound_bytes = 0
    for _ in range(_HALVINGS):
        try:
            plan = with_its_updates(find(plain, limit))
        except BudgetTooSmallError as error:
            bound_bytes = error.bound_bytes
            break
        if limit is None or limit_bytes is None or plan.peak_bytes <= limit_bytes:
            return plan
        limit -= plan.peak_bytes - limit_bytes
    assert limit_bytes is not None
    lowest = with_its_updates(find(plain, None))
    if lowest.peak_bytes <= limit_bytes:
        return lowest
    why = blame(step, lowest.schedule)
    raise BudgetTooSmallError(limit_bytes, lowest.peak_bytes, why, bound_bytes)


def plans_by_share(
    steps: Sequence[StepGraph],
    visits: Sequence[int],
    budget: Any,
    find: Find,
    *,
    is_same: bool = False,
) -> tuple[list[Plan], int, int]:
    """A plan for each graph, which all runs of it share; their peak, and the budget.

    Runs of a graph are those of layers that are alike, each with its own parameters, or
    (`is_same`) those of one model with other inputs, whose gradients are added up.

    Every graph gets the same part of the range between the lowest peak that is found
    and its baseline, the largest at which all runs of all graphs together stay within
    the budget. What a graph keeps at its turn stays while the others run, so it is
    planned as if its turn needed much: then a lower limit means that less is kept
    there. If that is not enough, it is planned as if its turn needed as much as its
    own peak does, and a lower limit lowers both.
    """
    baseline = _together(steps, [step.baseline for step in steps], visits, is_same)
    budget_bytes = to_bytes(budget, baseline_bytes=baseline)
    much = [with_room_at_turn(step, step.baseline_peak_bytes) for step in steps]
    even = [with_room_at_turn(step, _beyond_turn(step)) for step in steps]
    narrow = much

    def together(found: Sequence[Plan]) -> tuple[list[Plan], int]:
        plans = [
            make_plan(step, plan.schedule, planner=plan.planner)
            for step, plan in zip(steps, found, strict=True)
        ]
        return plans, _together(steps, [plan.ops for plan in plans], visits, is_same)

    def plans_at(part: float) -> tuple[list[Plan], int]:
        return together(
            [
                find(tight, int(low + part * max(0, tight.baseline_peak_bytes - low)))
                for tight, low in zip(narrow, lows, strict=True)
            ]
        )

    least = sys.maxsize
    with suppress(BudgetTooSmallError):  # some planners need more than the baseline
        best, least = together([find(t, t.baseline_peak_bytes) for t in narrow])
        if least <= budget_bytes:
            return best, least, budget_bytes
    for narrow in (much, even):
        lowest = [find(tight, None) for tight in narrow]
        lows = [plan.peak_bytes for plan in lowest]
        best, best_bytes = together(lowest)
        least = min(least, best_bytes)
        if best_bytes <= budget_bytes:
            break
    else:
        held = f"graphs that run {sum(visits)} times in a step"
        raise BudgetTooSmallError(budget_bytes, least, held)
    low, high = 0.0, 1.0
    for _ in range(_HALVINGS):
        middle = (low + high) / 2
        plans, peak_bytes = plans_at(middle)
        if peak_bytes <= budget_bytes:
            low, best, best_bytes = middle, plans, peak_bytes
        else:
            high = middle
    return best, best_bytes, budget_bytes


def _beyond_turn(step: StepGraph) -> int:
    """By how much the peak of the baseline is above what is alive at its turn."""
    schedule = with_frees(step, step.baseline)
    timeline = simulate(step, schedule)
    return timeline.peak_bytes - timeline.live_bytes[schedule.index(Run(step.turn))]


def _together(
    steps: Sequence[StepGraph],
    sequences: Sequence[Sequence[int]],
    visits: Sequence[int],
    is_same: bool,
) -> int:
    """Most bytes of a step in which each graph runs this many times.

    Each run holds from its forward to its backward what is alive at its turn: what it
    keeps for itself, and its outputs, which the next run starts from. Then there are
    the gradients of its parameters; if these are the same in all runs, one set of them,
    beside those that a run makes. Beside all that, one run at a time needs its own
    peak. The update comes when nothing but gradients is left.
    """
    resident = max(step.resident_bytes for step in steps)
    held = beside = gradients = update = 0
    for step, sequence, number in zip(steps, sequences, visits, strict=True):
        schedule = with_frees(step, sequence)
        peak = 0
        for item, live in zip(
            schedule, simulate(step, schedule).live_bytes, strict=True
        ):
            if isinstance(item, Run) and step.ops[item.op].phase == "optimizer":
                update = max(update, step.ops[item.op].scratch_bytes)
            else:
                peak = max(peak, live - step.resident_bytes)
        early = sequence[: sequence.index(step.turn)]
        returned = {s for i in early for s in step.ops[i].writes} & {*step.outputs}
        kept = returned.union(crossing(step, sequence))
        behind = _parameter_gradient_bytes(step)
        meanwhile = sum(step.sizes[s] for s in kept)
        if is_same:
            peak += max(0, behind - meanwhile) if number > 1 else 0
            gradients += behind
        else:
            meanwhile = max(behind, meanwhile)
            gradients += number * behind
        held += number * meanwhile
        beside = max(beside, peak - meanwhile)
    return resident + max(held + beside, gradients + update)


def _parameter_gradient_bytes(step: StepGraph) -> int:
    """Bytes that a graph leaves to the optimizer; what it hands to others is not it."""
    parameters = {s.name for s in step.storages if s.kind == "parameter"}
    return sum(
        step.sizes[s]
        for s in step.outputs
        if step.storages[s].name.removeprefix("grad of ") in parameters
    )

"""Plans for the peak of activations alone, as publications count it.

A budget bounds the whole step; published cuts are of the activations. So a plan is made
for the same step with nothing but activations in it.
"""

from __future__ import annotations

from dataclasses import replace

from lowtide import planners
from lowtide.errors import BudgetTooSmallError
from lowtide.step.graph import StepGraph
from lowtide.step.plan import Plan
from lowtide.step.schedule import make_plan, walk_baseline
from lowtide.step.walk import walk


def activations_alone(step: StepGraph) -> StepGraph:
    """The step as publications count it: no residents, no outputs, no scratch."""
    lasting = frozenset(step.outputs).union(step.resident)
    storages = [replace(s, nbytes=0) if s.id in lasting else s for s in step.storages]
    ops = [replace(op, scratch_bytes=0) for op in step.ops]
    return replace(step, storages=tuple(storages), ops=tuple(ops))


def activation_peak_bytes(step: StepGraph, plan: Plan | None = None) -> int:
    """The peak of activations alone, as it is or with a plan."""
    walked = walk_baseline(step) if plan is None else walk(step, plan.schedule)
    return walked.activation_peak_bytes


def plan_for_cut(
    step: StepGraph,
    baseline_activation_bytes: int,
    cut: float,
    *,
    planner: str = "auto",
    time_limit: float = 20.0,
) -> Plan:
    """The fastest plan whose activation peak is lower by the cut, or else the lowest.

    Its proof speaks of the step with nothing but activations in it.
    """
    activations = activations_alone(step)
    goal = int((1 - cut) * baseline_activation_bytes)
    search = planners.load(planner).plan
    try:
        plan = search(activations, goal, time_limit=time_limit)
    except BudgetTooSmallError:
        plan = search(activations, None, time_limit=time_limit)
    return make_plan(step, plan.schedule, planner=plan.planner, proof=plan.proof)

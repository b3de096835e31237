"""Keep everything: the step as it is without lowtide.

Problem: none; this is the baseline that overhead and savings are measured against.
Idea: run every op once, in its order, and free each storage after its last use.

Reference: none; it is the step as PyTorch itself runs it.
Complexity: linear.
Loses whenever the baseline does not fit.
"""

from __future__ import annotations

from lowtide.step.graph import StepGraph
from lowtide.step.plan import Plan, Proof
from lowtide.step.schedule import plan_or_raise, with_frees


def plan(
    step: StepGraph, budget_bytes: int | None = None, *, time_limit: float = 10.0
) -> Plan:
    """The baseline as a plan."""
    return plan_or_raise(
        step,
        with_frees(step, step.baseline),
        planner="keep_all",
        budget_bytes=budget_bytes,
        proof=Proof(step.baseline_seconds, 0.0, "optimal"),
    )

"""Keep only what must be kept.

Problem: the fewest bytes held between forward and backward.
Idea: nothing is kept over the turn but what may not be made again (random draws without
a replay, values read from state that has changed). Every backward op makes what it
misses just before it runs, and what was made lives to its last use.

Reference: none; torch's partitioner does much the same at an activation memory budget
of 0, where it saves nothing but the inputs of its graph.
Complexity: linear in the ops it runs.
Loses on peak more often than not: the first backward op may need most of the forward,
which then lives again. It bounds the saved bytes, not the peak, and shows why the two
differ.
"""

from __future__ import annotations

from lowtide.step.graph import StepGraph
from lowtide.step.plan import Plan
from lowtide.step.schedule import from_kept, plan_or_raise


def plan(
    step: StepGraph, budget_bytes: int | None = None, *, time_limit: float = 10.0
) -> Plan:
    """The plan that keeps the least over the turn."""
    return plan_or_raise(
        step,
        from_kept(step, ()),
        planner="recompute_all",
        budget_bytes=budget_bytes,
    )

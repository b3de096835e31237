"""Sequences of ops that were simulated, and the choice among them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from lowtide.step.graph import StepGraph
from lowtide.step.plan import Plan
from lowtide.step.schedule import plan_or_raise, with_frees
from lowtide.step.simulate import simulate


@dataclass(frozen=True, slots=True)
class Tried:
    """A sequence, and what simulating it said."""

    sequence: tuple[int, ...]
    peak_bytes: int
    seconds: float

    @classmethod
    def of(cls, step: StepGraph, sequence: Sequence[int]) -> Tried:
        """Simulate a sequence."""
        timeline = simulate(step, with_frees(step, sequence))
        return cls(tuple(sequence), timeline.peak_bytes, timeline.seconds)


def fastest_within(tried: Iterable[Tried], budget_bytes: int) -> Tried | None:
    """The fastest that fits, or None."""
    fitting = [t for t in tried if t.peak_bytes <= budget_bytes]
    return min(fitting, key=lambda t: (t.seconds, t.peak_bytes), default=None)


def lowest(tried: Iterable[Tried]) -> Tried:
    """The one with the lowest peak."""
    return min(tried, key=lambda t: (t.peak_bytes, t.seconds))


def best_plan(
    step: StepGraph, tried: Sequence[Tried], *, planner: str, budget_bytes: int | None
) -> Plan:
    """The plan of the fastest that fits; without a budget, of the lowest.

    If none fits, the error names the lowest peak.
    """
    chosen = None
    if budget_bytes is not None:
        chosen = fastest_within(tried, budget_bytes)
    schedule = with_frees(step, (chosen or lowest(tried)).sequence)
    return plan_or_raise(step, schedule, planner=planner, budget_bytes=budget_bytes)

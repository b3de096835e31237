"""Sequences of ops that were simulated, and the choice among them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from lowtide.planners._memory import recall
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
        timeline = simulate(step, with_frees(step, sequence))
        return cls(tuple(sequence), timeline.peak_bytes, timeline.seconds)


def fastest_within(tried: Iterable[Tried], budget_bytes: int) -> Tried | None:
    fitting = [t for t in tried if t.peak_bytes <= budget_bytes]
    return min(fitting, key=lambda t: (t.seconds, t.peak_bytes), default=None)


def lowest(tried: Iterable[Tried]) -> Tried:
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


def planner_of(
    name: str, sequences: Callable[[StepGraph], Iterable[Sequence[int]]]
) -> Callable[..., Plan]:
    """The `plan` of a planner that tries the same sequences whatever the budget.

    Running everything once is always among them. They are simulated once per step, and
    a larger budget never gives a slower plan.
    """

    def plan(
        step: StepGraph, budget_bytes: int | None = None, *, time_limit: float = 10.0
    ) -> Plan:
        """The fastest sequence that fits; without a budget, that of least peak."""

        def simulated() -> list[Tried]:
            distinct = dict.fromkeys(map(tuple, (step.baseline, *sequences(step))))
            return [Tried.of(step, sequence) for sequence in distinct]

        if budget_bytes is not None and step.baseline_peak_bytes <= budget_bytes:
            tried = [Tried.of(step, step.baseline)]
        else:
            tried = recall(step, name, simulated)
        return best_plan(step, tried, planner=name, budget_bytes=budget_bytes)

    return plan

"""The whole trade between peak and time: one plan for each of several budgets.

`sweep` answers "what would each budget cost"; `lowest_peak` the opposite question, "how
low can the peak get for this much time". Both are torch-free.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass

from lowtide.errors import BudgetTooSmallError, InvalidArgumentError
from lowtide.planners import load
from lowtide.step.format import format_bytes, format_percent
from lowtide.step.graph import StepGraph
from lowtide.step.plan import Plan
from lowtide.step.units import Budget, to_bytes

# How often `lowest_peak` halves the range of budgets, with planners other than `auto`.
_HALVINGS = 10


@dataclass(frozen=True, slots=True)
class Point:
    """The fastest plan known for one budget."""

    budget_bytes: int
    peak_bytes: int
    seconds: float
    overhead: float
    plan: Plan


@dataclass(frozen=True, slots=True)
class Frontier:
    """Plans by rising budget; time never rises along it.

    `knee` is the point after which a lower peak costs clearly more time than before.
    `floor_bytes` is the lowest peak the planner finds. `unreachable` are the budgets
    asked for that lie below it.
    """

    points: tuple[Point, ...]
    knee: Point
    floor_bytes: int
    planner: str
    baseline_peak_bytes: int
    baseline_seconds: float
    unreachable: tuple[int, ...] = ()

    def __str__(self) -> str:
        lines = [f"{'budget':>10} {'peak':>10} {'of baseline':>11} {'time':>8}"]
        for p in self.points:
            share = format_percent(p.peak_bytes / max(1, self.baseline_peak_bytes))
            lines.append(
                f"{format_bytes(p.budget_bytes):>10} {format_bytes(p.peak_bytes):>10} "
                f"{share:>11} {format_percent(p.overhead, signed=True):>8}"
                + ("  knee" if p is self.knee else "")
            )
        return "\n".join(lines)


def sweep(
    step: StepGraph,
    *,
    budgets: int | Sequence[Budget] = 12,
    planner: str = "auto",
    time_limit: float = 30.0,
) -> Frontier:
    """The frontier of a step.

    Args:
        step: The step to plan.
        budgets: How many, spread from the floor to the baseline peak; or a list.
        planner: Any name in `lowtide.planners.available()`.
        time_limit: Seconds for all of it.

    Raises:
        BudgetTooSmallError: every budget of the list is below the floor.
    """
    lowest = load(planner).plan(step, None, time_limit=0.2 * time_limit)
    wanted = _budgets(step, budgets, lowest.peak_bytes)
    found = _plans(step, wanted, planner, 0.8 * time_limit)
    best = lowest
    points: list[Point] = []
    unreachable: list[int] = []
    for budget, plan in zip(wanted, found, strict=True):
        # Of equals the plan of this budget: its bound is that of its own budget.
        fitting = [p for p in (plan, best) if p and p.peak_bytes <= budget]
        if fitting:
            best = min(fitting, key=lambda p: p.seconds)
            numbers = best.peak_bytes, best.seconds, best.overhead
            points.append(Point(budget, *numbers, best))
        else:
            unreachable.append(budget)
    if not points:
        raise BudgetTooSmallError(max(wanted), lowest.peak_bytes)
    return Frontier(
        points=tuple(points),
        knee=_knee(points),
        floor_bytes=min(lowest.peak_bytes, *(p.peak_bytes for p in points)),
        planner=planner,
        baseline_peak_bytes=step.baseline_peak_bytes,
        baseline_seconds=step.baseline_seconds,
        unreachable=tuple(unreachable),
    )


def _budgets(
    step: StepGraph, budgets: int | Sequence[Budget], floor_bytes: int
) -> list[int]:
    if not isinstance(budgets, int):
        peak = step.baseline_peak_bytes
        return sorted({to_bytes(b, baseline_bytes=peak) for b in budgets})
    if budgets < 2:
        raise InvalidArgumentError(
            f"budgets={budgets}",
            "a frontier has at least two points",
            "Use a count of 2 or more, or a list of budgets",
        )
    span = step.baseline_peak_bytes - floor_bytes
    return sorted({floor_bytes + span * k // (budgets - 1) for k in range(budgets)})


def _plans(
    step: StepGraph, budgets: Sequence[int], planner: str, time_limit: float
) -> list[Plan | None]:
    if planner == "auto":
        from lowtide.planners.auto import frontier

        return frontier(step, budgets, time_limit=time_limit)
    limit = time_limit / len(budgets)
    return [_plan_or_none(step, planner, budget, limit) for budget in budgets]


def _plan_or_none(
    step: StepGraph, planner: str, budget_bytes: int, time_limit: float
) -> Plan | None:
    with suppress(BudgetTooSmallError):
        return load(planner).plan(step, budget_bytes, time_limit=time_limit)
    return None


def _knee(points: Sequence[Point]) -> Point:
    """The point furthest below the straight line between the ends."""
    first, last = points[0], points[-1]
    width = max(1, last.peak_bytes - first.peak_bytes)
    height = max(first.seconds - last.seconds, 1e-30)

    def depth(p: Point) -> float:
        x = (p.peak_bytes - first.peak_bytes) / width
        y = (p.seconds - last.seconds) / height
        return 1.0 - x - y

    return max(points, key=depth)


def lowest_peak(
    step: StepGraph,
    *,
    max_overhead: float,
    planner: str = "auto",
    time_limit: float = 10.0,
) -> Plan:
    """The plan with the lowest peak for at most this much extra time, as a fraction."""
    limit_seconds = step.baseline_seconds * (1.0 + max_overhead)
    if planner == "auto":
        from lowtide.planners.auto import lowest_within

        return lowest_within(step, limit_seconds, time_limit=time_limit)
    best = load("keep_all").plan(step, None)
    low, high = step.resident_bytes, best.peak_bytes
    for _ in range(_HALVINGS):
        middle = (low + high) // 2
        plan = _plan_or_none(step, planner, middle, time_limit / _HALVINGS)
        if plan and plan.seconds <= limit_seconds * (1 + 1e-12):
            best = min(best, plan, key=lambda p: (p.peak_bytes, p.seconds))
            high = min(middle, plan.peak_bytes)
        else:
            low = middle
    return best

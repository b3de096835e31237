"""The frontier: time against peak for every planner, and what is proven about it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from lowtide.reporting.inputs import Inputs, Point
from lowtide.step.graph import StepGraph
from lowtide.step.plan import Plan


def frontier(
    inputs: Inputs,
    plan: Plan,
    step: StepGraph | None,
    *,
    charts: Mapping[int, int] | None = None,
) -> dict[str, Any] | None:
    """Every point known for this step, or None if there is but one.

    `charts` says which of the report's tides belongs to the plan with this identity.
    """
    points = [*inputs.points]
    given = [p for p in inputs.plans if not any(_is_of(point, p) for point in points)]
    points.extend(_as_point(p) for p in given)
    if len(points) + len(inputs.references) < 2:
        return None
    charts = charts or {}
    rows = [
        {
            "planner": p.planner,
            "budget_bytes": p.budget_bytes,
            "peak_bytes": p.peak_bytes,
            "seconds": p.seconds,
            "overhead": p.overhead,
            "tide": charts.get(id(p.plan), -1),
            "is_shown": _is_of(p, plan),
            "is_best": not any(_beats(q, p) for q in points),
        }
        for p in points
    ]
    rows.sort(key=lambda r: (r["planner"], -r["peak_bytes"], r["seconds"]))
    return {
        "points": rows,
        "references": [
            {"name": r.name, "peak_bytes": r.peak_bytes, "overhead": r.overhead}
            for r in inputs.references
        ],
        "baseline_peak_bytes": plan.baseline_peak_bytes,
        "resident_bytes": plan.resident_bytes,
        "bound": bound(points),
        "bound_bytes": max(
            (p.plan.proof.bound_bytes for p in points if p.plan), default=0
        ),
    }


def _is_of(point: Point, plan: Plan) -> bool:
    """Whether a point is this plan's."""
    found = (point.planner, point.peak_bytes, point.seconds)
    return found == (plan.planner, plan.peak_bytes, plan.seconds)


def _beats(other: Point, point: Point) -> bool:
    """Whether another point of the same planner is lower, or faster, and not worse."""
    if other.planner != point.planner:
        return False
    one, two = (other.peak_bytes, other.seconds), (point.peak_bytes, point.seconds)
    return one != two and one[0] <= two[0] and one[1] <= two[1]


def _as_point(plan: Plan) -> Point:
    return Point(
        planner=plan.planner,
        budget_bytes=plan.budget_bytes,
        peak_bytes=plan.peak_bytes,
        seconds=plan.seconds,
        overhead=plan.overhead,
        plan=plan,
    )


def bound(points: list[Point]) -> list[dict[str, float]]:
    """The least overhead proven for each peak: a staircase that rises to the left.

    A bound proven for one budget holds for every smaller one, since whatever fits the
    smaller fits the larger.
    """
    proven: dict[int, float] = {}
    for point in points:
        plan = point.plan
        if plan is None or plan.baseline_seconds <= 0:
            continue
        least = plan.proof.bound_seconds / plan.baseline_seconds - 1
        if least > 0:
            proven[plan.budget_bytes] = max(least, proven.get(plan.budget_bytes, 0.0))
    corners: list[dict[str, float]] = []
    least = 0.0
    for budget in sorted(proven, reverse=True):
        if proven[budget] > least:
            least = proven[budget]
            corners.append({"budget_bytes": budget, "overhead": least})
    return corners


def search(plan: Plan) -> dict[str, Any] | None:
    """The search over time: how good the best plan was when, and the bound."""
    proof = plan.proof
    if len(proof.history) < 2 or plan.baseline_seconds <= 0:
        return None
    base = plan.baseline_seconds
    return {
        "incumbent": [
            {"search_seconds": at, "overhead": seconds / base - 1}
            for at, seconds in proof.history
        ],
        "bound_overhead": proof.bound_seconds / base - 1,
        "overhead": plan.overhead,
        "search_seconds": max(proof.search_seconds, proof.history[-1][0]),
        "stopped_by": proof.stopped_by,
        "gap": proof.gap,
    }

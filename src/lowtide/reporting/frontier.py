"""The frontier: time against peak for every planner, and what is proven about it."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

from lowtide.reporting.inputs import Inputs, point_of
from lowtide.step.plan import Plan

POINT = ("planner", "budget_bytes", "peak_bytes", "seconds", "overhead")


def frontier(
    inputs: Inputs, plan: Plan, views: Mapping[int, int]
) -> dict[str, Any] | None:
    """Every plan known for this step as a point, or None if there is only one.

    `views` says which of the report's views shows the plan with this identity.
    """
    points = [*inputs.frontier]
    known = [point_of(p) for p in points]
    points += [p for p in inputs.plans if point_of(p) not in known]
    if len(points) + len(inputs.references) < 2:
        return None
    rows = [
        {
            **{name: getattr(p, name) for name in POINT},
            "view": views.get(id(p), -1),
            "is_shown": point_of(p) == point_of(plan),
            "is_best": not any(_beats(q, p) for q in points),
        }
        for p in points
    ]
    rows.sort(key=lambda r: (r["planner"], -r["peak_bytes"], r["seconds"]))
    return {
        "points": rows,
        "references": [asdict(reference) for reference in inputs.references],
        "eager_peak_bytes": inputs.unplanned_peak_bytes(plan),
        "bound": bound(points),
        "bound_bytes": max((p.proof.bound_bytes for p in points), default=0),
    }


def _beats(other: Plan, plan: Plan) -> bool:
    """Whether another plan of the same planner is lower, or faster, and not worse."""
    if other.planner != plan.planner:
        return False
    one, two = (other.peak_bytes, other.seconds), (plan.peak_bytes, plan.seconds)
    return one != two and one[0] <= two[0] and one[1] <= two[1]


def bound(plans: Sequence[Plan]) -> list[dict[str, float]]:
    """The least overhead proven for each peak: a staircase that rises to the left.

    A bound proven for one budget holds for every smaller one, since whatever fits the
    smaller fits the larger.
    """
    proven: dict[int, float] = {}
    for plan in plans:
        known = proven.get(plan.budget_bytes, 0.0)
        proven[plan.budget_bytes] = max(known, bound_overhead(plan))
    corners: list[dict[str, float]] = []
    least = 0.0
    for budget in sorted(proven, reverse=True):
        if proven[budget] > least:
            least = proven[budget]
            corners.append({"budget_bytes": budget, "overhead": least})
    return corners


def bound_overhead(plan: Plan) -> float:
    """The least overhead that is proven possible at the plan's budget."""
    if plan.baseline_seconds <= 0:
        return 0.0
    return plan.proof.bound_seconds / plan.baseline_seconds - 1


def search(plan: Plan) -> dict[str, Any] | None:
    """The search over time: how good the best plan was when, and the bound."""
    proof = plan.proof
    if len(proof.history) < 2 or plan.baseline_seconds <= 0:
        return None
    base, best = plan.baseline_seconds, math.inf
    incumbent: list[dict[str, float]] = []
    for at, seconds in proof.history:
        # What is faster than the plan in the end did not fit the budget.
        if plan.seconds <= seconds < best:
            best = seconds
            incumbent.append({"search_seconds": at, "overhead": best / base - 1})
    return {
        "incumbent": incumbent,
        "bound_overhead": bound_overhead(plan),
        "overhead": plan.overhead,
        "search_seconds": max(proof.search_seconds, proof.history[-1][0]),
        "stopped_by": proof.stopped_by,
        "gap": proof.gap,
    }

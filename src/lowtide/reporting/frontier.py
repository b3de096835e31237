"""The frontier: time against peak for every planner, and what is proven about it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

from lowtide.reporting.inputs import Inputs
from lowtide.step.plan import Plan


def frontier(
    inputs: Inputs, plan: Plan, charts: Mapping[int, int]
) -> dict[str, Any] | None:
    """Every plan known for this step as a point, or None if there is but one.

    `charts` says which of the report's tides belongs to the plan with this identity.
    """
    points = [*inputs.frontier]
    points += [p for p in inputs.plans if not any(_equal(p, q) for q in points)]
    if len(points) + len(inputs.references) < 2:
        return None
    rows = [
        {
            "planner": p.planner,
            "budget_bytes": p.budget_bytes,
            "peak_bytes": p.peak_bytes,
            "seconds": p.seconds,
            "overhead": p.overhead,
            "tide": charts.get(id(p), -1),
            "is_shown": _equal(p, plan),
            "is_best": not any(_beats(q, p) for q in points),
        }
        for p in points
    ]
    rows.sort(key=lambda r: (r["planner"], -r["peak_bytes"], r["seconds"]))
    return {
        "points": rows,
        "references": [asdict(reference) for reference in inputs.references],
        "baseline_peak_bytes": plan.baseline_peak_bytes,
        "resident_bytes": plan.resident_bytes,
        "bound": bound(points),
        "bound_bytes": max((p.proof.bound_bytes for p in points), default=0),
    }


def _equal(one: Plan, two: Plan) -> bool:
    """Whether two plans are one point."""
    found = (one.planner, one.peak_bytes, one.seconds)
    return found == (two.planner, two.peak_bytes, two.seconds)


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
    base = plan.baseline_seconds
    return {
        "incumbent": [
            {"search_seconds": at, "overhead": seconds / base - 1}
            for at, seconds in proof.history
        ],
        "bound_overhead": bound_overhead(plan),
        "overhead": plan.overhead,
        "search_seconds": max(proof.search_seconds, proof.history[-1][0]),
        "stopped_by": proof.stopped_by,
        "gap": proof.gap,
    }

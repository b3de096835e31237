"""A report on a difference: both tides over each other, and what changed."""

from __future__ import annotations

from typing import Any

from lowtide.reporting import tables
from lowtide.reporting.data import card, head, ops_of
from lowtide.reporting.diff import Diff
from lowtide.reporting.tide import FULL_LIMIT, KIND_NAMES, outline, tide
from lowtide.reporting.walk import Walk
from lowtide.step.format import format_bytes
from lowtide.step.graph import StepGraph
from lowtide.step.plan import Plan
from lowtide.step.schedule import with_frees


def build_diff(diff: Diff, *, title: str = "", command: str = "") -> dict[str, Any]:
    """The data of a report that shows two plans, or two steps, over each other."""
    walks = [
        _walk(t, s) for t, s in zip((diff.first, diff.second), diff.steps, strict=True)
    ]
    first, second = walks
    tides: list[dict[str, Any]] = []
    ops = ops_of(None)
    if first is not None and second is not None:
        chart = tide(second, label=diff.names[1])
        chart["budget_bytes"] = getattr(diff.second, "budget_bytes", 0)
        chart["overhead"] = getattr(diff.second, "overhead", 0.0)
        chart["outline"] = outline(
            first, second, label=diff.names[0], limit=FULL_LIMIT // 10
        )
        tides, ops = [chart], ops_of(second.step)
    return {
        **head(
            title or f"{diff.names[0]} and {diff.names[1]}",
            getattr(diff.second, "fingerprint", ""),
            command,
        ),
        "is_profile": isinstance(diff.first, StepGraph),
        "headline": _headline(diff),
        "cards": _cards(diff),
        "kinds": [
            {"kind": k, "name": n}
            for k, n in KIND_NAMES.items()
            if any(k in t["by_kind"] for t in tides)
        ],
        "ops": ops,
        "tides": tides,
        "measured": None,
        "frontier": None,
        "lifetimes": tables.lifetimes(second) if second and tides else [],
        "modules": [],
        "recompute_by_op": [],
        "peak": tables.at_peak(second) if second and tides else None,
        "batch": [],
        "fidelity": None,
        "search": None,
        "diff": {
            "names": list(diff.names),
            "rows": [
                dict(
                    zip(
                        ("name", "first", "second", "change"),
                        (c.name, *c.texts),
                        strict=True,
                    )
                )
                for c in diff.changes
            ],
            "parts": diff.to_dict()["parts"],
        },
        "notes": [],
    }


def _walk(thing: Plan | StepGraph, step: StepGraph | None) -> Walk | None:
    if isinstance(thing, Plan):
        return None if step is None else Walk(step, thing.schedule)
    return Walk(thing, with_frees(thing, thing.baseline))


def _headline(diff: Diff) -> str:
    if diff.is_empty:
        return "Nothing differs."
    peaks = {c.name: c for c in diff.changes}
    change = peaks.get("peak") or peaks["baseline peak"]
    first, second, _ = change.texts
    if change.first == change.second:
        return f"The peak is {first} in both."
    verb = "falls" if change.second < change.first else "rises"
    return (
        f"From {diff.names[0]} to {diff.names[1]} the peak {verb} from {first} to "
        f"{second}, by {format_bytes(abs(change.second - change.first))}."
    )


def _cards(diff: Diff) -> list[dict[str, Any]]:
    shown = ("baseline peak", "peak", "time", "overhead", "resident")
    found: list[dict[str, Any]] = []
    for change in diff.changes:
        if change.name in shown:
            first, second, difference = change.texts
            found.append(
                card(
                    change.name.replace(" ", "_"),
                    change.name.capitalize(),
                    difference if difference == "equal" else difference.split(" (")[0],
                    f"{first} to {second}",
                    number=change.second - change.first,
                )
            )
    return found

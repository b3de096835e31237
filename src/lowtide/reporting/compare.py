"""A report on a difference: both tides over each other, and what changed."""

from __future__ import annotations

from typing import Any

from lowtide.reporting import tables
from lowtide.reporting.cards import card
from lowtide.reporting.data import ops_of, report_data
from lowtide.reporting.diff import Diff
from lowtide.reporting.tide import FULL_LIMIT, outline, tide
from lowtide.step.format import format_bytes
from lowtide.step.graph import StepGraph
from lowtide.step.names import with_short_names
from lowtide.step.plan import Plan
from lowtide.step.schedule import walk_baseline
from lowtide.step.walk import Walk, walk


def build_diff(diff: Diff, *, title: str = "", command: str = "") -> dict[str, Any]:
    """The data of a report that shows two plans, or two steps, over each other."""
    sections: dict[str, Any] = {
        "is_profile": isinstance(diff.first, StepGraph),
        "headline": _headline(diff),
        "cards": _cards(diff),
        "diff": {
            "names": list(diff.names),
            "rows": [
                {"name": c.name, "first": first, "second": second, "change": change}
                for c in diff.changes
                for first, second, change in (c.texts,)
            ],
            "parts": diff.to_dict()["parts"],
        },
    }
    first, second = map(_walk, (diff.first, diff.second), diff.steps)
    if first is not None and second is not None and first.runs and second.runs:
        plan = diff.second if isinstance(diff.second, Plan) else None
        over = outline(first, second, label=diff.names[0], limit=FULL_LIMIT // 10)
        sections["tides"] = [tide(second, label=diff.names[1], plan=plan, over=over)]
        sections["ops"] = ops_of(second.step.ops)
        sections["lifetimes"] = tables.lifetimes(second)
        sections["peak"] = tables.at_peak(second)
    name = title or f"{diff.names[0]} and {diff.names[1]}"
    return report_data(name, diff.second.fingerprint, command, sections)


def _walk(thing: Plan | StepGraph, step: StepGraph | None) -> Walk | None:
    if isinstance(thing, StepGraph):
        return walk_baseline(with_short_names(thing))
    return None if step is None else walk(with_short_names(step), thing.schedule)


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

"""The report as plain data: built once here, drawn by renderers that compute nothing.

The result holds only strings, numbers, lists and dicts, so it is also what
`Report.to_dict` returns and what a page offers to download. Sections without data are
None or empty, and renderers leave them out.
"""

from __future__ import annotations

from collections.abc import Sequence
from importlib.metadata import PackageNotFoundError, version
from typing import Any

from lowtide.reporting import cards, fidelity, frontier, tables
from lowtide.reporting.inputs import Inputs
from lowtide.reporting.tide import FULL_LIMIT, SMALL_LIMIT, outline, tide
from lowtide.step.format import (
    format_bytes,
    format_count,
    format_seconds,
)
from lowtide.step.graph import Op, StepGraph
from lowtide.step.names import KIND_NAMES, shortened
from lowtide.step.plan import Plan
from lowtide.step.schedule import make_plan, walk_baseline
from lowtide.step.walk import Walk, walk

SCHEMA = 1
TIDE_LIMIT = 60


def build(inputs: Inputs, *, title: str = "", command: str = "") -> dict[str, Any]:
    """The data of a report on one step, one plan, or both."""
    step = inputs.step
    plan = inputs.plans[0] if inputs.plans else inputs.knee
    subject = plan or step
    assert subject is not None  # sort_things refuses a report on nothing
    name = subject.step_name if isinstance(subject, Plan) else subject.name
    if step is not None:
        sections = _charts(inputs, step, plan)
    else:
        assert plan is not None
        sections = _promises(inputs, plan)
        notes = [_note(text) for text in inputs.notes]
        sections["notes"] = [*notes, _note(_NO_STEP, "assumption")]
    return report_data(title or name, subject.fingerprint, command, sections)


def report_data(
    title: str, fingerprint: str, command: str, sections: dict[str, Any]
) -> dict[str, Any]:
    """A report with these sections; the others are empty."""
    try:
        release = version("lowtide")
    except PackageNotFoundError:  # run from a source tree that is not installed
        release = ""
    tides = sections.get("tides", [])
    empty: dict[str, Any] = {
        "lowtide": "report",
        "schema": SCHEMA,
        "version": release,
        "title": shortened(title),
        "fingerprint": fingerprint,
        "command": command,
        "is_profile": False,
        "headline": "",
        "cards": [],
        "kinds": [
            {"kind": kind, "name": name}
            for kind, name in KIND_NAMES.items()
            if any(kind in tide["by_kind"] for tide in tides)
        ],
        "ops": ops_of(()),
        "tides": [],
        "measured": None,
        "frontier": None,
        "lifetimes": [],
        "modules": [],
        "recompute_by_op": [],
        "peak": None,
        "batch": [],
        "fidelity": None,
        "search": None,
        "notes": [],
    }
    return {**empty, **sections}


def _promises(inputs: Inputs, plan: Plan) -> dict[str, Any]:
    """What can be said of a plan without its step: its numbers, but no charts."""
    return {
        "headline": cards.headline(plan),
        "cards": cards.plan_cards(inputs, plan, None),
        "frontier": frontier.frontier(inputs, plan, {}),
        "batch": sorted(inputs.batch, key=lambda r: r["batch"]),
        "fidelity": fidelity.fidelity(inputs, plan),
        "search": frontier.search(plan),
    }


def _charts(inputs: Inputs, step: StepGraph, plan: Plan | None) -> dict[str, Any]:
    """All that a report shows of a step, and of a plan unless it is only a profile."""
    baseline = walk_baseline(step)
    is_profile = plan is None
    if plan is None:
        walked = baseline
        plan = make_plan(step, baseline.schedule, planner="keep_all")
    else:
        walked = walk(step, plan.schedule)
    tides, charts = _tides(inputs, plan, walked, baseline)
    measured = inputs.measured.get("baseline" if is_profile else "planned")
    sections = {
        **_promises(inputs, plan),
        "is_profile": is_profile,
        "cards": cards.plan_cards(inputs, plan, (walked, baseline)),
        "ops": ops_of(step.ops),
        "tides": tides,
        "frontier": frontier.frontier(inputs, plan, charts) if tides else None,
        "measured": fidelity.measured_line(measured, walked),
        "lifetimes": tables.lifetimes(walked),
        "modules": tables.modules(walked),
        "recompute_by_op": tables.recompute_by_op(walked),
        "peak": tables.at_peak(walked),
        "notes": _notes(inputs, walked, None if is_profile else plan),
    }
    if is_profile:
        sections["cards"] = cards.profile_cards(inputs, baseline)
        sections["headline"] = (
            f"The step peaks at {format_bytes(plan.peak_bytes)} and takes "
            f"{format_seconds(plan.seconds)}. Nothing is planned yet."
        )
    return sections


def _tides(
    inputs: Inputs, plan: Plan, walked: Walk, baseline: Walk
) -> tuple[list[dict[str, Any]], dict[int, int]]:
    """The chart of each plan, the shown one's first, and which plan has which."""
    if not walked.runs:
        return [], {}
    charts: dict[int, int] = {id(plan): 0}
    over = None
    if walked.schedule != baseline.schedule:
        over = outline(baseline, walked, label="baseline", limit=FULL_LIMIT // 10)
    tides = [tide(walked, label=plan.planner, plan=plan, over=over, limit=FULL_LIMIT)]
    for other in (*inputs.plans[1:], *inputs.frontier):
        if id(other) in charts:
            continue
        if other.schedule == plan.schedule:
            charts[id(other)] = 0
        elif len(tides) < TIDE_LIMIT:
            charts[id(other)] = len(tides)
            found = walk(walked.step, other.schedule)
            over = outline(baseline, found, label="baseline", limit=SMALL_LIMIT // 2)
            tides.append(
                tide(
                    found, label=other.planner, plan=other, over=over, limit=SMALL_LIMIT
                )
            )
    return tides, charts


def ops_of(ops: Sequence[Op]) -> dict[str, list[Any]]:
    """What the report says about each op, in columns."""
    columns = ("name", "target", "module", "source", "seconds")
    return {column: [getattr(op, column) for op in ops] for column in columns}


_PROOFS = {
    "rule": "This planner follows a rule and proves nothing: the bound is the time of "
    "the step with everything kept.",
    "time_limit": "The search stopped at its time limit; the gap says how much of the "
    "time is not proven necessary.",
}


_NO_STEP = (
    "The step of this plan was not given, so there are no charts. Pass the step as "
    "well to see them."
)


def _note(text: str, kind: str = "note") -> dict[str, str]:
    return {"kind": kind, "text": text}


def _notes(inputs: Inputs, walk: Walk, plan: Plan | None) -> list[dict[str, str]]:
    step = walk.step
    notes = [_note(text) for text in (*inputs.notes, *step.notes)]
    pieces = len({region.piece for region in step.regions})
    if pieces > 1:
        text = f"The step was captured in {pieces} pieces: what crosses from one to "
        notes.append(_note(f"{text}the next is kept.", "graph break"))
    reasons: dict[str, list[str]] = {}
    for op in step.ops:
        if op.once and op.opens < 0:
            reasons.setdefault(op.once, []).append(op.name)
    for reason, names in reasons.items():
        ops = f"{format_count(len(names), 'op')} may not run twice ({reason})"
        notes.append(_note(f"{ops}: {_some(names)}.", "runs once"))
    if plan is not None and plan.proof.stopped_by in _PROOFS:
        notes.append(_note(_PROOFS[plan.proof.stopped_by], "proof"))
    if len(walk.runs) > FULL_LIMIT:
        text = f"Of {len(walk.runs)} runs the chart shows {FULL_LIMIT}: the highest "
        text += "and the lowest moment of each stretch, so the peak is there."
        notes.append(_note(text, "drawing"))
    return notes


def _some(names: Sequence[str], limit: int = 6) -> str:
    shown = ", ".join(names[:limit])
    return shown if len(names) <= limit else f"{shown} and {len(names) - limit} more"

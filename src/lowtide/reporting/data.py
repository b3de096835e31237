"""The report as plain data: built once here, drawn by renderers that compute nothing.

The result holds only strings, numbers, lists and dicts, so it is also what
`Report.to_dict` returns and what a page offers to download. Sections without data are
None or empty, and renderers leave them out.
"""

from __future__ import annotations

from collections.abc import Sequence
from importlib.metadata import PackageNotFoundError, version
from typing import Any

from lowtide.reporting import fidelity, frontier, tables
from lowtide.reporting.inputs import Inputs, Measured
from lowtide.reporting.tide import FULL_LIMIT, SMALL_LIMIT, outline, tide
from lowtide.step.format import (
    format_bytes,
    format_count,
    format_percent,
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
        sections["notes"] = [*_given_notes(inputs), _NO_STEP]
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
        "headline": _headline(plan),
        "cards": cards(inputs, plan, None),
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
        "cards": cards(inputs, plan, (walked, baseline), is_profile=is_profile),
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
    return {
        "name": [op.name for op in ops],
        "target": [op.target for op in ops],
        "module": [op.module for op in ops],
        "source": [op.source for op in ops],
        "seconds": [op.seconds for op in ops],
    }


def _headline(plan: Plan) -> str:
    saved = plan.baseline_peak_bytes - plan.peak_bytes
    if saved <= 0:
        return (
            f"The peak stays at {format_bytes(plan.peak_bytes)}: the step fits its "
            "budget as it is."
        )
    share = saved / plan.baseline_peak_bytes
    time = (
        f"for {format_percent(plan.overhead)} more time"
        if plan.overhead >= 0.0005
        else "for no extra time"
    )
    return (
        f"The peak falls from {format_bytes(plan.baseline_peak_bytes)} to "
        f"{format_bytes(plan.peak_bytes)}, {format_percent(share)} less, {time}."
    )


def card(
    name: str, label: str, value: str, detail: str = "", *, number: Any = None
) -> dict[str, Any]:
    """One card: a label, a value to read, a detail below, and the exact number."""
    return {
        "id": name,
        "label": label,
        "value": value,
        "detail": detail,
        "number": number,
    }


def bytes_card(
    name: str, label: str, num_bytes: int, detail: str = ""
) -> dict[str, Any]:
    """A card of bytes."""
    return card(name, label, format_bytes(num_bytes), detail, number=num_bytes)


def cards(
    inputs: Inputs,
    plan: Plan,
    walks: tuple[Walk, Walk] | None,
    *,
    is_profile: bool = False,
) -> list[dict[str, Any]]:
    """The numbers at the top of the report. `walks`: the plan's and the baseline's."""
    found: list[dict[str, Any]] = []
    if not is_profile:
        found.append(_budget_card(plan))
        found.append(bytes_card("peak", "Predicted peak", plan.peak_bytes, _less(plan)))
    if "planned" in inputs.measured:
        found.append(_measured_card(inputs.measured["planned"], plan))
    measured = inputs.measured.get("baseline")
    found.append(
        bytes_card(
            "baseline",
            "Peak as it is" if is_profile else "Baseline peak",
            plan.baseline_peak_bytes,
            f"measured {format_bytes(measured.peak_bytes)}"
            if measured is not None
            else "everything kept",
        )
    )
    if is_profile:
        found.append(card("seconds", "Time", format_seconds(plan.seconds), "predicted"))
    else:
        found.append(_overhead_card(plan))
        found.append(_gap_card(plan))
    if walks is not None:
        found.append(_within_card(*walks, is_profile=is_profile))
    found.append(
        bytes_card(
            "resident", "Resident", plan.resident_bytes, "no plan can free these"
        )
    )
    if not is_profile:
        found.append(_planner_card(plan, walks[0] if walks else None))
    if inputs.step is not None:
        found.append(_step_card(inputs.step))
    return found


def _budget_card(plan: Plan) -> dict[str, Any]:
    share = plan.budget_bytes / max(1, plan.baseline_peak_bytes)
    return bytes_card(
        "budget",
        "Budget",
        plan.budget_bytes,
        f"{format_percent(share)} of the baseline",
    )


def _less(plan: Plan) -> str:
    saved = 1 - plan.peak_bytes / max(1, plan.baseline_peak_bytes)
    return f"{format_percent(saved)} below the baseline"


def _measured_card(measurement: Measured, plan: Plan) -> dict[str, Any]:
    ratio = measurement.peak_bytes / max(1, plan.peak_bytes) - 1
    detail = (
        "equal to the byte"
        if measurement.peak_bytes == plan.peak_bytes
        else f"{format_percent(ratio, signed=True)} against the prediction"
    )
    return bytes_card("measured", "Measured peak", measurement.peak_bytes, detail)


def _overhead_card(plan: Plan) -> dict[str, Any]:
    return card(
        "overhead",
        "Overhead",
        format_percent(plan.overhead, signed=True),
        f"{format_seconds(plan.baseline_seconds)} to {format_seconds(plan.seconds)}",
        number=plan.overhead,
    )


def _gap_card(plan: Plan) -> dict[str, Any]:
    proof = plan.proof
    value = "optimal" if proof.gap <= 0 else f"<= {format_percent(proof.gap)}"
    extra = format_percent(max(0.0, _bound_overhead(plan)), signed=True)
    return card("gap", "Gap", value, f"proven: at least {extra}", number=proof.gap)


def _bound_overhead(plan: Plan) -> float:
    if plan.baseline_seconds <= 0:
        return 0.0
    return plan.proof.bound_seconds / plan.baseline_seconds - 1


def _within_card(walk: Walk, baseline: Walk, *, is_profile: bool) -> dict[str, Any]:
    before = format_bytes(baseline.activation_peak_bytes)
    return bytes_card(
        "within",
        "Activation peak",
        walk.activation_peak_bytes,
        "made and freed within the step" if is_profile else f"baseline {before}",
    )


def _planner_card(plan: Plan, walk: Walk | None) -> dict[str, Any]:
    searched = plan.proof.search_seconds
    again = f"{format_count(len(plan.recomputed), 'op')} recomputed"
    if walk is not None:
        again = format_count(walk.num_extra_runs, "extra run")
    detail = f"{len(plan.kept)} kept, {again}"
    if searched:
        detail += f", {format_seconds(searched)} of search"
    return card("planner", "Planner", plan.planner, detail)


def _step_card(step: StepGraph) -> dict[str, Any]:
    torch = step.facts.get("torch", "")
    return card(
        "device",
        "Device",
        step.device or "not said",
        f"{len(step.baseline)} ops" + (f", torch {torch}" if torch else ""),
    )


_PROOFS = {
    "rule": "This planner follows a rule and proves nothing: the bound is the time of "
    "the step with everything kept.",
    "time_limit": "The search stopped at its time limit; the gap says how much of the "
    "time is not proven necessary.",
}


_NO_STEP = {
    "kind": "assumption",
    "text": "The step of this plan was not given, so there are no charts. Pass the "
    "step as well to see them.",
}


def _given_notes(inputs: Inputs) -> list[dict[str, str]]:
    return [{"kind": "note", "text": text} for text in inputs.notes]


def _notes(inputs: Inputs, walk: Walk, plan: Plan | None) -> list[dict[str, str]]:
    step, notes = walk.step, _given_notes(inputs)
    notes += [{"kind": "note", "text": text} for text in step.notes]
    pieces = {r.piece for r in step.regions}
    if len(pieces) > 1:
        notes.append(
            {
                "kind": "graph break",
                "text": f"The step was captured in {len(pieces)} pieces: what crosses "
                "from one to the next is kept.",
            }
        )
    notes.extend(_once_notes(step))
    if plan is not None and plan.proof.stopped_by in _PROOFS:
        notes.append({"kind": "proof", "text": _PROOFS[plan.proof.stopped_by]})
    if len(walk.runs) > FULL_LIMIT:
        notes.append(
            {
                "kind": "drawing",
                "text": f"Of {len(walk.runs)} runs the chart shows {FULL_LIMIT}: the "
                "highest and the lowest moment of each stretch, so the peak is there.",
            }
        )
    return notes


def _once_notes(step: StepGraph) -> list[dict[str, str]]:
    """One note for each reason why ops may not run twice."""
    reasons: dict[str, list[str]] = {}
    for op in step.ops:
        if op.once and op.opens < 0:
            reasons.setdefault(op.once, []).append(op.name)
    return [
        {
            "kind": "runs once",
            "text": f"{format_count(len(names), 'op')} may not run twice "
            f"({reason}): {_some(names)}.",
        }
        for reason, names in reasons.items()
    ]


def _some(names: Sequence[str], limit: int = 6) -> str:
    shown = ", ".join(names[:limit])
    return shown if len(names) <= limit else f"{shown} and {len(names) - limit} more"

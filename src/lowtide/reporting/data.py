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
from lowtide.reporting.inputs import Inputs
from lowtide.reporting.tide import FULL_LIMIT, KIND_NAMES, SMALL_LIMIT, outline, tide
from lowtide.reporting.walk import Walk
from lowtide.step.format import format_bytes, format_percent, format_seconds
from lowtide.step.graph import StepGraph
from lowtide.step.plan import Plan
from lowtide.step.schedule import make_plan, with_frees

SCHEMA = 1
TIDE_LIMIT = 60


def build(inputs: Inputs, *, title: str = "", command: str = "") -> dict[str, Any]:
    """The data of a report on one step, one plan, or both."""
    step = inputs.step
    plan = _shown_plan(inputs)
    if step is None:
        assert plan is not None  # sort_things refuses a report on nothing
        return _without_step(inputs, plan, title=title, command=command)
    baseline = Walk(step, with_frees(step, step.baseline))
    is_profile = plan is None
    if plan is None:
        plan = make_plan(step, baseline.items, planner="keep_all")
    walk = Walk(step, plan.schedule)
    drawn, tides = _tides(inputs, plan, walk, baseline)
    return {
        **head(title or plan.step_name, plan.fingerprint, command),
        "is_profile": is_profile,
        "headline": _headline(plan, is_profile=is_profile),
        "cards": cards(inputs, plan, walk, baseline, is_profile=is_profile),
        "kinds": [
            {"kind": k, "name": n}
            for k, n in KIND_NAMES.items()
            if any(k in t["by_kind"] for t in tides)
        ],
        "ops": ops_of(step),
        "tides": tides,
        "measured": fidelity.measured_line(inputs, walk),
        "frontier": drawn,
        "lifetimes": tables.lifetimes(walk),
        "modules": tables.modules(walk),
        "recompute_by_op": tables.recompute_by_op(walk),
        "peak": tables.at_peak(walk),
        "batch": sorted(inputs.batch, key=lambda r: r["batch"]),
        "fidelity": fidelity.fidelity(inputs, plan),
        "search": frontier.search(plan),
        "notes": _notes(inputs, step, walk),
    }


def head(title: str, fingerprint: str, command: str) -> dict[str, Any]:
    """What every report starts with."""
    try:
        release = version("lowtide")
    except PackageNotFoundError:  # run from a source tree that is not installed
        release = ""
    return {
        "lowtide": "report",
        "schema": SCHEMA,
        "version": release,
        "title": title,
        "fingerprint": fingerprint,
        "command": command,
    }


def _without_step(
    inputs: Inputs, plan: Plan, *, title: str, command: str
) -> dict[str, Any]:
    """A report on a plan alone: its promises and names, but no charts."""
    notes = [{"kind": "note", "text": text} for text in inputs.notes]
    notes.append(
        {
            "kind": "assumption",
            "text": "The step of this plan was not given, so there are no charts. "
            "Pass the step as well to see them.",
        }
    )
    return {
        **head(title or plan.step_name, plan.fingerprint, command),
        "is_profile": False,
        "headline": _headline(plan, is_profile=False),
        "cards": cards(inputs, plan, None, None, is_profile=False),
        "kinds": [],
        "ops": ops_of(None),
        "tides": [],
        "measured": None,
        "frontier": frontier.frontier(inputs, plan, None),
        "lifetimes": [],
        "modules": [],
        "recompute_by_op": [],
        "peak": None,
        "batch": sorted(inputs.batch, key=lambda r: r["batch"]),
        "fidelity": fidelity.fidelity(inputs, plan),
        "search": frontier.search(plan),
        "notes": notes,
    }


def _shown_plan(inputs: Inputs) -> Plan | None:
    """The plan the report is about: the first given, else the frontier's knee."""
    if inputs.plans or inputs.knee:
        return inputs.plans[0] if inputs.plans else inputs.knee
    plans = [p.plan for p in inputs.points if p.plan is not None]
    if not plans:
        return None
    cheap = [p for p in plans if p.overhead <= 0.10]
    if cheap:
        return min(cheap, key=lambda p: (p.peak_bytes, p.seconds))
    return min(plans, key=lambda p: p.seconds)


def _tides(
    inputs: Inputs, plan: Plan, walk: Walk, baseline: Walk
) -> tuple[dict[str, Any] | None, list[dict[str, Any]]]:
    """The frontier and the chart of each of its plans, the shown plan's first."""
    if not walk.ops:
        return None, []
    shown = tide(walk, label=plan.planner, limit=FULL_LIMIT)
    shown["budget_bytes"] = plan.budget_bytes
    shown["overhead"] = plan.overhead
    shown["outline"] = (
        None
        if walk.items == baseline.items
        else outline(baseline, walk, label="baseline", limit=FULL_LIMIT // 10)
    )
    tides = [shown]
    charts: dict[int, int] = {id(plan): 0}
    for other in [*inputs.plans[1:], *(p.plan for p in inputs.points)]:
        if other is None or id(other) in charts:
            continue
        if other.schedule == plan.schedule:
            charts[id(other)] = 0
        elif len(tides) < TIDE_LIMIT:
            charts[id(other)] = len(tides)
            tides.append(_small_tide(other, walk.step, baseline))
    return frontier.frontier(inputs, plan, walk.step, charts=charts), tides


def _small_tide(plan: Plan, step: StepGraph, baseline: Walk) -> dict[str, Any]:
    walk = Walk(step, plan.schedule)
    chart = tide(walk, label=plan.planner, limit=SMALL_LIMIT)
    chart["budget_bytes"] = plan.budget_bytes
    chart["overhead"] = plan.overhead
    chart["outline"] = outline(baseline, walk, label="baseline", limit=SMALL_LIMIT // 2)
    return chart


def ops_of(step: StepGraph | None) -> dict[str, list[Any]]:
    """What the report says about each op, in columns."""
    ops = () if step is None else step.ops
    return {
        "name": [op.name for op in ops],
        "target": [op.target for op in ops],
        "module": [op.module for op in ops],
        "source": [op.source for op in ops],
        "seconds": [op.seconds for op in ops],
    }


def _headline(plan: Plan, *, is_profile: bool) -> str:
    if is_profile:
        return (
            f"The step peaks at {format_bytes(plan.peak_bytes)} and takes "
            f"{format_seconds(plan.seconds)}. Nothing is planned yet."
        )
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
    walk: Walk | None,
    baseline: Walk | None,
    *,
    is_profile: bool,
) -> list[dict[str, Any]]:
    """The numbers at the top of the report."""
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
    if walk is not None and baseline is not None:
        found.append(_within_card(walk, baseline, is_profile=is_profile))
    found.append(
        bytes_card(
            "resident", "Resident", plan.resident_bytes, "no plan can free these"
        )
    )
    if not is_profile:
        found.append(_planner_card(plan))
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


def _measured_card(measurement: Any, plan: Plan) -> dict[str, Any]:
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
    before = format_bytes(baseline.within_step_bytes)
    return bytes_card(
        "within",
        "Activation peak",
        walk.within_step_bytes,
        "made and freed within the step" if is_profile else f"baseline {before}",
    )


def _planner_card(plan: Plan) -> dict[str, Any]:
    searched = plan.proof.search_seconds
    detail = f"{len(plan.kept)} kept, {len(plan.recomputed)} ops recomputed"
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


def _notes(inputs: Inputs, step: StepGraph, walk: Walk) -> list[dict[str, str]]:
    notes = [{"kind": "note", "text": text} for text in (*inputs.notes, *step.notes)]
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
    plan = _shown_plan(inputs)
    if plan is not None and plan.proof.stopped_by in _PROOFS:
        notes.append({"kind": "proof", "text": _PROOFS[plan.proof.stopped_by]})
    if len(walk.ops) > FULL_LIMIT:
        notes.append(
            {
                "kind": "drawing",
                "text": f"Of {len(walk.ops)} runs the chart shows {FULL_LIMIT}: the "
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
            "text": f"{len(names)} op{'s' * (len(names) > 1)} may not run twice "
            f"({reason}): {_some(names)}.",
        }
        for reason, names in reasons.items()
    ]


def _some(names: Sequence[str], limit: int = 6) -> str:
    shown = ", ".join(names[:limit])
    return shown if len(names) <= limit else f"{shown} and {len(names) - limit} more"

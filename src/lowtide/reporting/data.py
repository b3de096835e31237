"""The report as plain data: built once here, drawn by renderers that compute nothing.

The result holds only strings, numbers, lists and dicts, so it is also what
`Report.to_dict` returns and what a page offers to download. Sections without data are
None or empty, and renderers leave them out.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from lowtide import __version__
from lowtide.planners.keep_all import plan as keep_all
from lowtide.reporting import cards, fidelity, frontier, tables
from lowtide.reporting.diff import Diff
from lowtide.reporting.inputs import Inputs
from lowtide.reporting.tide import FULL_LIMIT, SMALL_LIMIT, outline, tide
from lowtide.step.format import format_bytes, format_count
from lowtide.step.graph import StepGraph
from lowtide.step.names import KIND_NAMES, shortened, titles, with_short_names
from lowtide.step.plan import Plan
from lowtide.step.schedule import walk_baseline
from lowtide.step.walk import Walk, walk

SCHEMA = 2
VIEW_LIMIT = 60


def build(inputs: Inputs, *, title: str = "", command: str = "") -> dict[str, Any]:
    """The data of a report on one step, one plan, or both."""
    step = inputs.step
    plan = inputs.plans[0] if inputs.plans else inputs.knee
    subject = plan or step
    assert subject is not None  # sort_things refuses a report on nothing
    name = subject.step_name if isinstance(subject, Plan) else subject.name
    sections: dict[str, Any] = {
        "batch": inputs.batch,
        "batch_budget_bytes": inputs.batch_budget_bytes,
    }
    if step is not None:
        sections |= _charts(inputs, step, plan)
    else:
        assert plan is not None
        notes = [_note(text) for text in inputs.notes]
        sections |= {
            "views": [view(inputs, plan)],
            "frontier": frontier.frontier(inputs, plan, {}),
            "fidelity": fidelity.fidelity(inputs, plan),
            "notes": [*notes, _note(_NO_STEP, "assumption")],
        }
    return report_data(title or name, subject.fingerprint, command, sections)


def report_data(
    title: str, fingerprint: str, command: str, sections: dict[str, Any]
) -> dict[str, Any]:
    """A report with these sections; the others are empty."""
    tides = [view["tide"] for view in sections["views"] if view["tide"]]
    empty: dict[str, Any] = {
        "lowtide": "report",
        "schema": SCHEMA,
        "version": __version__,
        "title": shortened(title),
        "fingerprint": fingerprint,
        "command": command,
        "is_profile": False,
        "batch_budget_bytes": 0,
        "kinds": [
            {"kind": kind, "name": name}
            for kind, name in KIND_NAMES.items()
            if any(kind in tide["by_kind"] for tide in tides)
        ],
        "ops": ops_of(None),
        **{"views": [], "batch": [], "notes": []},
        **{"frontier": None, "fidelity": None, "diff": None},
    }
    return {**empty, **sections}


def view(
    inputs: Inputs,
    plan: Plan,
    walks: tuple[Walk, Walk] | None = None,
    *,
    is_small: bool = False,
) -> dict[str, Any]:
    """All that a report says about one plan; choosing another shows another view.

    Without `walks`, the plan's and the baseline's, there are numbers but no charts.
    """
    found: dict[str, Any] = {
        "headline": cards.headline(inputs, plan),
        "cards": cards.plan_cards(inputs, plan, walks),
        "search": frontier.search(plan),
    }
    if walks is None:
        return {**NO_CHARTS, **found}
    walked, baseline = walks
    limit, thin = (SMALL_LIMIT, 2) if is_small else (FULL_LIMIT, 10)
    over = None
    if walked.schedule != baseline.schedule:
        over = outline(baseline, walked, label="baseline", limit=limit // thin)
    eager, label = inputs.unplanned_peak_bytes(plan), plan.planner
    shown = tide(
        walked, label=label, plan=plan, over=over, eager_peak_bytes=eager, limit=limit
    )
    return {**NO_CHARTS, **found, **charts_of(walked, shown, is_small=is_small)}


def charts_of(
    walked: Walk, shown: dict[str, Any], *, is_small: bool = False
) -> dict[str, Any]:
    """The charts and tables of one schedule, around its tide."""
    return {
        "tide": shown if walked.runs else None,
        "lifetimes": tables.lifetimes(walked, limit=40 if is_small else 200),
        "modules": tables.modules(walked, limit=200 if is_small else 2_000),
        "recompute_by_op": tables.recompute_by_op(walked),
        "peak": tables.at_peak(walked),
        "icicle": tables.icicle(walked),
    }


NO_CHARTS: dict[str, Any] = {
    **{"headline": "", "cards": [], "search": None},
    **{"tide": None, "measured": None, "peak": None, "icicle": None},
    **{"lifetimes": [], "modules": [], "recompute_by_op": []},
}


def _charts(inputs: Inputs, step: StepGraph, plan: Plan | None) -> dict[str, Any]:
    """All that a report shows of a step, and of plans unless it is only a profile."""
    baseline = walk_baseline(step)
    is_profile = plan is None
    if plan is None:
        plan = replace(keep_all(step), budget_bytes=inputs.batch_budget_bytes)
    walked = baseline if is_profile else walk(step, plan.schedule)
    first = view(inputs, plan, (walked, baseline))
    measured = inputs.measured.get("baseline" if is_profile else "planned")
    first["measured"] = fidelity.measured_line(measured, walked)
    if is_profile:
        first["cards"] = cards.profile_cards(inputs, plan, baseline)
        first["headline"] = cards.profile_headline(inputs, plan)
    views, places = _other_views(inputs, plan, baseline)
    return {
        "is_profile": is_profile,
        "views": [first, *views],
        "ops": ops_of(step),
        "frontier": frontier.frontier(inputs, plan, places) if walked.runs else None,
        "fidelity": fidelity.fidelity(inputs, plan),
        "notes": _notes(inputs, walked, None if is_profile else plan),
    }


def _other_views(
    inputs: Inputs, plan: Plan, baseline: Walk
) -> tuple[list[dict[str, Any]], dict[int, int]]:
    """A view for every plan but the first, and which plan has which view."""
    # What was measured and verified is the first plan's.
    unmeasured = replace(inputs, measured={}, verification=None)
    places = {id(plan): 0}
    views: list[dict[str, Any]] = []
    for other in (*inputs.plans[1:], *inputs.frontier):
        if other.schedule == plan.schedule:
            places[id(other)] = 0
        elif id(other) not in places and len(views) + 1 < VIEW_LIMIT:
            walks = (walk(baseline.step, other.schedule), baseline)
            views.append(view(unmeasured, other, walks, is_small=True))
            places[id(other)] = len(views)
    return views, places


def ops_of(step: StepGraph | None) -> dict[str, list[Any]]:
    """What the report says about each op, in columns."""
    columns = ("name", "target", "module", "source", "seconds")
    ops = step.ops if step else ()
    found = {column: [getattr(op, column) for op in ops] for column in columns}
    return {"title": list(titles(step)) if step else [], **found}


_NO_STEP = "The step of this plan was not given: pass it as well to see the charts."
_PROOFS = {
    "rule": "This planner follows a rule and proves nothing: the bound is the time of "
    "the step with everything kept.",
    "time_limit": "The search stopped at its time limit; the gap is the part of the "
    "time that is not proven necessary.",
    "clock": "The machine was too busy: the search was stopped by the clock and not by "
    "its counted work, so the same limit may give another plan.",
}


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
    for op, title in zip(step.ops, titles(step), strict=True):
        if op.once and op.opens < 0:
            reasons.setdefault(op.once, []).append(title)
    for reason, names in reasons.items():
        ops = f"{format_count(len(names), 'op')} may not run twice ({reason})"
        shown = ", ".join(names[:6])
        more = f" and {len(names) - 6} more" if len(names) > 6 else ""
        notes.append(_note(f"{ops}: {shown}{more}.", "runs once"))
    if plan is not None and plan.proof.stopped_by in _PROOFS:
        notes.append(_note(_PROOFS[plan.proof.stopped_by], "proof"))
    if len(walk.runs) > FULL_LIMIT:
        text = f"Of {len(walk.runs)} runs the chart shows {FULL_LIMIT}: the highest "
        text += "and the lowest moment of each stretch, so the peak is there."
        notes.append(_note(text, "drawing"))
    return notes


def build_diff(diff: Diff, *, title: str = "", command: str = "") -> dict[str, Any]:
    """The data of a report that shows two plans, or two steps, over each other."""
    keys = ("name", "first", "second", "change")
    rows = [dict(zip(keys, (c.name, *c.texts), strict=True)) for c in diff.changes]
    parts = diff.to_dict()["parts"]
    sections: dict[str, Any] = {
        "is_profile": isinstance(diff.first, StepGraph),
        "views": [dict(NO_CHARTS)],
        "diff": {"names": list(diff.names), "rows": rows, "parts": parts},
    }
    first, second = map(_walk, (diff.first, diff.second), diff.steps)
    if first is not None and second is not None and first.runs and second.runs:
        plan = diff.second if isinstance(diff.second, Plan) else None
        over = outline(first, second, label=diff.names[0], limit=FULL_LIMIT // 10)
        shown = tide(second, label=diff.names[1], plan=plan, over=over)
        # What is kept and recomputed is in the parts of the difference.
        sections["views"] = [{**NO_CHARTS, **charts_of(second, shown), "modules": []}]
        sections["ops"] = ops_of(second.step)
    sections["views"][0] |= {"headline": _headline(diff), "cards": _diff_cards(diff)}
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


def _diff_cards(diff: Diff) -> list[dict[str, Any]]:
    main = ("peak", "baseline peak", "time", "overhead")
    found: list[dict[str, Any]] = []
    for c in diff.changes:
        if c.name in (*main, "resident"):
            before, value, change = c.texts
            look: dict[str, Any] = {"before": before, "is_main": c.name in main}
            name, label = c.name.replace(" ", "_"), c.name.capitalize()
            # By how much in percent is in the table of changes.
            shown = (value, change.split(" (")[0], c.second - c.first)
            found.append(cards.card(name, label, *shown, **look))
    return found

"""What stands at the top of a report: one sentence, three cards, a row of facts."""

from __future__ import annotations

from typing import Any

from lowtide.reporting.frontier import bound_overhead
from lowtide.reporting.inputs import Inputs
from lowtide.step.analysis.ops import extra_runs
from lowtide.step.format import (
    format_bytes,
    format_count,
    format_percent,
    format_seconds,
)
from lowtide.step.names import short_target
from lowtide.step.plan import Plan
from lowtide.step.walk import Walk


def headline(inputs: Inputs, plan: Plan) -> str:
    """What the plan does, in a sentence."""
    before, peak = inputs.unplanned_peak_bytes(plan), format_bytes(plan.peak_bytes)
    if plan.budget_bytes >= before and plan.overhead <= 0:
        return f"The step already fits: it peaks at {peak} and recomputes nothing."
    share = format_percent(1 - plan.peak_bytes / max(1, before))
    time = "no extra time"
    if plan.overhead >= 0.0005:
        time = f"{format_percent(plan.overhead)} more time"
    if plan.peak_bytes >= before:
        return f"The peak stays at {peak}, for {time}."
    first = format_bytes(before)
    return f"The peak falls from {first} to {peak}, {share} less, for {time}."


def profile_headline(inputs: Inputs, plan: Plan) -> str:
    """What a step needs without a plan, or which batch sizes a budget has room for."""
    if not (room := inputs.batch_budget_bytes) or not inputs.batch:
        peak = format_bytes(inputs.unplanned_peak_bytes(plan))
        seconds = format_seconds(plan.seconds)
        return f"The step peaks at {peak} and takes {seconds}. Nothing is planned yet."
    plain, planned = (
        max(
            (row["batch"] for row in inputs.batch if (row[key] or room + 1) <= room),
            default=0,
        )
        for key in ("baseline_peak_bytes", "planned_peak_bytes")
    )
    return (
        f"Within {format_bytes(room)}, the largest of these batches is {plain} samples "
        f"without a plan and {planned} samples with one."
    )


def card(
    name: str,
    label: str,
    value: str | int,
    detail: str = "",
    number: float | None = None,
    *,
    before: str = "",
    is_main: bool = False,
) -> dict[str, Any]:
    """A label, a value to read, what it was before, a detail, and the exact number.

    A value that is a number is bytes. The main ones are cards of their own on the page;
    the others share a row.
    """
    if isinstance(value, int):
        value, number = format_bytes(value), value
    return {
        "id": name,
        "label": label,
        "before": before,
        "value": value,
        "detail": detail,
        "number": number,
        "is_main": is_main,
    }


def profile_cards(inputs: Inputs, plan: Plan, baseline: Walk) -> list[dict[str, Any]]:
    """The numbers of a step without a plan."""
    within, peak = baseline.activation_peak_bytes, inputs.unplanned_peak_bytes(plan)
    detail = "everything kept"
    if "baseline" in inputs.measured:
        detail = f"measured {format_bytes(inputs.measured['baseline'].peak_bytes)}"
    time, made = format_seconds(baseline.seconds), "made and freed within the step"
    return [
        card("peak", "Peak", peak, detail, is_main=True),
        card("time", "Time", time, "predicted", baseline.seconds, is_main=True),
        card("within", "Activation peak", within, made, is_main=True),
        _resident(baseline.step.resident_bytes),
        *_device(inputs),
    ]


def plan_cards(
    inputs: Inputs, plan: Plan, walks: tuple[Walk, Walk] | None
) -> list[dict[str, Any]]:
    """The numbers of a plan. `walks` are its own and the baseline's, if known."""
    base = max(1, inputs.unplanned_peak_bytes(plan))
    share = f"{format_percent(plan.budget_bytes / base)} of the unplanned peak"
    found = [
        *(_peak(inputs, plan, base), _time(inputs, plan), _bits(inputs)),
        card("budget", "Budget", plan.budget_bytes, share),
        _gap(plan),
    ]
    if walks is None:
        again = format_count(len(plan.recomputed), "op")
        found.append(card("recomputed", "Recomputed", again))
    else:
        within, before = (walk.activation_peak_bytes for walk in walks)
        detail = f"baseline {format_bytes(before)}"
        found.append(_recomputed(walks[0]))
        found.append(card("within", "Activation peak", within, detail))
    detail = f"{len(plan.kept)} kept"
    if plan.proof.search_seconds:
        detail += f", {format_seconds(plan.proof.search_seconds)} of search"
    return [
        *found,
        _resident(plan.resident_bytes),
        card("planner", "Planner", plan.planner, detail),
        *_device(inputs),
    ]


def _peak(inputs: Inputs, plan: Plan, base: int) -> dict[str, Any]:
    detail = f"{format_percent(1 - plan.peak_bytes / base)} less"
    if "planned" in inputs.measured:
        peak = inputs.measured["planned"].peak_bytes
        away = format_percent(peak / max(1, plan.peak_bytes) - 1, signed=True)
        away = "as predicted" if peak == plan.peak_bytes else away
        detail += f"; measured {format_bytes(peak)} ({away})"
    before = format_bytes(base)
    return card("peak", "Peak", plan.peak_bytes, detail, before=before, is_main=True)


def _time(inputs: Inputs, plan: Plan) -> dict[str, Any]:
    before, after = map(format_seconds, (plan.baseline_seconds, plan.seconds))
    detail = format_percent(plan.overhead, signed=True)
    measured = inputs.measured.get("planned")
    if measured is not None and measured.baseline_seconds > 0:
        real = measured.seconds / measured.baseline_seconds - 1
        detail += f"; measured {format_percent(real, signed=True)}"
    look: dict[str, Any] = {"before": before, "is_main": True}
    return card("time", "Time", after, detail, plan.overhead, **look)


def _bits(inputs: Inputs) -> dict[str, Any]:
    """Whether loss and gradients were compared with those of the plain step."""
    value, detail = "not compared yet", "lowtide verify compares every gradient"
    if (found := inputs.verification) is not None:
        gradients = format_count(found.num_gradients, "gradient")
        value, detail = "identical", f"loss, {gradients}, buffers, random numbers"
        if found.differences:
            value, detail = "DIFFERENT", found.differences[0]
    return card("bits", "Bits", value, detail, is_main=True)


def _recomputed(walk: Walk) -> dict[str, Any]:
    """How many runs are extra, what they take, and which kinds of ops lead."""
    runs = extra_runs(walk, lambda op: short_target(op.target))
    kinds = sorted(runs, key=lambda name: (-runs[name].num_runs, name))
    leading = [f"{name} {runs[name].num_runs}" for name in kinds[:3]]
    leading += ["..."] * (len(kinds) > 3)
    seconds = format_seconds(sum(extra.seconds for extra in runs.values()))
    detail = ": ".join(filter(None, (seconds, ", ".join(leading))))
    again = format_count(walk.num_extra_runs, "extra run")
    return card("recomputed", "Recomputed", again, detail)


def _gap(plan: Plan) -> dict[str, Any]:
    gap = plan.proof.gap
    value = "optimal" if gap <= 0 else f"<= {format_percent(gap)}"
    least = format_percent(max(0.0, bound_overhead(plan)), signed=True)
    return card("gap", "Gap", value, f"proven: at least {least}", gap)


def _resident(nbytes: int) -> dict[str, Any]:
    return card("resident", "Resident", nbytes, "no plan can free these")


def _device(inputs: Inputs) -> list[dict[str, Any]]:
    if (step := inputs.step) is None:
        return []
    torch = f", torch {step.facts['torch']}" if "torch" in step.facts else ""
    detail = f"{len(step.baseline)} ops{torch}"
    return [card("device", "Device", step.device or "not said", detail)]

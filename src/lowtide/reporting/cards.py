"""What stands at the top of a report: one sentence and the numbers that matter most."""

from __future__ import annotations

from typing import Any

from lowtide.reporting.frontier import bound_overhead
from lowtide.reporting.inputs import Inputs
from lowtide.step.format import (
    format_bytes,
    format_count,
    format_percent,
    format_seconds,
)
from lowtide.step.plan import Plan
from lowtide.step.walk import Walk


def headline(plan: Plan) -> str:
    """What the plan does, in a sentence."""
    peak = format_bytes(plan.peak_bytes)
    saved = plan.baseline_peak_bytes - plan.peak_bytes
    if saved <= 0:
        return f"The peak stays at {peak}: the step fits its budget as it is."
    share = format_percent(saved / plan.baseline_peak_bytes)
    time = "no extra time"
    if plan.overhead >= 0.0005:
        time = f"{format_percent(plan.overhead)} more time"
    before = format_bytes(plan.baseline_peak_bytes)
    return f"The peak falls from {before} to {peak}, {share} less, for {time}."


def card(
    name: str, label: str, value: str, detail: str = "", number: float | None = None
) -> dict[str, Any]:
    """One card: a label, a value to read, a detail below, and the exact number."""
    keys = ("id", "label", "value", "detail", "number")
    return dict(zip(keys, (name, label, value, detail, number), strict=True))


def _bytes(name: str, label: str, nbytes: int, detail: str) -> dict[str, Any]:
    return card(name, label, format_bytes(nbytes), detail, nbytes)


def profile_cards(inputs: Inputs, baseline: Walk) -> list[dict[str, Any]]:
    """The numbers of a step without a plan."""
    seconds = format_seconds(baseline.seconds)
    within = baseline.activation_peak_bytes
    return [
        _baseline(inputs, "Peak as it is", baseline.peak_bytes),
        card("seconds", "Time", seconds, "predicted"),
        _bytes("within", "Activation peak", within, "made and freed within the step"),
        _resident(baseline.step.resident_bytes),
        *_device(inputs),
    ]


def plan_cards(
    inputs: Inputs, plan: Plan, walks: tuple[Walk, Walk] | None
) -> list[dict[str, Any]]:
    """The numbers of a plan. `walks` are its own and the baseline's, if known."""
    base = max(1, plan.baseline_peak_bytes)
    share = f"{format_percent(plan.budget_bytes / base)} of the baseline"
    below = f"{format_percent(1 - plan.peak_bytes / base)} below the baseline"
    seconds = [format_seconds(t) for t in (plan.baseline_seconds, plan.seconds)]
    overhead = format_percent(plan.overhead, signed=True)
    found = [
        _bytes("budget", "Budget", plan.budget_bytes, share),
        _bytes("peak", "Predicted peak", plan.peak_bytes, below),
        *_measured(inputs, plan),
        _baseline(inputs, "Baseline peak", plan.baseline_peak_bytes),
        card("overhead", "Overhead", overhead, " to ".join(seconds), plan.overhead),
        _gap(plan),
    ]
    again = f"{format_count(len(plan.recomputed), 'op')} recomputed"
    if walks is not None:
        within, before = (walk.activation_peak_bytes for walk in walks)
        detail = f"baseline {format_bytes(before)}"
        found.append(_bytes("within", "Activation peak", within, detail))
        again = format_count(walks[0].num_extra_runs, "extra run")
    detail = f"{len(plan.kept)} kept, {again}"
    if plan.proof.search_seconds:
        detail += f", {format_seconds(plan.proof.search_seconds)} of search"
    return [
        *found,
        _resident(plan.resident_bytes),
        card("planner", "Planner", plan.planner, detail),
        *_device(inputs),
    ]


def _measured(inputs: Inputs, plan: Plan) -> list[dict[str, Any]]:
    if "planned" not in inputs.measured:
        return []
    peak = inputs.measured["planned"].peak_bytes
    detail = "equal to the byte"
    if peak != plan.peak_bytes:
        ratio = format_percent(peak / max(1, plan.peak_bytes) - 1, signed=True)
        detail = f"{ratio} against the prediction"
    return [_bytes("measured", "Measured peak", peak, detail)]


def _baseline(inputs: Inputs, label: str, nbytes: int) -> dict[str, Any]:
    detail = "everything kept"
    if "baseline" in inputs.measured:
        detail = f"measured {format_bytes(inputs.measured['baseline'].peak_bytes)}"
    return _bytes("baseline", label, nbytes, detail)


def _gap(plan: Plan) -> dict[str, Any]:
    gap = plan.proof.gap
    value = "optimal" if gap <= 0 else f"<= {format_percent(gap)}"
    least = format_percent(max(0.0, bound_overhead(plan)), signed=True)
    return card("gap", "Gap", value, f"proven: at least {least}", gap)


def _resident(nbytes: int) -> dict[str, Any]:
    return _bytes("resident", "Resident", nbytes, "no plan can free these")


def _device(inputs: Inputs) -> list[dict[str, Any]]:
    if (step := inputs.step) is None:
        return []
    torch = f", torch {step.facts['torch']}" if "torch" in step.facts else ""
    detail = f"{len(step.baseline)} ops{torch}"
    return [card("device", "Device", step.device or "not said", detail)]

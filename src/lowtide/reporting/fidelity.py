"""Prediction against measurement: peaks, times, and live bytes over the step."""

from __future__ import annotations

from bisect import bisect_right
from itertools import accumulate
from typing import Any

from lowtide.reporting.inputs import Inputs, Measured, Verified
from lowtide.reporting.tide import curve
from lowtide.step.plan import Plan
from lowtide.step.walk import Walk

LINE_LIMIT = 4_000


def fidelity(inputs: Inputs, plan: Plan) -> dict[str, Any] | None:
    """Predicted and measured numbers side by side, or None if nothing was measured."""
    checks = _checks(inputs.verification) if inputs.verification else []
    if not inputs.measured and not checks:
        return None
    rows: list[dict[str, Any]] = []
    baseline, planned = (inputs.measured.get(k) for k in ("baseline", "planned"))
    if baseline is not None:
        peak = (plan.baseline_peak_bytes, baseline.peak_bytes)
        rows.append(_row("baseline", "peak", "bytes", *peak))
        times = (plan.baseline_seconds, baseline.seconds)
        rows.append(_row("baseline", "time", "seconds", *times))
    elif planned is not None:
        # A planned step is timed in turns with the unplanned one.
        times = (plan.baseline_seconds, planned.baseline_seconds)
        rows.append(_row("baseline", "time", "seconds", *times))
    if planned is not None:
        for what, unit, predicted, real in (
            ("peak", "bytes", plan.peak_bytes, planned.peak_bytes),
            ("time", "seconds", plan.seconds, planned.seconds),
        ):
            rows.append(_row("with the plan", what, unit, predicted, real))
    return {"rows": rows, "checks": checks, "rss": _rss(inputs)}


def _row(
    name: str, what: str, unit: str, predicted: float, measured: float
) -> dict[str, Any]:
    return {
        "name": name,
        "what": what,
        "unit": unit,
        "predicted": predicted,
        "measured": measured,
        "difference": measured / predicted - 1 if predicted else 0.0,
    }


def _rss(inputs: Inputs) -> list[dict[str, Any]]:
    """What the operating system saw, where it was asked."""
    return [
        {"name": label, "bytes": found.rss_peak_bytes}
        for label, found in inputs.measured.items()
        if found.rss_peak_bytes
    ]


def _checks(verification: Verified) -> list[dict[str, Any]]:
    """What was compared bit by bit, and whether it was equal."""
    found = {
        "loss": verification.loss_equal,
        "gradients": verification.gradients_equal,
        "buffers": verification.buffers_equal,
        "random generator": verification.rng_equal,
    }
    return [{"name": name, "equal": equal} for name, equal in found.items()]


def measured_line(measured: Measured | None, walk: Walk) -> dict[str, Any] | None:
    """The measured live bytes as a line over the chart, or None if there are none.

    A measurement has one value for each allocation and release of the real step, in
    order and without times. The walk predicts how many of them each run has, so a
    value stands at the run in which the same share of them has happened.
    """
    if measured is None or not measured.live_bytes or not walk.runs:
        return None
    happened = list(accumulate(_events(walk)))
    share = (happened[-1] or 1) / len(measured.live_bytes)
    last = len(walk.runs) - 1
    places = [
        min(last, bisect_right(happened, i * share))
        for i in range(len(measured.live_bytes))
    ]
    return curve(walk, measured.live_bytes, places, label="measured", limit=LINE_LIMIT)


def _events(walk: Walk) -> list[int]:
    """For each run, how often bytes are allocated or released: its results, its scratch
    and what is freed after it."""
    step = walk.step
    outputs = frozenset(step.outputs)
    found = [2 * bool(step.ops[run.op].scratch_bytes) for run in walk.runs]
    for storage, stretches in walk.stretches.items():
        if step.sizes[storage]:
            for stretch in stretches:
                found[stretch.first] += 1
                found[stretch.last] += storage not in outputs
    return found

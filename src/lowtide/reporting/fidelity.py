"""Prediction against measurement: peaks, times, and live bytes over the step."""

from __future__ import annotations

from bisect import bisect_right
from itertools import accumulate
from typing import Any

from lowtide.reporting.inputs import Inputs
from lowtide.reporting.tide import curve
from lowtide.step.plan import Plan
from lowtide.step.walk import Walk

LINE_LIMIT = 4_000


def fidelity(inputs: Inputs, plan: Plan) -> dict[str, Any] | None:
    """Predicted and measured numbers side by side, or None if nothing was measured."""
    checks = _checks(inputs.verification) if inputs.verification else []
    if not inputs.measured and not checks:
        return None
    baseline, planned = (inputs.measured.get(k) for k in ("baseline", "planned"))
    found: list[tuple[str, str, str, float, float]] = []

    def compare(name: str, peaks: tuple[int, int], times: tuple[float, float]) -> None:
        found.append((name, "peak", "bytes", *peaks))
        found.append((name, "time", "seconds", *times))

    if baseline is not None:
        peaks = (inputs.unplanned_peak_bytes(plan), baseline.peak_bytes)
        compare("unplanned", peaks, (plan.baseline_seconds, baseline.seconds))
    elif planned is not None:
        # A planned step is timed in turns with the unplanned one.
        times = (plan.baseline_seconds, planned.baseline_seconds)
        found.append(("unplanned", "time", "seconds", *times))
    if planned is not None:
        peaks = (plan.peak_bytes, planned.peak_bytes)
        compare("with the plan", peaks, (plan.seconds, planned.seconds))
    keys = ("name", "what", "unit", "predicted", "measured", "difference")
    rows = [
        dict(zip(keys, (*row, row[4] / row[3] - 1 if row[3] else 0.0), strict=True))
        for row in found
    ]
    # What the operating system saw, where it was asked.
    rss = [
        {"name": label, "bytes": measured.rss_peak_bytes}
        for label, measured in inputs.measured.items()
        if measured.rss_peak_bytes
    ]
    return {"rows": rows, "checks": checks, "rss": rss}


def _checks(verification: Any) -> list[dict[str, Any]]:
    """What was compared bit by bit, and whether it was equal."""
    equal = {
        "loss": verification.loss_equal,
        "gradients": verification.gradients_equal,
        "buffers": verification.buffers_equal,
        "random generator": verification.rng_equal,
    }
    return [{"name": name, "equal": is_equal} for name, is_equal in equal.items()]


def measured_line(measured: Any, walk: Walk) -> dict[str, Any] | None:
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

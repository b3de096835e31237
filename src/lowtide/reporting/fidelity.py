"""Prediction against measurement: peaks, times, the timeline, single ops."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Mapping
from typing import Any

from lowtide.reporting.inputs import Inputs
from lowtide.reporting.sampling import keep_extremes
from lowtide.reporting.walk import Walk
from lowtide.step.plan import Plan

LINE_LIMIT = 4_000


def fidelity(inputs: Inputs, plan: Plan) -> dict[str, Any] | None:
    """Predicted and measured numbers side by side, or None if nothing was measured."""
    rows: list[dict[str, Any]] = []
    for label, name, peak, seconds in (
        ("baseline", "baseline", plan.baseline_peak_bytes, plan.baseline_seconds),
        ("planned", "with the plan", plan.peak_bytes, plan.seconds),
    ):
        found = inputs.measured.get(label)
        if found is not None:
            rows.append(_row(name, "peak", "bytes", peak, found.peak_bytes))
            rows.append(_row(name, "time", "seconds", seconds, found.seconds))
    others = [m for k, m in inputs.measured.items() if k not in ("baseline", "planned")]
    checks = _checks(inputs.verification)
    scatter = _scatter(inputs)
    if not rows and not checks and not scatter and not others:
        return None
    return {"rows": rows, "checks": checks, "ops": scatter, "rss": _rss(inputs)}


def _row(
    name: str, what: str, unit: str, predicted: float, measured: float
) -> dict[str, Any]:
    difference = measured / predicted - 1 if predicted else 0.0
    return {
        "name": name,
        "what": what,
        "unit": unit,
        "predicted": predicted,
        "measured": measured,
        "difference": difference,
    }


def _rss(inputs: Inputs) -> list[dict[str, Any]]:
    """What the operating system saw, where it was asked."""
    return [
        {"name": label, "bytes": found.rss_peak_bytes}
        for label, found in inputs.measured.items()
        if getattr(found, "rss_peak_bytes", None)
    ]


_CHECKS = (
    ("loss_equal", "loss"),
    ("gradients_equal", "gradients"),
    ("buffers_equal", "buffers"),
    ("rng_equal", "random generator"),
)


def _checks(verification: Any) -> list[dict[str, Any]]:
    """What was compared bit by bit, and whether it was equal."""
    return [
        {"name": name, "equal": bool(getattr(verification, attribute))}
        for attribute, name in _CHECKS
        if getattr(verification, attribute, None) is not None
    ]


def _scatter(inputs: Inputs) -> list[dict[str, Any]]:
    """Predicted and measured seconds of each op that was timed alone."""
    planned = inputs.measured.get("planned", inputs.measured.get("baseline"))
    timed: Any = getattr(planned, "op_seconds", None)
    if not timed or inputs.step is None:
        return []
    pairs: Iterable[tuple[int, float]] = (
        timed.items() if isinstance(timed, Mapping) else timed  # type: ignore[assignment]
    )
    ops = inputs.step.ops
    return [
        {"op": int(i), "predicted": ops[int(i)].seconds, "measured": float(t)}
        for i, t in pairs
        if 0 <= int(i) < len(ops)
    ]


def measured_line(inputs: Inputs, walk: Walk) -> dict[str, Any] | None:
    """The measured live bytes over the step, or None if no timeline was taken.

    A timeline is a list of bytes, one for each run, or of (seconds, bytes). Either is
    put on both axes: by run where it has one value for each, else by its share of the
    measured time.
    """
    planned = inputs.measured.get("planned", inputs.measured.get("baseline"))
    timeline: Any = getattr(planned, "timeline", None)
    if planned is None or not timeline:
        return None
    count = len(timeline)
    if isinstance(timeline[0], int | float):
        values = [int(b) for b in timeline]
        shares = [i / count for i in range(count)]
    else:
        values = [int(b) for _, b in timeline]
        first, last = float(timeline[0][0]), float(timeline[-1][0])
        shares = [(float(t) - first) / ((last - first) or 1.0) for t, _ in timeline]
    kept = keep_extremes(values, LINE_LIMIT)
    runs = len(walk.ops)
    by_run = count == runs and isinstance(timeline[0], int | float)
    return {
        "label": "measured",
        "peak_bytes": planned.peak_bytes,
        "run": [i if by_run else _run_at(walk, shares[i]) for i in kept],
        "start_seconds": [
            walk.starts[i] if by_run else shares[i] * walk.seconds for i in kept
        ],
        "live_bytes": [values[i] for i in kept],
    }


def _run_at(walk: Walk, share: float) -> int:
    """The place, in runs, at which this share of the predicted time has passed."""
    return max(0, bisect_right(walk.starts, share * walk.seconds) - 1)

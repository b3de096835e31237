"""The tide chart's numbers: live bytes over the runs of a schedule, by kind."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from lowtide.step.names import KIND_NAMES
from lowtide.step.plan import Plan
from lowtide.step.walk import Walk

FULL_LIMIT = 40_000
SMALL_LIMIT = 600


def tide(
    walk: Walk,
    *,
    label: str,
    plan: Plan | None = None,
    over: dict[str, Any] | None = None,
    eager_peak_bytes: int = 0,
    limit: int = FULL_LIMIT,
) -> dict[str, Any]:
    """A chart of one schedule, with another's `outline` over it.

    `run`, `op` and the columns have one entry for each sample.
    """
    corners = [walk.peak_run, *(band.first for band in walk.bands)]
    kept = keep_extremes(walk.live_bytes, limit, always=corners)
    starts = walk.starts()
    runs = [walk.runs[i] for i in kept]
    return {
        "label": label,
        "peak_bytes": walk.peak_bytes,
        "seconds": walk.seconds,
        "num_runs": len(walk.runs),
        "peak_run": walk.peak_run,
        "budget_bytes": plan.budget_bytes if plan else 0,
        "eager_peak_bytes": eager_peak_bytes,
        "outline": over,
        "bands": [
            {"phase": band.phase, **span(starts, band.first, band.end)}
            for band in walk.bands
        ],
        "run": kept,
        "op": [run.op for run in runs],
        "again": [int(run.again) for run in runs],
        "start_seconds": [run.begin_seconds for run in runs],
        "live_bytes": [run.live_bytes for run in runs],
        "by_kind": {
            kind: [walk.by_kind[kind][i] for i in kept]
            for kind in KIND_NAMES
            if any(walk.by_kind[kind])
        },
    }


def span(starts: Sequence[float], first: int, end: int) -> dict[str, Any]:
    """The runs `first` to `end - 1` as a stretch of a chart."""
    runs = {"first_run": first, "end_run": end}
    return {**runs, "start_seconds": starts[first], "end_seconds": starts[end]}


def outline(walk: Walk, beside: Walk, *, label: str, limit: int) -> dict[str, Any]:
    """The curve of one schedule as a line to draw over the chart of another."""
    places = _places_in(beside, walk.ops)
    return curve(beside, walk.live_bytes, places, label=label, limit=limit)


def curve(
    beside: Walk,
    values: Sequence[int],
    places: Sequence[int],
    *,
    label: str,
    limit: int,
) -> dict[str, Any]:
    """Bytes as a line over a chart: `places` are the runs of it that they stand at."""
    kept = keep_extremes(values, limit)
    starts = beside.starts()
    return {
        "label": label,
        "peak_bytes": max(values),
        "run": [places[i] for i in kept],
        "start_seconds": [starts[places[i]] for i in kept],
        "live_bytes": [values[i] for i in kept],
    }


def _places_in(walk: Walk, sequence: Sequence[int]) -> list[int]:
    """For each op of another sequence, the run of the walk that stands beside it.

    An op stands at its first run, or further right where that would break the order, so
    that two schedules of one step can be drawn over each other.
    """
    first: dict[int, int] = {}
    for run, op in enumerate(walk.ops):
        first.setdefault(op, run)
    found: list[int] = []
    place = 0
    for op in sequence:
        place = max(place, first.get(op, place))
        found.append(place)
    return found


def keep_extremes(
    values: Sequence[int], limit: int, *, always: Iterable[int] = ()
) -> list[int]:
    """The positions of a long curve to draw, in order: all, if they are few enough.

    Otherwise the first highest and the first lowest of equal stretches, both ends, and
    those in `always`; about `limit` in total. Nothing is averaged, so every number
    shown is one that occurred, and the peak is always among them.
    """
    count = len(values)
    if count <= limit:
        return list(range(count))
    kept = {0, count - 1, *(p for p in always if 0 <= p < count)}
    stretches = max(1, limit // 2)
    for number in range(stretches):
        stretch = range(number * count // stretches, (number + 1) * count // stretches)
        kept.add(max(stretch, key=values.__getitem__))
        kept.add(min(stretch, key=values.__getitem__))
    return sorted(kept)

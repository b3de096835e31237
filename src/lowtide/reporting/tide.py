"""The tide chart's numbers: live bytes over the runs of a schedule, by kind."""

from __future__ import annotations

from typing import Any

from lowtide.reporting.sampling import keep_extremes
from lowtide.reporting.walk import Walk, places_in

KIND_NAMES: dict[str, str] = {
    "parameter": "parameters",
    "buffer": "buffers",
    "optimizer_state": "optimizer state",
    "input": "inputs",
    "gradient": "gradients",
    "activation": "kept",
    "recomputed": "recomputed",
    "temporary": "temporaries",
}
FULL_LIMIT = 40_000
SMALL_LIMIT = 600


def tide(walk: Walk, *, label: str, limit: int = FULL_LIMIT) -> dict[str, Any]:
    """A chart of one schedule. `run`, `op` and the columns have one entry a sample."""
    kept = keep_extremes(walk.live_bytes, limit, always=_corners(walk))
    starts, ops = walk.starts, walk.ops
    return {
        "label": label,
        "peak_bytes": walk.peak_bytes,
        "seconds": walk.seconds,
        "num_runs": len(ops),
        "peak_run": walk.peak_run,
        "bands": [
            {
                "phase": phase,
                "first_run": first,
                "end_run": end,
                "start_seconds": starts[first],
                "end_seconds": starts[end] if end < len(ops) else walk.seconds,
            }
            for phase, first, end in walk.bands
        ],
        "run": kept,
        "op": [ops[i] for i in kept],
        "again": [int(walk.again[i]) for i in kept],
        "start_seconds": [starts[i] for i in kept],
        "live_bytes": [walk.live_bytes[i] for i in kept],
        "by_kind": {
            kind: [walk.by_kind[kind][i] for i in kept]
            for kind in KIND_NAMES
            if any(walk.by_kind[kind])
        },
    }


def outline(walk: Walk, beside: Walk, *, label: str, limit: int) -> dict[str, Any]:
    """The curve of one schedule as a line to draw over the chart of another."""
    kept = keep_extremes(walk.live_bytes, limit)
    places = places_in(beside, walk.ops)
    starts = [*beside.starts, beside.seconds]
    return {
        "label": label,
        "peak_bytes": walk.peak_bytes,
        "run": [places[i] for i in kept],
        "start_seconds": [starts[places[i]] for i in kept],
        "live_bytes": [walk.live_bytes[i] for i in kept],
    }


def _corners(walk: Walk) -> list[int]:
    return [walk.peak_run, *(first for _, first, _ in walk.bands)]

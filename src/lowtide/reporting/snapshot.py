"""A plan as a PyTorch memory snapshot, for memory_viz and torch's own readers.

A snapshot is a pickle of plain lists and dicts: for each device the allocations and
frees in order, and what the allocator holds at the end. The plan is device 0, the
baseline device 1, so one file shows both. Sizes and order are the plan's. Addresses are
only for drawing: every storage has a place of its own, and temporaries come last.
"""

from __future__ import annotations

import pickle
from itertools import accumulate, pairwise
from typing import Any

from lowtide.step.graph import Op, StepGraph
from lowtide.step.plan import Plan, Run, Schedule
from lowtide.step.schedule import with_frees
from lowtide.step.simulate import frees_next

START = 0x7F0000000000


class _Recorder:
    """One device's events under a schedule, and what is alive after it."""

    def __init__(self, step: StepGraph, schedule: Schedule) -> None:
        self.step = step
        self.places = list(accumulate(step.sizes, initial=START))
        self.end = self.places[-1]
        self.events: list[dict[str, Any]] = []
        self.alive: dict[int, list[dict[str, Any]]] = {}
        self.made: set[int] = set()
        self.moment = 0.0
        # Readers that color by category expect one called "unknown" among them. Nothing
        # here is, so an allocation of no bytes says the word.
        self.event("alloc", START, 0, [], "unknown")
        self.event("free_completed", START, 0, [])
        for s in step.resident:
            storage = step.storages[s]
            self.make(s, _frames("", storage.name, storage.kind))
        for index, item in enumerate(schedule):
            if isinstance(item, Run):
                op = step.ops[item.op]
                if op.over >= 0 and frees_next(schedule, index, op.over):
                    self.drop(op.over)  # its bytes become those of the result
                self.run(op)
            elif item.storage in self.alive:
                self.drop(item.storage)

    def event(
        self, action: str, address: int, size: int, frames: list[Any], kind: str = ""
    ) -> None:
        self.end = max(self.end, address + size)
        time = {"stream": 0, "time_us": round(self.moment * 1e6)}
        record = {"action": action, "addr": address, "size": size, **time}
        category = {"category": kind} if kind else {}
        self.events.append({**record, "frames": frames, **category})

    def free(self, address: int, size: int, frames: list[Any]) -> None:
        self.event("free_requested", address, size, frames)
        self.event("free_completed", address, size, frames)

    def drop(self, storage: int) -> None:
        frames = self.alive.pop(storage)
        self.free(self.places[storage], self.step.sizes[storage], frames)

    def make(self, storage: int, frames: list[Any]) -> None:
        kind = self.step.storages[storage].kind
        if storage in self.made and kind == "activation":
            kind = "recomputed"
        self.made.add(storage)
        if size := self.step.sizes[storage]:
            self.alive[storage] = frames
            self.event("alloc", self.places[storage], size, frames, kind)

    def run(self, op: Op) -> None:
        frames = _frames(op.source, op.name, op.module, op.target)
        copies = [s for s in op.writes if s in self.alive]
        for s in op.writes:
            if s not in copies:
                self.make(s, frames)
        # There only while the op runs: workspace, and second copies of what it remakes.
        if passing := op.scratch_bytes + sum(self.step.sizes[s] for s in copies):
            place = self.places[-1]
            self.event("alloc", place, passing, frames, "temporary")
            self.free(place, passing, frames)
        self.moment += op.seconds


def _frames(source: str, *names: str) -> list[dict[str, Any]]:
    """A stack as the readers show it: innermost first."""
    file, _, number = source.rpartition(":")
    if not (file and number.isdecimal()):
        file, number = source or "lowtide", "0"
    return [
        {"filename": file, "line": int(number), "name": name} for name in names if name
    ]


def _segment(recorder: _Recorder, device: int) -> dict[str, Any]:
    """All places at the end of the step, as one segment of blocks without gaps."""
    blocks: list[dict[str, Any]] = []
    for s, (place, end) in enumerate(pairwise((*recorder.places, recorder.end))):
        held = s in recorder.alive
        if size := end - place:
            blocks.append(
                {
                    "address": place,
                    "size": size,
                    "requested_size": size if held else 0,
                    "state": "active_allocated" if held else "inactive",
                    "frames": recorder.alive.get(s, []),
                }
            )
    sizes = ("allocated_size", "active_size", "requested_size")
    return {
        "device": device,
        "address": START,
        "total_size": recorder.end - START,
        **dict.fromkeys(sizes, sum(block["requested_size"] for block in blocks)),
        "stream": 0,
        "segment_type": "large",
        "segment_pool_id": (0, 0),
        "is_expandable": False,
        "frames": [],
        "blocks": blocks,
    }


def snapshot(step: StepGraph, plan: Plan) -> dict[str, Any]:
    """The snapshot: the plan as device 0, the baseline as device 1."""
    schedules = (plan.schedule, with_frees(step, step.baseline))
    recorders = [_Recorder(step, schedule) for schedule in schedules]
    return {
        "lowtide": "snapshot",
        "segments": [_segment(r, device) for device, r in enumerate(recorders)],
        "device_traces": [r.events for r in recorders],
        "allocator_settings": {},
    }


def snapshot_bytes(step: StepGraph, plan: Plan) -> bytes:
    """The snapshot as a pickle of the protocol that memory_viz reads."""
    return pickle.dumps(snapshot(step, plan), protocol=4)

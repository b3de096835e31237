"""A plan as a PyTorch memory snapshot, for memory_viz and torch's own readers.

A snapshot is a pickle of plain lists and dicts: for each device the allocations and
frees in order, and what the allocator holds at the end. The plan is device 0, the
baseline device 1, so one file shows both. Addresses are those of a best-fit allocator
with unlimited room: sizes and order are the plan's, places are only for drawing.
"""

from __future__ import annotations

import pickle
from typing import Any

from lowtide.step.graph import StepGraph
from lowtide.step.plan import Plan, Run, Schedule
from lowtide.step.schedule import with_frees

START = 0x7F0000000000


class _Arena:
    """Hands out addresses: the smallest hole that fits, else the end."""

    def __init__(self) -> None:
        self.end = START
        self.holes: dict[int, int] = {}  # size by address

    def take(self, size: int) -> int:
        fitting = [(found, at) for at, found in self.holes.items() if found >= size]
        if not fitting:
            address, self.end = self.end, self.end + size
            return address
        found, address = min(fitting)
        del self.holes[address]
        if found > size:
            self.holes[address + size] = found - size
        return address

    def give(self, address: int, size: int) -> None:
        size += self.holes.pop(address + size, 0)
        for at, found in self.holes.items():
            if at + found == address:
                self.holes[at] += size
                return
        self.holes[address] = size


class _Recorder:
    """One device's events, and what is alive."""

    def __init__(self, step: StepGraph) -> None:
        self.step = step
        self.arena = _Arena()
        self.events: list[dict[str, Any]] = []
        self.alive: dict[int, tuple[int, int, list[dict[str, Any]]]] = {}
        self.moment = 0.0

    def event(
        self, action: str, address: int, size: int, frames: list[Any], kind: str = ""
    ) -> None:
        record = {
            "action": action,
            "addr": address,
            "size": size,
            "stream": 0,
            "time_us": round(self.moment * 1e6),
            "frames": frames,
        }
        if kind:
            record["category"] = kind
        self.events.append(record)

    def alloc(self, size: int, frames: list[Any], kind: str) -> int:
        address = self.arena.take(size)
        self.event("alloc", address, size, frames, kind)
        return address

    def free(self, address: int, size: int, frames: list[Any]) -> None:
        self.event("free_requested", address, size, frames)
        self.event("free_completed", address, size, frames)
        self.arena.give(address, size)

    def make(self, storage: int, frames: list[Any], kind: str) -> None:
        size = self.step.sizes[storage]
        if size:
            self.alive[storage] = (self.alloc(size, frames, kind), size, frames)

    def drop(self, storage: int) -> None:
        if storage in self.alive:
            self.free(*self.alive.pop(storage))


def _frames(source: str, *names: str) -> list[dict[str, Any]]:
    """A stack as the readers show it: innermost first."""
    file, _, number = source.rpartition(":")
    if not (file and number.isdecimal()):
        file, number = source or "lowtide", "0"
    return [
        {"filename": file, "line": int(number), "name": name} for name in names if name
    ]


def _record(step: StepGraph, schedule: Schedule) -> _Recorder:
    recorder = _Recorder(step)
    # Readers that color by category expect one called "unknown" among them. Nothing
    # here is, so an allocation of no bytes says the word.
    recorder.event("alloc", START, 0, [], "unknown")
    recorder.event("free_completed", START, 0, [])
    for s in step.resident:
        storage = step.storages[s]
        recorder.make(s, _frames("", storage.name, storage.kind), storage.kind)
    made = set(step.resident)
    for item in schedule:
        if isinstance(item, Run):
            _record_run(recorder, item.op, made)
        else:
            recorder.drop(item.storage)
    return recorder


def _record_run(recorder: _Recorder, number: int, made: set[int]) -> None:
    step = recorder.step
    op = step.ops[number]
    frames = _frames(op.source, op.name, op.module, op.target)
    copies = sum(step.sizes[s] for s in op.writes if s in recorder.alive)
    for s in op.writes:
        kind = step.storages[s].kind
        if s not in recorder.alive:
            again = s in made and kind == "activation"
            recorder.make(s, frames, "recomputed" if again else kind)
        made.add(s)
    passing = op.scratch_bytes + copies
    if passing:
        # There only while the op runs: workspace, and second copies of what it remakes.
        address = recorder.alloc(passing, frames, "temporary")
        recorder.free(address, passing, frames)
    recorder.moment += op.seconds


def _segment(recorder: _Recorder, device: int) -> dict[str, Any]:
    """The arena at the end of the step, as one segment of blocks without gaps."""
    blocks: list[dict[str, Any]] = []
    place = START
    held = sorted(recorder.alive.values())
    for address, size, frames in (*held, (recorder.arena.end, 0, [])):
        if address > place:
            blocks.append(_block(place, address - place, "inactive", []))
        if size:
            blocks.append(_block(address, size, "active_allocated", frames))
        place = address + size
    total = sum(size for _, size, _ in held)
    return {
        "device": device,
        "address": START,
        "total_size": recorder.arena.end - START,
        "allocated_size": total,
        "active_size": total,
        "requested_size": total,
        "stream": 0,
        "segment_type": "large",
        "segment_pool_id": (0, 0),
        "is_expandable": False,
        "frames": [],
        "blocks": blocks,
    }


def _block(address: int, size: int, state: str, frames: list[Any]) -> dict[str, Any]:
    return {
        "address": address,
        "size": size,
        "requested_size": size if state == "active_allocated" else 0,
        "state": state,
        "frames": frames,
    }


def snapshot(step: StepGraph, plan: Plan) -> dict[str, Any]:
    """The snapshot: the plan as device 0, the baseline as device 1."""
    schedules = (plan.schedule, with_frees(step, step.baseline))
    recorders = [_record(step, schedule) for schedule in schedules]
    return {
        "segments": [_segment(r, device) for device, r in enumerate(recorders)],
        "device_traces": [r.events for r in recorders],
        "allocator_settings": {},
    }


def snapshot_bytes(step: StepGraph, plan: Plan) -> bytes:
    """The snapshot as a pickle of the protocol that memory_viz reads."""
    return pickle.dumps(snapshot(step, plan), protocol=4)

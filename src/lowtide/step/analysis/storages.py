"""What becomes of each storage: when it lives and idles, its fate, its price.

Positions are op ids of the baseline; times are seconds since the step began, with ops
running one after the other.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np

from lowtide.step.graph import Kind, Op, StepGraph
from lowtide.step.names import short_target
from lowtide.step.schedule import crossing, walk_baseline
from lowtide.step.walk import Walk


@dataclass(frozen=True, slots=True)
class Lifetime:
    """One storage over the baseline. An op id of -1 says that there is no such op.

    `idle_seconds` is the time between its last use in the forward and its first in the
    backward: what keeping it buys nothing. `recompute_seconds` is the time of all ops
    that make it from residents and from what cannot be made again, and infinite if it
    cannot be made again itself. `bytes_per_second` is what dropping it frees for each
    second spent on making it again.
    """

    storage: int
    name: str
    kind: Kind
    nbytes: int
    resident: bool
    producer: int
    op_type: str
    module: str
    last_forward_use: int
    first_backward_use: int
    last_backward_use: int
    made_at_seconds: float
    freed_at_seconds: float
    idle_seconds: float
    recompute_seconds: float

    @property
    def bytes_per_second(self) -> float:
        """Bytes freed for each second of recomputation; 0 if it must be kept."""
        if self.resident or self.recompute_seconds == float("inf"):
            return 0.0
        return self.nbytes / max(self.recompute_seconds, 1e-9)


@dataclass(frozen=True, slots=True)
class Fate:
    """What a schedule does with one storage.

    `word` is "resident"; "kept" if it lives over the turn and the backward reads it;
    "recomputed" if it is freed and made again; "both" if it lives over the turn, is
    freed, and is made again later; "output" or "brief" if it is neither and must live
    to the end, or need not.
    """

    storage: int
    word: Literal["resident", "kept", "recomputed", "both", "output", "brief"]
    times_made: int


def maker(step: StepGraph, storage: int) -> Op | None:
    """The op that first makes a storage, or None if it is resident."""
    made_by = step.producers[storage]
    if step.storages[storage].resident or not made_by:
        return None
    return step.ops[made_by[0]]


def fates(walk: Walk) -> tuple[Fate, ...]:
    """What a schedule does with each storage, by id."""
    step = walk.step
    kept = frozenset(crossing(step, walk.ops))
    outputs = frozenset(step.outputs)
    found: list[Fate] = []
    for s in step.storages:
        times_made = len(walk.stretches.get(s.id, ()))
        is_kept, is_remade = s.id in kept, times_made > 1
        if s.resident:
            word = "resident"
        elif is_kept:
            word = "both" if is_remade else "kept"
        elif is_remade:
            word = "recomputed"
        else:
            word = "output" if s.id in outputs else "brief"
        found.append(Fate(s.id, word, times_made))
    return tuple(found)


def lifetimes(step: StepGraph) -> tuple[Lifetime, ...]:
    """The lifetime of every storage, by id. O(ops^2 / 64) for the recompute times."""
    walk = walk_baseline(step)
    begin = {run.op: run.begin_seconds for run in walk.runs}
    end = {run.op: run.end_seconds for run in walk.runs}
    last_forward: dict[int, int] = {}
    first_backward: dict[int, int] = {}
    last_backward: dict[int, int] = {}
    for op in (step.ops[number] for number in step.baseline):
        if op.phase == "forward":
            last_forward.update(dict.fromkeys((*op.reads, *op.writes), op.id))
        elif op.phase == "backward" and op.opens < 0:
            last_backward.update(dict.fromkeys(op.reads, op.id))
            for s in op.reads:
                first_backward.setdefault(s, op.id)
    again = recompute_seconds(step)
    found: list[Lifetime] = []
    for s in step.storages:
        op, made, freed = maker(step, s.id), 0.0, walk.seconds
        if stretches := walk.stretches.get(s.id):
            made = walk.runs[stretches[0].first].begin_seconds
            freed = walk.runs[stretches[-1].last].end_seconds
        idle = 0.0
        if s.id in last_forward and s.id in first_backward:
            idle = max(0.0, begin[first_backward[s.id]] - end[last_forward[s.id]])
        found.append(
            Lifetime(
                storage=s.id,
                name=s.name,
                kind=s.kind,
                nbytes=step.sizes[s.id],
                resident=s.resident,
                producer=step.producers[s.id][0] if step.producers[s.id] else -1,
                op_type=short_target(op.target) if op else "",
                module=op.module if op else "",
                last_forward_use=last_forward.get(s.id, -1),
                first_backward_use=first_backward.get(s.id, -1),
                last_backward_use=last_backward.get(s.id, -1),
                made_at_seconds=made,
                freed_at_seconds=freed,
                idle_seconds=idle,
                recompute_seconds=again[s.id],
            )
        )
    return tuple(found)


def recompute_seconds(step: StepGraph) -> tuple[float, ...]:
    """For each storage, the time to make it from residents and what must be kept.

    Sets of ops are bit sets, so that a step of twenty thousand ops takes a second.
    """
    order = {number: bit for bit, number in enumerate(sorted(set(step.remakers)))}
    order.pop(-1, None)
    width = -(-max(1, len(order) + 1) // 8) * 8
    weights = np.zeros(width)
    for number, bit in order.items():
        weights[bit] = step.ops[number].seconds
    cones: dict[int, int] = {}
    times: dict[int, float] = {}
    resident = set(step.resident)
    for number, bit in order.items():
        cone = 1 << bit
        for s in step.ops[number].reads:
            maker = step.remakers[s]
            if maker >= 0 and maker != number and s not in resident:
                cone |= cones.get(maker, 0)
        cones[number] = cone
        packed = np.frombuffer(cone.to_bytes(width // 8, "little"), dtype=np.uint8)
        times[number] = float(np.unpackbits(packed, bitorder="little") @ weights)
    return tuple(
        0.0 if s.resident else times.get(step.remakers[s.id], float("inf"))
        for s in step.storages
    )

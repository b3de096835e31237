"""When each storage is made, used and idle, and what it costs to make it again.

Positions are op ids of the baseline; times are seconds since the step began, with ops
running one after the other.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from lowtide.step.graph import Kind, Phase, StepGraph
from lowtide.step.plan import Run
from lowtide.step.schedule import with_frees
from lowtide.step.simulate import simulate


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

    @property
    def crosses(self) -> bool:
        """Whether it is made in the forward and used again in the backward."""
        return not self.resident and self.idle_seconds > 0


@dataclass(frozen=True, slots=True)
class OpRecord:
    """One op of the baseline: what it takes, makes and finds alive."""

    op: int
    name: str
    op_type: str
    phase: Phase
    module: str
    source: str
    begin_seconds: float
    seconds: float
    spread: float
    bytes_read: int
    bytes_made: int
    scratch_bytes: int
    live_before_bytes: int
    live_during_bytes: int
    live_after_bytes: int


def op_type(target: str) -> str:
    """The op without namespace and overload: `aten.add.Tensor` is `add`."""
    parts = target.replace("::", ".").split(".")
    return parts[1] if len(parts) > 1 else target


def lifetimes(step: StepGraph) -> tuple[Lifetime, ...]:
    """The lifetime of every storage, by id. O(ops^2 / 64) for the recompute times."""
    begin, end = _clock(step)
    last_forward = [-1] * len(step.storages)
    first_backward = [-1] * len(step.storages)
    last_backward = [-1] * len(step.storages)
    last_any = [-1] * len(step.storages)
    for number in step.baseline:
        op = step.ops[number]
        for s in dict.fromkeys((*op.reads, *op.writes)):
            last_any[s] = number
            if op.phase == "forward":
                last_forward[s] = number
            elif s in op.reads and op.phase == "backward" and op.opens < 0:
                if first_backward[s] < 0:
                    first_backward[s] = number
                last_backward[s] = number
    again = recompute_seconds(step)
    total = step.baseline_seconds
    held = frozenset(step.outputs)
    found: list[Lifetime] = []
    for s in step.storages:
        producer = step.producers[s.id][0] if step.producers[s.id] else -1
        made = 0.0 if producer < 0 or s.resident else begin[producer]
        freed = (
            total
            if s.resident or s.id in held or last_any[s.id] < 0
            else end[last_any[s.id]]
        )
        idle = 0.0
        if last_forward[s.id] >= 0 and first_backward[s.id] >= 0:
            idle = max(0.0, begin[first_backward[s.id]] - end[last_forward[s.id]])
        maker = step.ops[producer] if producer >= 0 else None
        found.append(
            Lifetime(
                storage=s.id,
                name=s.name,
                kind=s.kind,
                nbytes=step.sizes[s.id],
                resident=s.resident,
                producer=producer,
                op_type=op_type(maker.target) if maker else "",
                module=maker.module if maker else "",
                last_forward_use=last_forward[s.id],
                first_backward_use=first_backward[s.id],
                last_backward_use=last_backward[s.id],
                made_at_seconds=made,
                freed_at_seconds=freed,
                idle_seconds=idle,
                recompute_seconds=again[s.id],
            )
        )
    return tuple(found)


def op_records(step: StepGraph) -> tuple[OpRecord, ...]:
    """Every op of the baseline in order, with the bytes alive around it."""
    begin, _ = _clock(step)
    schedule = with_frees(step, step.baseline)
    live = simulate(step, schedule).live_bytes
    found: list[OpRecord] = []
    before = step.resident_bytes
    for index, item in enumerate(schedule):
        if type(item) is not Run:
            continue
        after = index + 1
        while after < len(schedule) and type(schedule[after]) is not Run:
            after += 1
        op = step.ops[item.op]
        # The last item before the next op is a free, or this op without its scratch.
        left = live[after - 1] - (op.scratch_bytes if after - 1 == index else 0)
        found.append(
            OpRecord(
                op=op.id,
                name=op.name,
                op_type=op_type(op.target),
                phase=op.phase,
                module=op.module,
                source=op.source,
                begin_seconds=begin[op.id],
                seconds=op.seconds,
                spread=op.spread,
                bytes_read=sum(step.sizes[s] for s in op.reads),
                bytes_made=sum(step.sizes[s] for s in op.writes),
                scratch_bytes=op.scratch_bytes,
                live_before_bytes=before,
                live_during_bytes=live[index],
                live_after_bytes=left,
            )
        )
        before = left
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
        bits = np.unpackbits(packed, bitorder="little")
        times[number] = float(bits @ weights)
    return tuple(
        0.0 if s.resident else times.get(step.remakers[s.id], float("inf"))
        for s in step.storages
    )


def _clock(step: StepGraph) -> tuple[dict[int, float], dict[int, float]]:
    begin: dict[int, float] = {}
    end: dict[int, float] = {}
    now = 0.0
    for number in step.baseline:
        begin[number] = now
        now += step.ops[number].seconds
        end[number] = now
    return begin, end

"""When the storages of a step live, seen from its forward and from its backward."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from lowtide.step.graph import StepGraph
from lowtide.step.schedule import must_keep

Bytes = NDArray[np.int64]
Seconds = NDArray[np.float64]


def bytes_over_time(length: int, spans: Iterable[tuple[int, int, int]]) -> Bytes:
    """Bytes alive at each time below `length`; a span is (start, stop, bytes)."""
    change = np.zeros(length + 2, np.int64)
    for start, stop, nbytes in spans:
        change[start] += nbytes
        change[stop] -= nbytes
    return np.cumsum(change)[:length]


class Lifetimes:
    """When each storage of the forward is made and read, in the baseline order.

    Forward positions count ops before the turn, and `last_forward` is `born` for what
    nothing there reads; backward times count ops from the turn on. `pinned` storages
    stay whatever is planned: outputs of the step, and what cannot be made again.
    `loose` are all others made in the forward.
    """

    def __init__(self, step: StepGraph) -> None:
        self.step, order = step, step.baseline
        # A step without a turn has no backward.
        turn = order.index(step.turn) if step.turn >= 0 else len(order)
        self.forward, self.backward = order[:turn], order[turn:]
        self.born: dict[int, int] = {}
        self.last_forward: dict[int, int] = {}
        self.first_backward: dict[int, int] = {}
        self.last_backward: dict[int, int] = {}
        for position, number in enumerate(order):
            op = step.ops[number]
            if position > turn:
                for s in self.born.keys() & op.reads:
                    self.first_backward.setdefault(s, position - turn)
                    self.last_backward[s] = position - turn
                continue
            self.last_forward.update(dict.fromkeys(op.reads, position))
            for s in op.writes:
                if position < turn and not step.storages[s].resident:
                    self.born.setdefault(s, position)
                    self.last_forward.setdefault(s, position)
        self.pinned = must_keep(step).union(step.outputs).intersection(self.born)
        self.loose = tuple(s for s in self.born if s not in self.pinned)


class BackwardBytes(NamedTuple):
    """Bytes held at each backward time whatever is kept.

    Residents, pinned storages, and all that the backward itself makes: `during` the op,
    `before` it, and of the latter the `lasting` ones, which are no passing gradients.
    """

    during: Bytes
    before: Bytes
    lasting: Bytes


def backward_bytes(life: Lifetimes) -> BackwardBytes:
    """What the backward holds, whatever the forward keeps."""
    step, sizes = life.step, life.step.sizes
    end = len(life.backward)
    outputs = frozenset(step.outputs)
    first: dict[int, int] = {}
    last: dict[int, int] = {}
    scratch = np.zeros(end + 1, np.int64)
    for time, number in enumerate(life.backward):
        op = step.ops[number]
        scratch[time] = step.passing_bytes[number]
        for s in op.writes:
            if not step.storages[s].resident and s not in life.born:
                first.setdefault(s, time)
        last.update(dict.fromkeys((*op.reads, *op.writes), time))
    lasting = [(first[s], end, sizes[s]) for s in first if s in outputs]
    for s in life.pinned:
        stop = end if s in outputs else life.last_backward.get(s, 0) + 1
        lasting.append((0, stop, sizes[s]))
    passing = [(first[s], last[s] + 1, sizes[s]) for s in first if s not in outputs]
    held = bytes_over_time(end + 1, lasting) + step.resident_bytes
    during = held + bytes_over_time(end + 1, passing)
    start = [step.resident_bytes]
    return BackwardBytes(
        during + scratch,
        np.concatenate([start, during[:-1]]),
        np.concatenate([start, held[:-1]]),
    )

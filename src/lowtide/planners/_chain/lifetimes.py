"""When the storages of a step live, seen from its forward and from its backward."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from lowtide.step.graph import StepGraph
from lowtide.step.schedule import must_keep

Bytes = NDArray[np.int64]
Seconds = NDArray[np.float64]

NEVER = -1


@dataclass(frozen=True, slots=True)
class Lifetimes:
    """When each storage of the forward is made and read, in the baseline order.

    Forward positions count ops before the turn; backward times count ops from the turn
    on. `pinned` storages stay whatever is planned: outputs of the step, and what cannot
    be made again. `loose` are all others made in the forward.
    """

    step: StepGraph
    forward: tuple[int, ...]
    backward: tuple[int, ...]
    born: dict[int, int]
    last_forward: dict[int, int]
    first_backward: dict[int, int]
    last_backward: dict[int, int]
    pinned: frozenset[int]
    loose: tuple[int, ...]

    @classmethod
    def of(cls, step: StepGraph) -> Lifetimes:
        """Walk the baseline once. A step without a turn has no backward."""
        order = step.baseline
        turn = order.index(step.turn) if step.turn >= 0 else len(order)
        forward, backward = order[:turn], order[turn:]
        born: dict[int, int] = {}
        last_forward: dict[int, int] = {}
        for position, number in enumerate(forward):
            for s in step.ops[number].reads:
                last_forward[s] = position
            for s in step.ops[number].writes:
                if not step.storages[s].resident:
                    born.setdefault(s, position)
        if backward:
            for s in step.ops[backward[0]].reads:
                last_forward[s] = turn
        first_backward: dict[int, int] = {}
        last_backward: dict[int, int] = {}
        for time, number in enumerate(backward[1:], 1):
            for s in step.ops[number].reads:
                if s in born:
                    first_backward.setdefault(s, time)
                    last_backward[s] = time
        pinned = must_keep(step).union(step.outputs).intersection(born)
        loose = tuple(s for s in born if s not in pinned)
        return cls(
            step,
            forward,
            backward,
            born,
            last_forward,
            first_backward,
            last_backward,
            pinned,
            loose,
        )

    def crossings(self) -> list[frozenset[int]]:
        """For each place 0 .. number of forward ops, the loose storages that cross."""
        opened: list[list[int]] = [[] for _ in range(len(self.forward) + 1)]
        closed: list[list[int]] = [[] for _ in range(len(self.forward) + 2)]
        for s in self.loose:
            if self.last_forward.get(s, NEVER) > self.born[s]:
                opened[self.born[s] + 1].append(s)
                closed[self.last_forward[s] + 1].append(s)
        now: frozenset[int] = frozenset()
        found: list[frozenset[int]] = []
        for place in range(len(self.forward) + 1):
            if opened[place] or closed[place]:
                now = now.difference(closed[place]).union(opened[place])
            found.append(now)
        return found


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
        scratch[time] = op.scratch_bytes
        for s in op.reads:
            if s in first:
                last[s] = time
        for s in op.writes:
            if not step.storages[s].resident and s not in life.born:
                first.setdefault(s, time)
                last[s] = time
    held = np.zeros(end + 2, np.int64)
    lasting = np.zeros(end + 2, np.int64)
    for s, time in first.items():
        held[time] += sizes[s]
        held[end if s in outputs else last[s] + 1] -= sizes[s]
        if s in outputs:
            lasting[time] += sizes[s]
    for s in life.pinned:
        stop = end if s in outputs else life.last_backward.get(s, 0) + 1
        for change in (held, lasting):
            change[0] += sizes[s]
            change[stop] -= sizes[s]
    during = np.cumsum(held)[:-1] + step.resident_bytes
    lasting = np.cumsum(lasting)[:-1] + step.resident_bytes
    first_of = np.array([step.resident_bytes], np.int64)
    return BackwardBytes(
        during + scratch,
        np.concatenate([first_of, during[:-1]]),
        np.concatenate([first_of, lasting[:-1]]),
    )

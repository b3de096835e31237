"""The stages of a step, and the sequences of ops that move through them.

Stage t ends with the first run of the baseline's t-th op. Before it, the stage may run
earlier ops again, each at most once and in the order of the step.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence

from lowtide.step.graph import StepGraph
from lowtide.step.remake import remaking
from lowtide.step.simulate import pieces_along


class Stages:
    """The stages of a step: what may be carried into them and run again in them."""

    def __init__(self, step: StepGraph) -> None:
        self.step = step
        self.held = frozenset(step.outputs).union(step.resident)
        self.ends = step.baseline
        count = len(step.storages)
        self.made = [-1 if s.resident else len(self.ends) for s in step.storages]
        self.need = [-1] * count
        place: dict[int, int] = {}
        for t, number in enumerate(self.ends):
            place[number] = t
            op = step.ops[number]
            for s in op.writes:
                self.made[s] = min(self.made[s], t)
            for s in op.reads:
                self.need[s] = t
        for op in reversed(step.ops):
            if not op.once:
                latest = max((self.need[s] for s in op.writes), default=-1)
                for s in op.reads:
                    self.need[s] = max(self.need[s], latest)
        self._piece = pieces_along(step, self.ends)
        self.makers: list[list[int]] = [[] for _ in range(count)]
        # The last stage in which an op cannot yet be run again.
        self._ready_after: dict[int, int] = {}
        for op in step.ops:
            if not op.once:
                for s in op.writes:
                    self.makers[s].append(op.id)
                made = (self.made[s] for s in (*op.reads, *op.writes))
                self._ready_after[op.id] = max(place.get(op.id, -1), *made, -1)

    def reruns(self, t: int) -> list[int]:
        """Ops that may run again in a stage, in order."""
        possible = (i for i in self._ready_after if self.can_rerun(i, t))
        ops = self.step.ops
        return [i for i in possible if any(self.need[s] >= t for s in ops[i].writes)]

    def can_rerun(self, i: int, t: int) -> bool:
        """Whether an op that may run twice can run again in a stage."""
        return (
            self._ready_after[i] < t
            and i < self.ends[t]
            and self.step.ops[i].piece == self._piece[t]
        )

    def carried(self, t: int) -> list[int]:
        """Storages whose carrying into a stage is a choice."""
        return [
            s
            for s, made in enumerate(self.made)
            if made < t <= self.need[s] and s not in self.held
        ]

    def num_choices(self) -> int:
        """How many carry and rerun columns the model has, without building it."""
        carry = (
            max(0, self.need[s] - made)
            for s, made in enumerate(self.made)
            if s not in self.held
        )
        rerun = (
            max((self.need[s] for s in self.step.ops[i].writes), default=-1) - ready
            for i, ready in self._ready_after.items()
        )
        return sum(carry) + sum(max(0, stages) for stages in rerun)

    def makers_in(self, t: int, preferred: Collection[int]) -> Callable[[int], int]:
        """What makes a storage again in a stage: an op preferred, else the fastest."""
        ops = self.step.ops

        def maker_of(storage: int) -> int:
            return min(
                (i for i in self.makers[storage] if self.can_rerun(i, t)),
                key=lambda i: (i not in preferred, ops[i].seconds, i),
                default=-1,
            )

        return maker_of


def carried_by(stages: Stages, sequence: Sequence[int]) -> list[set[int]]:
    """What a sequence of ops carries into each stage, and after the last one."""
    carried: list[set[int]] = [set() for _ in range(len(stages.ends) + 1)]
    born: dict[int, int] = {}
    t = 0
    for number in sequence:
        op = stages.step.ops[number]
        for s in op.reads:
            for u in range(born.get(s, t) + 1, t + 1):
                carried[u].add(s)
        born.update(dict.fromkeys((*op.reads, *op.writes), t))
        if t < len(stages.ends) and number == stages.ends[t]:
            t += 1
    return carried


def sequence_carrying(
    stages: Stages,
    carried: Sequence[set[int]],
    runs: Sequence[set[int]] = (),
) -> list[int]:
    """The least sequence of ops that carries this into the stages.

    What is carried but not there is made again, by an op of `runs` if one is named for
    that stage, else by the fastest that can. What nothing can make in that stage was
    carried after all.
    """
    step = stages.step
    sequence: list[int] = []
    for t, number in enumerate(stages.ends):
        op = step.ops[number]
        alive = {s for s in carried[t] if stages.made[s] < t} | stages.held
        needed = [*op.reads, *(carried[t + 1].difference(op.writes))]
        maker_of = stages.makers_in(t, runs[t] if runs else frozenset())
        sequence.extend(sorted(remaking(step, needed, alive, maker_of=maker_of).ops))
        sequence.append(number)
    return sequence

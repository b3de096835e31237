"""A step whose parameters are divided among processes, as one of them sees it.

Each process holds a part of every parameter. The parameters of a block are gathered
before they are used, and are then ordinary results: they can be freed behind the
forward and gathered again, or kept. When the gradients of a block are complete they are
summed over the processes, and each keeps its part.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from lowtide.step.blocks import (
    Block,
    blocks_of,
    resident_owners,
    with_told_blocks,
)
from lowtide.step.graph import Op, StepGraph, Storage, check_graph

_SUMMED = "talks to other processes"


@dataclass(frozen=True)
class Sharding:
    """How parameters are divided.

    Attributes:
        ways: Among how many processes.
        growth: How many times as large the parts are that are kept and summed: 2 where
            parameters are computed with in 16 bits and kept in 32.
        gather_seconds: The time to gather so many bytes.
        state_bytes: Of the optimizer for each byte of a part.
    """

    ways: int
    growth: float
    gather_seconds: Callable[[int], float]
    state_bytes: float = 2.0


def sharded(step: StepGraph, how: Sharding) -> StepGraph:
    """The step of one process."""
    return _Sharder(step, how).sharded()


class _Sharder:
    def __init__(self, step: StepGraph, how: Sharding) -> None:
        self.step, self.how = step, how
        self.storages = list(step.storages)
        self.blocks = blocks_of(step)

    def new(self, name: str, nbytes: int, **fields: object) -> int:
        number = len(self.storages)
        self.storages.append(Storage(number, name, nbytes, **fields))  # type: ignore[arg-type]
        return number

    def sharded(self) -> StepGraph:
        step, how = self.step, self.how
        before: dict[int, list[Op]] = {}
        behind: dict[int, list[Op]] = {}
        outputs = list(step.outputs)
        total = largest = 0
        for name, parameters in self.groups().items():
            nbytes = sum(step.storages[s].nbytes for s in parameters)
            part = int(nbytes * how.growth / how.ways)
            total += part
            largest = max(largest, nbytes)
            readers = [
                op for op in step.ops if not set(parameters).isdisjoint(op.reads)
            ]
            if not readers:
                continue
            if how.ways > 1:
                first = min(op.id for op in readers)
                before.setdefault(first, []).append(self.gather(name, parameters, part))
            gradients = self.gradients(parameters)
            made = [op.id for op in step.ops if set(gradients) & {*op.writes}]
            if how.ways > 1 and made:
                op = self.scatter(name, gradients, nbytes, part)
                behind.setdefault(max(made), []).append(op)
                outputs = [s for s in outputs if s not in gradients]
                outputs += op.writes
        if how.ways > 1 and how.growth:
            # The next block's parameters are gathered while this one computes.
            self.new("gathered ahead", largest, kind="parameter", resident=True)
        state = int(how.state_bytes * total)
        self.new("optimizer state", state, kind="optimizer_state", resident=True)
        return self.joined(before, behind, outputs)

    def groups(self) -> dict[str, list[int]]:
        """The parameters that are gathered together: a block's, and others alone."""
        step = self.step
        found: dict[str, list[int]] = {}
        owner = resident_owners(step, self.blocks)
        for s in step.storages:
            if s.kind != "parameter" or not s.resident:
                continue
            name = f"block {owner[s.id]}" if s.id in owner else s.name
            found.setdefault(name, []).append(s.id)
        return found

    def gradients(self, parameters: list[int]) -> list[int]:
        names = {f"grad of {self.step.storages[s].name}" for s in parameters}
        outputs = set(self.step.outputs)
        return [
            s.id
            for s in self.step.storages
            if s.kind == "gradient" and s.name in names and s.id in outputs
        ]

    def gather(self, name: str, parameters: list[int], part: int) -> Op:
        resident = self.new(f"part of {name}", part, kind="parameter", resident=True)
        nbytes = sum(self.step.storages[s].nbytes for s in parameters)
        for s in parameters:
            self.storages[s] = replace(self.storages[s], resident=False)
        return Op(
            id=0,
            name=f"gather {name}",
            target="lowtide::gather",
            reads=(resident,),
            writes=tuple(parameters),
            seconds=self.hidden(name, self.how.gather_seconds(nbytes), "forward"),
            phase="forward",
            module=name,
            signature=f"gather {nbytes}",
        )

    def scatter(self, name: str, gradients: list[int], nbytes: int, part: int) -> Op:
        summed = int(nbytes * self.how.growth)
        own = self.new(f"grad of part of {name}", part, kind="gradient")
        return Op(
            id=0,
            name=f"sum gradients of {name}",
            target="lowtide::scatter",
            reads=tuple(gradients),
            writes=(own,),
            seconds=self.hidden(name, self.how.gather_seconds(summed), "backward"),
            scratch_bytes=summed,
            phase="backward",
            once=_SUMMED,
            module=name,
            signature=f"scatter {summed}",
        )

    def hidden(self, name: str, seconds: float, phase: str) -> float:
        """What of an exchange is not hidden behind the compute of a block."""
        if not name.startswith("block "):
            return seconds
        block = self.blocks[int(name.removeprefix("block "))]
        ops = block.forward if phase == "forward" else block.backward
        own = sum(self.step.ops[i].seconds for i in ops if not self.step.ops[i].standby)
        return max(0.0, seconds - own)

    def joined(
        self,
        before: dict[int, list[Op]],
        behind: dict[int, list[Op]],
        outputs: list[int],
    ) -> StepGraph:
        ops: list[Op] = []
        starts: dict[int, int] = {}
        ends: dict[int, int] = {}
        for op in self.step.ops:
            starts[op.id] = len(ops)
            for new in (*before.get(op.id, ()), op, *behind.get(op.id, ())):
                ops.append(replace(new, id=len(ops)))
            ends[op.id] = len(ops)
        made = replace(
            self.step,
            ops=tuple(ops),
            storages=tuple(self.storages),
            outputs=tuple(outputs),
        )
        check_graph(made)
        blocks = [
            Block(
                range(starts[b.forward[0]], ends[b.forward[-1]]),
                range(starts[b.backward[0]], ends[b.backward[-1]]),
            )
            for b in self.blocks
        ]
        return with_told_blocks(made, blocks)

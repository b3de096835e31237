"""The step as flat arrays and lists: what the inner loops of the search read.

Residents are left out of reads and writes: they are always alive, so no decision of the
search depends on them. Bytes are floats: whole numbers up to 2**53 stay exact.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import cached_property, reduce
from operator import or_

from lowtide.planners.auto._evaluator import Evaluator
from lowtide.step.graph import StepGraph


class Problem:
    """One step, prepared for the search.

    Of its schedules, those are meant that run each op of `sure` and none of `never`.
    """

    def __init__(
        self,
        step: StepGraph,
        *,
        sure: frozenset[int] = frozenset(),
        never: frozenset[int] = frozenset(),
    ) -> None:
        self.step, self.sure, self.never = step, sure, never
        self.reads, self.writes = (
            [tuple(s for s in row if not step.storages[s].resident) for row in rows]
            for rows in ((o.reads for o in step.ops), (o.writes for o in step.ops))
        )
        self.size: list[float] = [float(b) for b in step.sizes]
        self.seconds: list[float] = [op.seconds for op in step.ops]
        # What an op needs while it runs, beside what is alive before it.
        self.fresh_bytes: list[float] = [
            sum(self.size[s] for s in writes) + float(step.passing_bytes[op.id])
            for op, writes in zip(step.ops, self.writes, strict=True)
        ]
        # What is counted for an op that takes no time, so that ratios stay finite.
        self.tiny_seconds = max(step.baseline_seconds, 1e-12) * 1e-7
        self.once: list[bool] = [bool(op.once) for op in step.ops]
        # An op without outputs is run for something the graph does not show.
        self.fixed: list[bool] = [
            bool(op.once) or not self.writes[op.id] for op in step.ops
        ]
        self.remaker: list[int] = list(step.remakers)
        self.piece: list[int] = [op.piece for op in step.ops]
        self.opens: list[int] = [op.opens for op in step.ops]
        self.held: list[bool] = [False] * len(step.storages)
        for s in step.outputs:
            self.held[s] = not step.storages[s].resident
        self.residents = frozenset(step.resident)
        self.resident_bytes = float(step.resident_bytes)
        self.baseline: list[int] = list(step.baseline)
        self._ancestors: dict[int, frozenset[int]] = {}

    @cached_property
    def evaluator(self) -> Evaluator:
        """What runs the moves of the search on this step."""
        return Evaluator(self)

    @cached_property
    def op_class(self) -> list[int]:
        """Equal numbers for ops that compute the same: the same op in other layers."""
        numbers: dict[str, int] = {}
        return [
            numbers.setdefault(op.signature or op.target, len(numbers))
            for op in self.step.ops
        ]

    @cached_property
    def storage_class(self) -> list[int]:
        """The first of the storages made alike, as those of repeated layers are."""
        first: dict[tuple[int, int], int] = {}
        alike = list(range(len(self.size)))
        for number, writes in enumerate(self.writes):
            for k, s in enumerate(writes):
                alike[s] = first.setdefault((self.op_class[number], k), s)
        return alike

    @cached_property
    def makers(self) -> list[tuple[int, ...]]:
        """For each storage, the ops that may make it."""
        return [
            tuple(i for i in makers if i not in self.never)
            for makers in self.step.producers
        ]

    @cached_property
    def must_run(self) -> frozenset[int]:
        """Ops that every schedule runs: for their effect, or as only makers."""
        outputs = [s for s in self.step.outputs if not self.step.storages[s].resident]
        mask = _union(self._made_before[s] for s in outputs)
        for i in (*(i for i in self.baseline if self.once[i]), *self.sure):
            mask |= self._earlier[i] | 1 << i
        return _numbers(mask)

    def ancestors_of(self, number: int) -> frozenset[int]:
        """Ops that have run before this op runs for the first time, in any schedule."""
        if number not in self._ancestors:
            self._ancestors[number] = _numbers(self._earlier[number])
        return self._ancestors[number]

    def comes_before(self, first: int, second: int) -> bool:
        """Whether an op has run, in any schedule, when another first runs."""
        return bool(self._earlier[second] >> first & 1)

    @cached_property
    def _earlier(self) -> list[int]:
        """For each op, its ancestors as the bits of a number."""
        return [_union(self._made_before[s] for s in reads) for reads in self.reads]

    @cached_property
    def _made_before(self) -> list[int]:
        """For each storage, the ops that have run once it is there, as bits.

        Of several makers any may be the first; so what each of them needs, has run.
        We begin with every op and leave out what is not so, until nothing changes.
        """
        step, every = self.step, (1 << len(self.step.ops)) - 1
        found = [0 if s.resident else every for s in step.storages]
        changed = True
        while changed:
            changed = False
            for writes in self.writes:
                for s in writes:
                    mask = every
                    for maker in self.makers[s]:
                        reads = self.reads[maker]
                        mask &= _union(found[r] for r in reads) | 1 << maker
                    changed |= mask != found[s]
                    found[s] = mask
        return found


def _union(masks: Iterable[int]) -> int:
    return reduce(or_, masks, 0)


def _numbers(mask: int) -> frozenset[int]:
    """The places of the bits that are set."""
    return frozenset(i for i, bit in enumerate(reversed(f"{mask:b}")) if bit == "1")


def outputs_late(problem: Problem) -> list[int]:
    """The baseline with ops at its end that make outputs from fewer bytes.

    An output of the step, such as a weight's gradient, lives from its making to the
    end. An op that makes one from fewer bytes than it writes is better run last: its
    inputs wait instead of its output.
    """
    size, held = problem.size, problem.held
    waiting: set[int] = set()
    late: list[int] = []
    candidates = _movable(problem)
    grown = True
    while grown:
        grown = False
        for number in candidates:
            fresh = [s for s in problem.reads[number] if s not in waiting]
            wait = sum(size[s] for s in fresh if not held[s])
            if wait < sum(size[s] for s in problem.writes[number]):
                late.append(number)
                waiting.update(fresh)
                grown = True
        candidates = [i for i in candidates if i not in set(late)]
    moved = set(late)
    # Largest inputs first: the last ones run when all outputs are there.
    late.sort(key=lambda i: (-sum(size[s] for s in problem.reads[i]), i))
    return [i for i in problem.baseline if i not in moved] + late


def _movable(problem: Problem) -> list[int]:
    """Ops after the last region's start that only make outputs nobody reads."""
    read = {s for number in problem.baseline for s in problem.reads[number]}
    last_piece = problem.step.regions[-1].piece
    begun = max(
        (k for k, i in enumerate(problem.baseline) if problem.opens[i] >= 0), default=-1
    )
    return [
        i
        for i in problem.baseline[begun + 1 :]
        if not problem.fixed[i]
        and problem.piece[i] == last_piece
        and all(problem.held[s] and s not in read for s in problem.writes[i])
        and all(len(problem.step.producers[s]) == 1 for s in problem.writes[i])
    ]

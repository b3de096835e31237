"""The only definition of peak and time.

The peak of a schedule is the largest number of bytes alive at any moment: residents,
everything made and not yet freed, and while an op runs its outputs and its scratch. An
op that can write over an argument does so where that is freed right behind it; the two
then count once. The time is the sum of the times of the ops it runs. `simulate` walks a
schedule once, rejects it at the first item that cannot be executed, and reports both.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NoReturn

from lowtide.errors import InvalidScheduleError
from lowtide.step.graph import StepGraph
from lowtide.step.plan import Free, Item, Run


@dataclass(frozen=True, slots=True)
class Timeline:
    """What happens when a schedule runs.

    `live_bytes[i]` is what is alive while item i happens, an op's scratch included.
    `peak_index` is the first item at which the peak is reached.
    """

    peak_bytes: int
    seconds: float
    live_bytes: tuple[int, ...]
    peak_index: int


def simulate(step: StepGraph, schedule: Sequence[Item]) -> Timeline:
    """Peak, time and live bytes of a schedule.

    Raises:
        InvalidScheduleError: with the first item that breaks the schedule: a read that
            is not alive, a storage freed twice, an op that may run only once run again
            or out of order, an op outside its region, an output never made.
    """
    walk = _Walk(step)
    sizes, ops = step.sizes, step.ops
    alive, spent = walk.alive, walk.spent
    pinned = frozenset(step.outputs).union(step.resident)
    now = sum(sizes[s] for s in step.resident)
    seconds = 0.0
    live: list[int] = []
    append = live.append
    for index, item in enumerate(schedule):
        if isinstance(item, Run):
            number = item.op
            if not 0 <= number < len(ops):
                walk.fail(index, item, f"there is no op {number}")
            op = ops[number]
            if op.once or op.opens >= 0 or op.piece != walk.piece:
                walk.special(index, item)
            for s in op.reads:
                if not alive[s]:
                    walk.not_alive(index, item, s)
            if spent and not spent.isdisjoint(op.reads):
                walk.is_spent(index, item)
            if op.spends:
                spent.update(op.spends)
            copies = 0
            for s in op.writes:
                if alive[s]:
                    # Made again while the old copy is held: for the moment of the op
                    # both exist, then one of them goes.
                    copies += sizes[s]
                else:
                    alive[s] = True
                    now += sizes[s]
            seconds += op.seconds
            if op.over >= 0 and frees_next(schedule, index, op.over):
                copies -= sizes[op.over]
            append(now + op.scratch_bytes + copies)
        else:
            s = item.storage
            if not 0 <= s < len(alive) or not alive[s]:
                walk.fail(index, item, f"storage {walk.name(s)} is not alive here")
            if s in pinned:
                walk.fail(index, item, f"storage {walk.name(s)} must live to the end")
            alive[s] = False
            now -= sizes[s]
            append(now)
    walk.finish(len(schedule))
    if not live:
        return Timeline(now, 0.0, (), 0)
    peak = max(live)
    return Timeline(peak, seconds, tuple(live), live.index(peak))


def frees_next(schedule: Sequence[Item], index: int, storage: int) -> bool:
    """Whether the item behind this one frees the storage."""
    return index + 1 < len(schedule) and schedule[index + 1] == Free(storage)


class _Walk:
    """The rarely needed half of the walk: regions, ops that run once, messages."""

    def __init__(self, step: StepGraph) -> None:
        self.step = step
        self.alive = [s.resident for s in step.storages]
        self.region = 0
        self.piece = step.regions[0].piece
        self.last_once = -1
        self.updated: set[int] = set()
        self.spent: set[int] = set()
        self.once_runs = 0
        self.home = home_regions(step)

    def name(self, storage: int) -> str:
        known = 0 <= storage < len(self.step.storages)
        return (
            f"{storage} ({self.step.storages[storage].name})" if known else str(storage)
        )

    def fail(self, index: int, item: Item, reason: str) -> NoReturn:
        raise InvalidScheduleError(index, reason, item)

    def not_alive(self, index: int, item: Item, storage: int) -> NoReturn:
        assert isinstance(item, Run)
        op = self.step.ops[item.op]
        self.fail(
            index, item, f"op {op.name} reads storage {self.name(storage)}, not alive"
        )

    def is_spent(self, index: int, item: Run) -> NoReturn:
        op = self.step.ops[item.op]
        storage = min(self.spent.intersection(op.reads))
        self.fail(
            index,
            item,
            f"op {op.name} reads storage {self.name(storage)}, which has been updated",
        )

    def special(self, index: int, item: Run) -> None:
        op = self.step.ops[item.op]
        if op.opens >= 0:
            if op.opens != self.region + 1:
                self.fail(
                    index,
                    item,
                    f"op {op.name} opens region {op.opens}, but region {self.region} "
                    "is the present one",
                )
            self.region = op.opens
            self.piece = self.step.regions[self.region].piece
        elif op.piece != self.piece:
            self.fail(
                index,
                item,
                f"op {op.name} belongs to piece {op.piece}, but only ops of piece "
                f"{self.piece} can run here",
            )
        if op.once:
            if (op.id <= self.last_once and not op.spends) or op.id in self.updated:
                self.fail(
                    index,
                    item,
                    f"op {op.name} may run only once and in its order ({op.once})",
                )
            if self.home[op.id] != self.region:
                self.fail(
                    index, item, f"op {op.name} ({op.once}) may not leave its region"
                )
            if op.spends:
                self.updated.add(op.id)
            else:
                self.last_once = op.id
            self.once_runs += 1

    def finish(self, length: int) -> None:
        for s in self.step.outputs:
            if not self.alive[s]:
                raise InvalidScheduleError(
                    length, f"output {self.name(s)} is not there at the end"
                )
        expected = sum(1 for op in self.step.ops if op.once and not op.standby)
        if self.once_runs != expected:
            raise InvalidScheduleError(
                length,
                f"{self.once_runs} of the {expected} ops that must run "
                "exactly once were run",
            )


def pieces_along(step: StepGraph, sequence: Sequence[int]) -> list[int]:
    """For each position, the piece whose ops may be inserted before it.

    One more stands at the end, for what may follow the sequence.
    """
    pieces = [step.regions[0].piece]
    for number in sequence:
        opened = step.ops[number].opens
        pieces.append(step.regions[opened].piece if opened >= 0 else pieces[-1])
    return pieces


def home_regions(step: StepGraph) -> list[int]:
    """For each op, the region in which the baseline runs it."""
    region = 0
    home: list[int] = []
    for op in step.ops:
        if op.opens >= 0:
            region = op.opens
        home.append(region)
    return home

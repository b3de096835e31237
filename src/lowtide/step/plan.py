"""A plan: the schedule of one step, what it promises, and how good it is known to be.

A schedule is a sequence of `Run(op)` and `Free(storage)`. It may run an op several
times and free and remake a storage as often as it likes; `lowtide.step.simulate` says
whether it is valid and what it costs.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from lowtide.step.fields import Fraction, Id, Name, NumBytes, PieceOps, Seconds
from lowtide.step.files import Saved
from lowtide.step.format import format_bytes, format_percent


@dataclass(frozen=True, slots=True)
class Run:
    """Run this op now."""

    op: int


@dataclass(frozen=True, slots=True)
class Free:
    """Free this storage now."""

    storage: int


Item = Run | Free
Schedule = tuple[Item, ...]


@dataclass(frozen=True, slots=True)
class Proof:
    """How good a plan is known to be.

    No plan for this step and budget can take less than `bound_seconds`, and none can
    have a peak below `bound_bytes`. `gap` is the part of the plan's time that is not
    proven necessary: 0.0 means optimal. `stopped_by` says why the search ended.
    """

    bound_seconds: Seconds
    gap: Fraction
    stopped_by: Name
    bound_bytes: NumBytes = 0
    search_seconds: Seconds = 0.0
    history: tuple[tuple[Seconds, Seconds], ...] = ()


@dataclass(frozen=True, slots=True, repr=False)
class Plan(Saved):
    """A schedule for one step, with what it costs by simulation.

    `kept` are the storages that cross from forward to backward, `recomputed` the ops
    that run more than once. `pieces` says which ops are those of each captured graph;
    `openers` are the ops between them.
    """

    planner: Name
    schedule: Schedule
    fingerprint: Name
    budget_bytes: NumBytes
    peak_bytes: NumBytes
    baseline_peak_bytes: NumBytes
    seconds: Seconds
    baseline_seconds: Seconds
    kept: tuple[Id, ...]
    recomputed: tuple[Id, ...]
    proof: Proof
    resident_bytes: NumBytes = 0
    step_name: Name = "step"
    pieces: tuple[PieceOps, ...] = ()
    openers: tuple[Id, ...] = ()
    names: Mapping[str, tuple[Name, ...]] = field(
        default_factory=dict[str, tuple[Name, ...]]
    )

    @property
    def overhead(self) -> float:
        """Extra time as a fraction of the baseline's."""
        if self.baseline_seconds <= 0:
            return 0.0
        return self.seconds / self.baseline_seconds - 1.0

    @property
    def ops(self) -> tuple[int, ...]:
        """The op ids in the order they run."""
        return tuple(i.op for i in self.schedule if type(i) is Run)

    def __repr__(self) -> str:
        return f"<Plan of {self.step_name} by {self}>"

    def __str__(self) -> str:
        return (
            f"{self.planner}: peak {format_bytes(self.peak_bytes)} of "
            f"{format_bytes(self.baseline_peak_bytes)}, "
            f"{format_percent(self.overhead, signed=True)} time, "
            f"{len(self.kept)} kept, {len(self.recomputed)} recomputed"
        )


def encode(schedule: Sequence[Item]) -> list[int]:
    """The schedule as whole numbers: op ids, and -1-s for freeing storage s."""
    return [i.op if isinstance(i, Run) else -1 - i.storage for i in schedule]


def decode(numbers: Sequence[int]) -> Schedule:
    """The schedule that `encode` wrote."""
    return tuple(Run(n) if n >= 0 else Free(-1 - n) for n in numbers)

"""The training step as plain data: what every later stage reads.

A `StepGraph` is a list of ops over a list of storages. A storage is one block of bytes
(all views of a buffer are the same storage); an op reads storages and writes storages.
Nothing here knows torch, so a step captured on one machine is planned on another.

Three conventions carry everything else:

* An op with a `once` reason has an effect that must happen exactly once, in order (it
  draws random numbers, mutates state, talks to other processes, or runs outside the
  captured graphs). Every other op may run any number of times, anywhere its reads are
  alive.
* A `standby` op is never part of the baseline. It is another way to make a storage that
  its first producer may not make twice: a replay of a random draw, a normalisation that
  does not touch running statistics.
* Some ops open a new `Region`. Between two of them only ops of that region's piece (one
  captured graph) may run. The usual step has one piece and two regions, and the op
  between them stands for everything outside: it reads the forward's outputs and writes
  the gradients that start the backward.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, get_args

from lowtide.step.fields import (
    MOST_BYTES,
    Id,
    Mark,
    Name,
    NumBytes,
    PieceOps,
    Seconds,
    Text,
)
from lowtide.step.files import Saved, write_whole
from lowtide.step.format import format_bytes

if TYPE_CHECKING:
    from lowtide.step.analysis.ops import OpRecord, Share
    from lowtide.step.analysis.peak import Peak
    from lowtide.step.analysis.storages import Lifetime

Kind = Literal[
    "parameter",
    "buffer",
    "optimizer_state",
    "input",
    "gradient",
    "activation",
    "temporary",
]
Phase = Literal["forward", "backward", "optimizer"]

KINDS: tuple[Kind, ...] = get_args(Kind)
# Between the names, and the targets, of ops that are folded into one.
FOLDED = " + "


@dataclass(frozen=True, slots=True)
class Storage:
    """One block of bytes. `resident` ones exist before, during and after the step."""

    id: Id
    name: Name
    nbytes: NumBytes
    kind: Kind = "activation"
    resident: bool = False
    shape: tuple[NumBytes, ...] = ()
    dtype: Name = ""


@dataclass(frozen=True, slots=True)
class Op:
    """One operation, in baseline order.

    `reads` and `writes` are storage ids. `once` says why the op may not run twice
    (empty if it may). `opens` is the index of the region that starts with this op, or
    -1. `signature` is the op with its shapes and plain arguments: equal signatures cost
    the same and compute the same function. `spends` are storages whose old content is
    gone when the op has run (it updates them), so that nothing may read them later;
    such ops run once, in any order. `over` is a storage among the reads, or -1: if it
    is freed right behind the op, the op has written its first result there.
    """

    id: Id
    name: Text
    target: Text
    reads: tuple[Id, ...]
    writes: tuple[Id, ...]
    seconds: Seconds = 0.0
    scratch_bytes: NumBytes = 0
    phase: Phase = "forward"
    piece: Mark = 0
    once: Name = ""
    standby: bool = False
    opens: Mark = -1
    module: Name = ""
    source: Name = ""
    signature: Text = ""
    spread: Seconds = 0.0
    spends: tuple[Id, ...] = ()
    over: Mark = -1

    def over_storages(self, place: Callable[[int], int], **changes: Any) -> Op:
        """The same op over other storages: `place` says for each of its own which."""
        return replace(
            self,
            reads=tuple(map(place, self.reads)),
            writes=tuple(map(place, self.writes)),
            spends=tuple(map(place, self.spends)),
            over=place(self.over) if self.over >= 0 else -1,
            **changes,
        )


@dataclass(frozen=True, slots=True)
class Region:
    """A stretch of the schedule in which only ops of one piece may run."""

    piece: Mark
    phase: Phase


@dataclass(frozen=True, repr=False)
class StepGraph(Saved):
    """A training step: ops in baseline order, storages, and what must be left.

    `outputs` are the storages that must be alive when the step ends (gradients, values
    returned to the caller, new buffer values). Sizes are rounded up to
    `alignment_bytes`, the allocator's granularity.
    """

    ops: tuple[Op, ...]
    storages: tuple[Storage, ...]
    outputs: tuple[int, ...]
    regions: tuple[Region, ...] = (Region(0, "forward"),)
    alignment_bytes: int = 1
    name: str = "step"
    device: str = ""
    notes: tuple[str, ...] = ()
    facts: Mapping[str, Any] = field(default_factory=dict[str, Any])

    def __repr__(self) -> str:
        return (
            f"<StepGraph {self.name}: {len(self.ops)} ops, {len(self.storages)} "
            f"storages, {format_bytes(self.baseline_peak_bytes)} at the peak>"
        )

    @property
    def pieces(self) -> tuple[PieceOps, ...]:
        """The captured graphs that the step was put together from."""
        return tuple(PieceOps(*row) for row in self.facts.get("pieces", ()))

    @cached_property
    def sizes(self) -> tuple[int, ...]:
        """Bytes of each storage as the allocator counts them."""
        unit = self.alignment_bytes
        return tuple(-(-s.nbytes // unit) * unit for s in self.storages)

    @cached_property
    def passing_bytes(self) -> tuple[int, ...]:
        """What each op needs while it runs, beside what it reads and makes.

        That is its scratch, less what its result takes the place of. Where that is not
        freed behind the op, it needs more: only `simulate` knows.
        """
        return tuple(
            op.scratch_bytes - (self.sizes[op.over] if op.over >= 0 else 0)
            for op in self.ops
        )

    @cached_property
    def resident(self) -> tuple[int, ...]:
        """Ids of the storages that outlive the step."""
        return tuple(s.id for s in self.storages if s.resident)

    @cached_property
    def resident_bytes(self) -> int:
        """Bytes that no plan can free."""
        return sum(self.sizes[s] for s in self.resident)

    @cached_property
    def baseline(self) -> tuple[int, ...]:
        """Op ids in the order of the unplanned step."""
        return tuple(op.id for op in self.ops if not op.standby)

    @cached_property
    def baseline_seconds(self) -> float:
        """Time of the step with everything kept."""
        return sum(self.ops[i].seconds for i in self.baseline)

    @cached_property
    def producers(self) -> tuple[tuple[int, ...], ...]:
        """For each storage, the ops that can make it, first the baseline's."""
        found: list[list[int]] = [[] for _ in self.storages]
        for op in self.ops:
            for s in op.writes:
                found[s].append(op.id)
        return tuple(
            tuple(sorted(ids, key=lambda i: self.ops[i].standby)) for ids in found
        )

    @cached_property
    def remakers(self) -> tuple[int, ...]:
        """For each storage, the op that makes it again, or -1 if it must be kept.

        Of several, the fastest; of equals the last, which needs the least: a step
        without costs is planned too.
        """
        chosen: list[int] = []
        for ids in self.producers:
            again = [i for i in ids if not self.ops[i].once]
            best = min(again, key=lambda i: (self.ops[i].seconds, -i), default=-1)
            chosen.append(best)
        return tuple(chosen)

    @cached_property
    def turn(self) -> int:
        """Id of the op that opens the backward, or -1 if the step has no such mark."""
        for op in self.ops:
            if op.opens >= 0 and self.regions[op.opens].phase == "backward":
                return op.id
        return -1

    @cached_property
    def fingerprint(self) -> str:
        """Hash of the structure: ops, arguments, shapes, roles. Times do not count."""
        digest = hashlib.sha256()
        for op in self.ops:
            row = (op.target, op.signature, op.reads, op.writes, op.phase, op.piece)
            digest.update(repr((*row, op.once, op.standby, op.opens)).encode())
            if op.spends:
                digest.update(repr(op.spends).encode())
        for s in self.storages:
            digest.update(repr((s.nbytes, s.kind, s.resident, s.dtype)).encode())
        digest.update(repr((self.outputs, self.alignment_bytes)).encode())
        return digest.hexdigest()[:16]

    @cached_property
    def baseline_peak_bytes(self) -> int:
        """Peak of the step with everything kept."""
        from lowtide.step.schedule import with_frees
        from lowtide.step.simulate import simulate

        return simulate(self, with_frees(self, self.baseline)).peak_bytes

    @property
    def eager_peak_bytes(self) -> int:
        """Peak of the step without lowtide.

        It is above the baseline's where eager leaves a result beside the argument that
        the captured step writes it over.
        """
        return self.baseline_peak_bytes + int(self.facts.get("eager_extra_bytes", 0))

    @cached_property
    def floor_bytes(self) -> int:
        """The lowest peak that our best planner finds; it may search for seconds."""
        return find_floor(self)

    def at_peak(self) -> Peak:
        """What is alive when the baseline is at its peak, largest first."""
        from lowtide.step.analysis.peak import peak_of
        from lowtide.step.schedule import walk_baseline

        return peak_of(walk_baseline(self))

    def lifetimes(self) -> tuple[Lifetime, ...]:
        """When each storage is made, used and idle, and what remaking it costs."""
        from lowtide.step.analysis.storages import lifetimes

        return lifetimes(self)

    def op_records(self) -> tuple[OpRecord, ...]:
        """Each op of the baseline: its time, its bytes, the bytes alive around it."""
        from lowtide.step.analysis.ops import op_records

        return op_records(self)

    def by_kind(self) -> dict[str, int]:
        """Bytes at the baseline's peak by kind."""
        return self.at_peak().by_kind()

    def by_module(self, depth: int = 2) -> tuple[Share, ...]:
        """Time and bytes by module, repeated layers collapsed."""
        from lowtide.step.analysis.ops import by_module

        return by_module(self, depth)

    def by_op_type(self) -> tuple[Share, ...]:
        """Time and bytes by type of op, the slowest first."""
        from lowtide.step.analysis.ops import by_op_type

        return by_op_type(self)

    def shares(self) -> dict[str, float]:
        """Fraction of the time spent in forward, backward and optimizer."""
        from lowtide.step.analysis.ops import shares

        return shares(self)

    def to_csv(
        self,
        path: str | Path,
        table: Literal["storages", "ops", "modules"] = "storages",
        *,
        force: bool = False,
    ) -> None:
        """Write one row per storage, op or module.

        The same table is replaced if it is there; any other file only with `force`.
        """
        from lowtide.step.analysis.csv import table_of

        write_whole(path, table_of(self, table), force=force)

    @classmethod
    def from_text(cls, text: str, *, name: str = "text") -> StepGraph:
        """Read the small text form used in tests; see `lowtide.step.text`."""
        from lowtide.step.text import parse

        return parse(text, name=name)


def find_floor(step: StepGraph) -> int:
    """What `StepGraph.floor_bytes` asks. The package sets it (`lowtide/__init__.py`).

    Planners stand above steps, so nothing here imports them.
    """
    raise NotImplementedError(step.name)


def check_graph(step: StepGraph) -> None:
    """Raise `ValueError` if ids, regions, reads or the baseline order contradict."""
    storages, count = step.storages, len(step.storages)
    if [s.id for s in storages] != list(range(count)):
        raise ValueError("storage ids must be 0..n-1 in order")
    if [op.id for op in step.ops] != list(range(len(step.ops))):
        raise ValueError("op ids must be 0..n-1 in order")
    for s in storages:
        if s.nbytes < 0:
            raise ValueError(f"storage {s.name} has {s.nbytes} bytes")
    if sum(step.sizes) >= MOST_BYTES:
        raise ValueError(f"the storages have {sum(step.sizes)} bytes together")
    opened = [op.opens for op in step.ops if op.opens != -1]
    if not step.regions or opened != list(range(1, len(step.regions))):
        raise ValueError(
            f"there are {len(step.regions)} regions, but the ops open {opened[:9]}"
        )
    made = [s.resident for s in storages]
    spent: set[int] = set()
    for op in step.ops:
        _check_op(op, storages)
        if op.standby:
            continue
        for s in op.reads:
            if not made[s]:
                raise ValueError(
                    f"op {op.name} reads {storages[s].name} before it is made"
                )
            if s in spent:
                raise ValueError(
                    f"op {op.name} reads {storages[s].name} after it is updated"
                )
        spent.update(op.spends)
        for s in op.writes:
            made[s] = True
    forms = {s for op in step.ops if op.standby for s in op.writes}
    for op in step.ops:
        if op.standby and not all(made[s] or s in forms for s in op.reads):
            raise ValueError(f"op {op.name} names a storage that no other op makes")
    if len(set(step.outputs)) < len(step.outputs):
        raise ValueError("an output storage is listed twice")
    for s in step.outputs:
        if not (0 <= s < count and made[s]):
            raise ValueError(f"output storage {s} is never made")
        if storages[s].resident:
            raise ValueError(f"output {storages[s].name} is a resident, which stays")


def _check_op(op: Op, storages: tuple[Storage, ...]) -> None:
    """Raise `ValueError` if an op is not one that the simulator means.

    An op makes its results beside its arguments. What changes a storage in place is
    captured as an op without that result, so nothing is both read and written.
    """
    touched = (*op.reads, *op.writes)
    if not all(0 <= s < len(storages) for s in touched):
        raise ValueError(f"op {op.name} names a storage that is not there")
    if len(set(touched)) < len(touched):
        raise ValueError(f"op {op.name} names a storage twice")
    for s in op.writes:
        if storages[s].resident:
            raise ValueError(f"op {op.name} makes {storages[s].name}, a resident")
    if not 0 <= op.seconds < math.inf or op.scratch_bytes < 0:
        raise ValueError(f"op {op.name} has negative or undefined cost")
    if not set(op.spends).issubset(op.reads) or (op.spends and not op.once):
        raise ValueError(f"op {op.name} spends what it does not read, or may run again")
    if op.over != -1 and not (
        op.over in op.reads
        and op.writes
        and storages[op.over].nbytes == storages[op.writes[0]].nbytes
        and not storages[op.over].resident
    ):
        raise ValueError(f"op {op.name} writes over what its result does not fit")
    if op.standby and (op.opens != -1 or op.once):
        raise ValueError(f"op {op.name} stands by, so it cannot be a must")

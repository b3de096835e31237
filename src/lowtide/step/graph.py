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
import json
from collections.abc import Iterable, Mapping
from dataclasses import MISSING, dataclass, field, fields, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, cast

from lowtide.errors import StepFormatError
from lowtide.step.format import format_bytes

if TYPE_CHECKING:
    from lowtide.step.analysis import Lifetime, OpRecord, Peak, Share

Kind = Literal[
    "parameter",
    "buffer",
    "input",
    "activation",
    "gradient",
    "optimizer_state",
    "temporary",
]
Phase = Literal["forward", "backward", "optimizer"]

KINDS: tuple[Kind, ...] = (
    "parameter",
    "buffer",
    "optimizer_state",
    "input",
    "gradient",
    "activation",
    "temporary",
)
SCHEMA = 1
# Between the names, and the targets, of ops that are folded into one.
FOLDED = " + "


@dataclass(frozen=True, slots=True)
class Storage:
    """One block of bytes. `resident` ones exist before, during and after the step."""

    id: int
    name: str
    nbytes: int
    kind: Kind = "activation"
    resident: bool = False
    shape: tuple[int, ...] = ()
    dtype: str = ""


@dataclass(frozen=True, slots=True)
class Op:
    """One operation, in baseline order.

    `reads` and `writes` are storage ids. `once` says why the op may not run twice
    (empty if it may). `opens` is the index of the region that starts with this op, or
    -1. `signature` is the op with its shapes and plain arguments: equal signatures cost
    the same and compute the same function.
    """

    id: int
    name: str
    target: str
    reads: tuple[int, ...]
    writes: tuple[int, ...]
    seconds: float = 0.0
    scratch_bytes: int = 0
    phase: Phase = "forward"
    piece: int = 0
    once: str = ""
    standby: bool = False
    opens: int = -1
    module: str = ""
    source: str = ""
    signature: str = ""
    spread: float = 0.0


@dataclass(frozen=True, slots=True)
class Region:
    """A stretch of the schedule in which only ops of one piece may run."""

    piece: int
    phase: Phase


class PieceOps(NamedTuple):
    """Which ops of a step are those of one captured graph.

    Its fingerprint, and the ids of its first op and past its last in each half.
    """

    fingerprint: str
    forward_start: int
    forward_stop: int
    backward_start: int
    backward_stop: int

    @property
    def forward(self) -> range:
        """Ids of its ops in the forward."""
        return range(self.forward_start, self.forward_stop)

    @property
    def backward(self) -> range:
        """Ids of its ops in the backward."""
        return range(self.backward_start, self.backward_stop)


@dataclass(frozen=True, repr=False)
class StepGraph:
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

        Of several, the fastest; ties go to the lower id.
        """
        chosen: list[int] = []
        for ids in self.producers:
            again = [i for i in ids if not self.ops[i].once]
            best = min(again, key=lambda i: (self.ops[i].seconds, i), default=-1)
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
        from lowtide.step.analysis import at_peak

        return at_peak(self)

    def lifetimes(self) -> tuple[Lifetime, ...]:
        """When each storage is made, used and idle, and what remaking it costs."""
        from lowtide.step.analysis import lifetimes

        return lifetimes(self)

    def op_records(self) -> tuple[OpRecord, ...]:
        """Each op of the baseline: its time, its bytes, the bytes alive around it."""
        from lowtide.step.analysis import op_records

        return op_records(self)

    def by_kind(self) -> dict[str, int]:
        """Bytes at the baseline's peak by kind."""
        from lowtide.step.analysis import by_kind

        return by_kind(self)

    def by_module(self, depth: int = 2) -> tuple[Share, ...]:
        """Time and bytes by module, repeated layers collapsed."""
        from lowtide.step.analysis import by_module

        return by_module(self, depth)

    def by_op_type(self) -> tuple[Share, ...]:
        """Time and bytes by type of op, the slowest first."""
        from lowtide.step.analysis import by_op_type

        return by_op_type(self)

    def shares(self) -> dict[str, float]:
        """Fraction of the time spent in forward, backward and optimizer."""
        from lowtide.step.analysis import shares

        return shares(self)

    def to_csv(
        self,
        path: str | Path,
        table: Literal["storages", "ops", "modules"] = "storages",
    ) -> None:
        """Write one row per storage, op or module."""
        from lowtide.step.analysis import save_csv

        save_csv(self, path, table)

    def with_seconds(self, seconds: Iterable[float]) -> StepGraph:
        """The same step with other op times."""
        ops = tuple(
            replace(op, seconds=t) for op, t in zip(self.ops, seconds, strict=True)
        )
        return replace(self, ops=ops)

    def to_dict(self) -> dict[str, Any]:
        """Plain data that `from_dict` reads back."""
        return {
            "lowtide": "step",
            "schema": SCHEMA,
            "name": self.name,
            "device": self.device,
            "fingerprint": self.fingerprint,
            "alignment_bytes": self.alignment_bytes,
            "notes": list(self.notes),
            "facts": dict(self.facts),
            "regions": [[r.piece, r.phase] for r in self.regions],
            "outputs": list(self.outputs),
            "storages": [_sparse(s) for s in self.storages],
            "ops": [_sparse(op) for op in self.ops],
        }

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> StepGraph:
        """Rebuild a step; raises `StepFormatError` on anything that is not one."""
        if data.get("lowtide") != "step" or data.get("schema") != SCHEMA:
            raise StepFormatError(
                f"found kind {data.get('lowtide')!r}, schema {data.get('schema')!r}; "
                f"expected kind 'step', schema {SCHEMA}"
            )
        try:
            step = cls(
                ops=tuple(Op(**_tuples(o)) for o in data["ops"]),
                storages=tuple(Storage(**_tuples(s)) for s in data["storages"]),
                outputs=tuple(data["outputs"]),
                regions=tuple(Region(p, f) for p, f in data["regions"]),
                alignment_bytes=data["alignment_bytes"],
                name=data["name"],
                device=data["device"],
                notes=tuple(data["notes"]),
                facts=dict(data["facts"]),
            )
            check_graph(step)
        except (KeyError, TypeError, ValueError, IndexError) as error:
            raise StepFormatError(f"{type(error).__name__}: {error}") from error
        found, expected = data.get("fingerprint"), step.fingerprint
        if found != expected:
            raise StepFormatError(
                f"fingerprint {found!r} in the file, but its contents hash to "
                f"{expected!r}: the file was edited or damaged"
            )
        return step

    def save(self, path: str | Path) -> None:
        """Write the step as JSON."""
        Path(path).write_text(json.dumps(self.to_dict(), separators=(",", ":")))

    @classmethod
    def load(cls, path: str | Path) -> StepGraph:
        """Read a step written by `save`."""
        try:
            data = json.loads(Path(path).read_text())
        except (json.JSONDecodeError, UnicodeDecodeError) as error:
            raise StepFormatError(f"{path} is not JSON: {error}") from error
        if not isinstance(data, dict):
            raise StepFormatError(
                f"{path} holds a {type(data).__name__}, not an object"
            )
        return cls.from_dict(cast("dict[str, Any]", data))

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


def _sparse(record: Op | Storage) -> dict[str, Any]:
    """The fields of a record that differ from their defaults."""
    found: dict[str, Any] = {}
    for f in fields(record):
        value = getattr(record, f.name)
        if f.default is MISSING or value != f.default:
            found[f.name] = value
    return found


def _tuples(record: Mapping[str, Any]) -> dict[str, Any]:
    return {k: tuple(v) if isinstance(v, list) else v for k, v in record.items()}  # pyright: ignore[reportUnknownArgumentType, reportUnknownVariableType]


def check_graph(step: StepGraph) -> None:
    """Raise `ValueError` if ids, reads or the baseline order are inconsistent."""
    count = len(step.storages)
    if [s.id for s in step.storages] != list(range(count)):
        raise ValueError("storage ids must be 0..n-1 in order")
    if [op.id for op in step.ops] != list(range(len(step.ops))):
        raise ValueError("op ids must be 0..n-1 in order")
    for s in step.storages:
        if s.nbytes < 0:
            raise ValueError(f"storage {s.name} has {s.nbytes} bytes")
    made = [s.resident for s in step.storages]
    for op in step.ops:
        if not all(0 <= s < count for s in (*op.reads, *op.writes)):
            raise ValueError(f"op {op.name} names a storage that is not there")
        if not op.seconds >= 0 or op.scratch_bytes < 0:
            raise ValueError(f"op {op.name} has negative or undefined cost")
        if op.standby:
            continue
        for s in op.reads:
            if not made[s]:
                raise ValueError(
                    f"op {op.name} reads {step.storages[s].name} before it is made"
                )
        for s in op.writes:
            made[s] = True
    for s in step.outputs:
        if not (0 <= s < count and made[s]):
            raise ValueError(f"output storage {s} is never made")

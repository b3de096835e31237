"""A plan: the schedule of one step, what it promises, and how good it is known to be.

A schedule is a sequence of `Run(op)` and `Free(storage)`. It may run an op several
times and free and remake a storage as often as it likes; `lowtide.step.simulate` says
whether it is valid and what it costs.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, cast

from lowtide.errors import StepFormatError
from lowtide.step.format import format_bytes, format_percent
from lowtide.step.graph import PieceOps

SCHEMA = 1


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

    bound_seconds: float
    gap: float
    stopped_by: str
    bound_bytes: int = 0
    search_seconds: float = 0.0
    history: tuple[tuple[float, float], ...] = ()


@dataclass(frozen=True, slots=True, repr=False)
class Plan:
    """A schedule for one step, with what it costs by simulation.

    `kept` are the storages that cross from forward to backward, `recomputed` the ops
    that run more than once. `pieces` says which ops are those of each captured graph;
    `openers` are the ops between them.
    """

    planner: str
    schedule: Schedule
    fingerprint: str
    budget_bytes: int
    peak_bytes: int
    baseline_peak_bytes: int
    seconds: float
    baseline_seconds: float
    kept: tuple[int, ...]
    recomputed: tuple[int, ...]
    proof: Proof
    resident_bytes: int = 0
    step_name: str = "step"
    pieces: tuple[PieceOps, ...] = ()
    openers: tuple[int, ...] = ()
    names: Mapping[str, tuple[str, ...]] = field(
        default_factory=dict[str, tuple[str, ...]]
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

    def to_dict(self) -> dict[str, Any]:
        """Plain data that `from_dict` reads back.

        In `schedule`, a number n >= 0 runs op n, and a number n < 0 frees storage -1-n.
        """
        return {
            "lowtide": "plan",
            "schema": SCHEMA,
            "planner": self.planner,
            "step_name": self.step_name,
            "fingerprint": self.fingerprint,
            "budget_bytes": self.budget_bytes,
            "peak_bytes": self.peak_bytes,
            "baseline_peak_bytes": self.baseline_peak_bytes,
            "resident_bytes": self.resident_bytes,
            "seconds": self.seconds,
            "baseline_seconds": self.baseline_seconds,
            "overhead": self.overhead,
            "proof": asdict(self.proof),
            "pieces": [list(row) for row in self.pieces],
            "openers": list(self.openers),
            "kept": list(self.kept),
            "recomputed": list(self.recomputed),
            "names": {k: list(v) for k, v in self.names.items()},
            "schedule": encode(self.schedule),
        }

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Plan:
        """Rebuild a plan; raises `StepFormatError` on anything that is not one."""
        if data.get("lowtide") != "plan" or data.get("schema") != SCHEMA:
            raise StepFormatError(
                f"found kind {data.get('lowtide')!r}, schema {data.get('schema')!r}; "
                f"expected kind 'plan', schema {SCHEMA}"
            )
        try:
            proof = dict(data["proof"])
            proof["history"] = tuple((a, b) for a, b in proof["history"])
            return cls(
                planner=data["planner"],
                schedule=decode(data["schedule"]),
                fingerprint=data["fingerprint"],
                budget_bytes=data["budget_bytes"],
                peak_bytes=data["peak_bytes"],
                baseline_peak_bytes=data["baseline_peak_bytes"],
                seconds=data["seconds"],
                baseline_seconds=data["baseline_seconds"],
                kept=tuple(data["kept"]),
                recomputed=tuple(data["recomputed"]),
                proof=Proof(**proof),
                resident_bytes=data["resident_bytes"],
                step_name=data["step_name"],
                pieces=tuple(PieceOps(*row) for row in data["pieces"]),
                openers=tuple(data["openers"]),
                names={k: tuple(v) for k, v in data["names"].items()},
            )
        except (KeyError, TypeError, ValueError) as error:
            raise StepFormatError(f"{type(error).__name__}: {error}") from error

    def save(self, path: str | Path) -> None:
        """Write the plan as JSON."""
        Path(path).write_text(json.dumps(self.to_dict(), indent=1))

    @classmethod
    def load(cls, path: str | Path) -> Plan:
        """Read a plan written by `save`."""
        try:
            data = json.loads(Path(path).read_text())
        except (json.JSONDecodeError, UnicodeDecodeError) as error:
            raise StepFormatError(f"{path} is not JSON: {error}") from error
        if not isinstance(data, dict):
            raise StepFormatError(
                f"{path} holds a {type(data).__name__}, not an object"
            )
        return cls.from_dict(cast("dict[str, Any]", data))


def encode(schedule: Sequence[Item]) -> list[int]:
    """The schedule as whole numbers: op ids, and -1-s for freeing storage s."""
    return [i.op if isinstance(i, Run) else -1 - i.storage for i in schedule]


def decode(numbers: Sequence[int]) -> Schedule:
    """The schedule that `encode` wrote."""
    return tuple(Run(n) if n >= 0 else Free(-1 - n) for n in numbers)

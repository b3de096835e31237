"""What is alive when a schedule is at its peak."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass

from lowtide.step.analysis.storages import maker
from lowtide.step.names import KIND_NAMES, module_group, short_target
from lowtide.step.walk import Walk


@dataclass(frozen=True, slots=True)
class AliveStorage:
    """A storage that is alive at the peak, and who made it.

    `kind` is the storage's own, or "recomputed" for an activation that was freed before
    and made again. Residents have no op type and no module.
    """

    storage: int
    name: str
    kind: str
    nbytes: int
    op_type: str
    module: str


@dataclass(frozen=True, slots=True)
class Peak:
    """The first moment at which most bytes are alive.

    `storages` are the ones alive, largest first; with `scratch_bytes`, what exists only
    while `op` runs, they sum to `peak_bytes`. `op` is -1 if nothing runs.
    """

    peak_bytes: int
    op: int
    scratch_bytes: int
    storages: tuple[AliveStorage, ...]

    def by_kind(self) -> dict[str, int]:
        """Bytes at the peak by kind; scratch counts as temporary."""
        found = dict.fromkeys(KIND_NAMES, 0)
        for s in self.storages:
            found[s.kind] += s.nbytes
        found["temporary"] += self.scratch_bytes
        return {kind: nbytes for kind, nbytes in found.items() if nbytes}

    def by_module(self, depth: int = 2) -> dict[str, int]:
        """Bytes at the peak by the module that made them, repeated layers together."""
        return self._sum(
            lambda s: module_group(s.module, depth) if s.op_type else s.kind
        )

    def by_op_type(self) -> dict[str, int]:
        """Bytes at the peak by the type of op that made them, residents by kind."""
        return self._sum(lambda s: s.op_type or s.kind)

    def _sum(self, label: Callable[[AliveStorage], str]) -> dict[str, int]:
        found = Counter({"scratch": self.scratch_bytes})
        for s in self.storages:
            found[label(s)] += s.nbytes
        return dict((+found).most_common())


def peak_of(walk: Walk) -> Peak:
    """What is alive at the peak of a schedule."""
    step = walk.step
    found: list[AliveStorage] = []
    for number, again in walk.alive_at(walk.peak_run).items():
        storage, op = step.storages[number], maker(step, number)
        is_recomputed = again and storage.kind == "activation"
        found.append(
            AliveStorage(
                storage=number,
                name=storage.name,
                kind="recomputed" if is_recomputed else storage.kind,
                nbytes=step.sizes[number],
                op_type=short_target(op.target) if op else "",
                module=op.module if op else "",
            )
        )
    found.sort(key=lambda s: (-s.nbytes, s.storage))
    return Peak(
        peak_bytes=walk.peak_bytes,
        op=walk.runs[walk.peak_run].op if walk.runs else -1,
        scratch_bytes=walk.peak_bytes - sum(s.nbytes for s in found),
        storages=tuple(found),
    )

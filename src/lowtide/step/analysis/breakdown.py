"""Where the bytes of the peak and the seconds of the step are: by kind, module, op."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from math import inf

from lowtide.step.analysis.lifetimes import op_type
from lowtide.step.graph import KINDS, Op, StepGraph
from lowtide.step.plan import Run
from lowtide.step.schedule import saved_by_baseline, with_frees
from lowtide.step.simulate import simulate

OUTSIDE = "(outside modules)"


@dataclass(frozen=True, slots=True)
class AliveStorage:
    """A storage that is alive at the peak, and who made it."""

    storage: int
    name: str
    kind: str
    nbytes: int
    op_type: str
    module: str


@dataclass(frozen=True, slots=True)
class Peak:
    """The moment of the baseline at which most bytes are alive.

    `storages` are the ones alive, largest first; with `scratch_bytes`, the workspace of
    the op that runs, they sum to `peak_bytes`.
    """

    peak_bytes: int
    op: int
    scratch_bytes: int
    storages: tuple[AliveStorage, ...]

    def by_kind(self) -> dict[str, int]:
        """Bytes at the peak by kind; scratch counts as temporary."""
        found = dict.fromkeys(KINDS, 0)
        for s in self.storages:
            found[s.kind] += s.nbytes  # type: ignore[index]
        found["temporary"] += self.scratch_bytes
        return {k: v for k, v in found.items() if v}

    def by_module(self, depth: int = 2) -> dict[str, int]:
        """Bytes at the peak by the module that made them, repeated layers together."""
        return self._sum(lambda s: collapse(s.module, depth) if s.op_type else s.kind)

    def by_op_type(self) -> dict[str, int]:
        """Bytes at the peak by the type of op that made them, residents by kind."""
        return self._sum(lambda s: s.op_type or s.kind)

    def _sum(self, label: Callable[[AliveStorage], str]) -> dict[str, int]:
        found: dict[str, int] = {}
        for s in self.storages:
            found[label(s)] = found.get(label(s), 0) + s.nbytes
        if self.scratch_bytes:
            found["scratch"] = self.scratch_bytes
        return dict(sorted(found.items(), key=lambda kv: -kv[1]))


@dataclass(slots=True)
class Share:
    """What a group of ops takes: seconds by phase, bytes kept for the backward, bytes
    at the peak, and the time to make its kept bytes again.

    `count` is how many modules the name stands for; `identical` says that they run the
    same ops on the same shapes, so that what is learned of one holds for all.
    """

    name: str
    num_ops: int = 0
    count: int = 1
    identical: bool = True
    forward_seconds: float = 0.0
    backward_seconds: float = 0.0
    optimizer_seconds: float = 0.0
    kept_bytes: int = 0
    peak_bytes: int = 0
    recompute_seconds: float = 0.0
    instances: dict[str, list[str]] = field(default_factory=dict[str, list[str]])

    @property
    def seconds(self) -> float:
        """Seconds in all phases."""
        return self.forward_seconds + self.backward_seconds + self.optimizer_seconds

    @property
    def bytes_per_second(self) -> float:
        """Kept bytes freed for each second of making them again; 0 if none can be."""
        if self.recompute_seconds <= 0:
            return inf if self.kept_bytes else 0.0
        return self.kept_bytes / self.recompute_seconds


def at_peak(step: StepGraph) -> Peak:
    """What is alive when the baseline is at its peak."""
    schedule = with_frees(step, step.baseline)
    timeline = simulate(step, schedule)
    alive = set(step.resident)
    running = -1
    for item in schedule[: timeline.peak_index + 1]:
        if type(item) is Run:
            running = item.op
            alive.update(step.ops[item.op].writes)
        else:
            alive.discard(item.storage)  # type: ignore[union-attr]
    found = [_alive(step, s) for s in alive]
    found.sort(key=lambda a: (-a.nbytes, a.storage))
    scratch = timeline.peak_bytes - sum(a.nbytes for a in found)
    return Peak(timeline.peak_bytes, running, scratch, tuple(found))


def _alive(step: StepGraph, storage: int) -> AliveStorage:
    s = step.storages[storage]
    makers = () if s.resident else step.producers[storage]
    maker = step.ops[makers[0]] if makers else None
    return AliveStorage(
        storage=storage,
        name=s.name,
        kind=s.kind,
        nbytes=step.sizes[storage],
        op_type=op_type(maker.target) if maker else "",
        module=maker.module if maker else "",
    )


def by_kind(step: StepGraph) -> dict[str, int]:
    """Bytes at the baseline's peak by kind."""
    return at_peak(step).by_kind()


def by_module(step: StepGraph, depth: int = 2) -> tuple[Share, ...]:
    """Shares of modules, repeated layers collapsed, in the order of their first op.

    `depth` counts names: a number belongs to the name before it, so the depth of
    `layers.3.mlp` is two. Storages belong to the module whose op made them.
    """
    return _shares(step, lambda op: collapse(op.module, depth), depth)


def by_op_type(step: StepGraph) -> tuple[Share, ...]:
    """Shares of op types, the slowest first."""
    found = _shares(step, lambda op: op_type(op.target), 0)
    return tuple(sorted(found, key=lambda share: -share.seconds))


def shares(step: StepGraph) -> dict[str, float]:
    """Fraction of the step's time spent in forward, backward and optimizer."""
    spent = dict.fromkeys(("forward", "backward", "optimizer"), 0.0)
    for number in step.baseline:
        op = step.ops[number]
        spent[op.phase] += op.seconds
    total = sum(spent.values())
    return {k: v / total if total else 0.0 for k, v in spent.items()}


def collapse(module: str, depth: int) -> str:
    """The first `depth` names of a module path, with every number a star.

    >>> collapse("layers.11.mlp.fc2", 2), collapse("layer3.0.conv1", 1)
    ('layers.*.mlp', 'layer*.*')
    """
    return re.sub(r"\d+", "*", _cut(module, depth)) or OUTSIDE


def _cut(module: str, depth: int) -> str:
    kept: list[str] = []
    names = 0
    for part in module.split("."):
        if not part.isdigit():
            names += 1
            if names > depth:
                break
        kept.append(part)
    return ".".join(kept)


def _shares(
    step: StepGraph, label: Callable[[Op], str], depth: int
) -> tuple[Share, ...]:
    found: dict[str, Share] = {}
    for number in step.baseline:
        op = step.ops[number]
        share = found.setdefault(label(op), Share(label(op)))
        share.num_ops += 1
        _add_seconds(share, op)
        if depth:
            instance = share.instances.setdefault(_cut(op.module, depth), [])
            instance.append(op.signature)
    for s in at_peak(step).storages:
        if s.op_type:
            maker = step.ops[step.producers[s.storage][0]]
            found[label(maker)].peak_bytes += s.nbytes
    _add_kept(step, found, label)
    for share in found.values():
        share.count = max(1, len(share.instances))
        share.identical = len({tuple(v) for v in share.instances.values()}) <= 1
    return tuple(found.values())


def _add_seconds(share: Share, op: Op) -> None:
    match op.phase:
        case "forward":
            share.forward_seconds += op.seconds
        case "backward":
            share.backward_seconds += op.seconds
        case "optimizer":
            share.optimizer_seconds += op.seconds


def _add_kept(
    step: StepGraph, found: dict[str, Share], label: Callable[[Op], str]
) -> None:
    """Bytes each group keeps for the backward, and the ops that would make them again.

    The time is that of the group's own ops: what they read from other groups is taken
    to be there.
    """
    again: set[int] = set()
    for s in saved_by_baseline(step):
        group = label(step.ops[step.producers[s][0]])
        found[group].kept_bytes += step.sizes[s]
        stack = [s]
        while stack:
            number = step.remakers[stack.pop()]
            if number < 0 or number in again or label(step.ops[number]) != group:
                continue
            again.add(number)
            found[group].recompute_seconds += step.ops[number].seconds
            stack.extend(step.ops[number].reads)


def total(parts: Iterable[Share]) -> Share:
    """The sum of several shares, as one."""
    whole = Share("total")
    for share in parts:
        whole.num_ops += share.num_ops
        whole.forward_seconds += share.forward_seconds
        whole.backward_seconds += share.backward_seconds
        whole.optimizer_seconds += share.optimizer_seconds
        whole.kept_bytes += share.kept_bytes
        whole.peak_bytes += share.peak_bytes
        whole.recompute_seconds += share.recompute_seconds
    return whole

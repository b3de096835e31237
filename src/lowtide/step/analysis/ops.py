"""Where the seconds go: op by op, by type of op, by module, by phase."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Hashable
from dataclasses import dataclass
from math import inf
from typing import TypeVar

from lowtide.step.graph import Op, Phase, StepGraph
from lowtide.step.names import module_group, module_prefix, short_target
from lowtide.step.remake import remaking
from lowtide.step.schedule import saved_by_baseline, walk_baseline
from lowtide.step.walk import Walk

Label = TypeVar("Label", bound=Hashable)


@dataclass(frozen=True, slots=True)
class OpRecord:
    """One op of the baseline: what it takes, makes and finds alive."""

    op: int
    name: str
    op_type: str
    phase: Phase
    module: str
    source: str
    begin_seconds: float
    seconds: float
    spread: float
    bytes_read: int
    bytes_made: int
    scratch_bytes: int
    live_before_bytes: int
    live_during_bytes: int
    live_after_bytes: int


@dataclass(frozen=True, slots=True)
class Extra:
    """Runs that a schedule adds to the baseline, and the time they take."""

    num_runs: int
    seconds: float


@dataclass(frozen=True, slots=True)
class Share:
    """What a group of ops takes: seconds by phase, bytes kept for the backward, bytes
    at the peak, and the time to make its kept bytes again.

    `count` is how many modules the name stands for; `identical` says that they run the
    same ops on the same shapes, so that what is learned of one holds for all.
    """

    name: str
    count: int
    identical: bool
    num_ops: int
    forward_seconds: float
    backward_seconds: float
    optimizer_seconds: float
    kept_bytes: int
    peak_bytes: int
    recompute_seconds: float

    @property
    def seconds(self) -> float:
        return self.forward_seconds + self.backward_seconds + self.optimizer_seconds

    @property
    def bytes_per_second(self) -> float:
        """Kept bytes freed for each second of making them again; 0 if none can be."""
        if self.recompute_seconds <= 0:
            return inf if self.kept_bytes else 0.0
        return self.kept_bytes / self.recompute_seconds


def op_records(step: StepGraph) -> tuple[OpRecord, ...]:
    """Every op of the baseline in order, with the bytes alive around it."""
    found: list[OpRecord] = []
    for run in walk_baseline(step).runs:
        op = step.ops[run.op]
        found.append(
            OpRecord(
                op=op.id,
                name=op.name,
                op_type=short_target(op.target),
                phase=op.phase,
                module=op.module,
                source=op.source,
                begin_seconds=run.begin_seconds,
                seconds=op.seconds,
                spread=op.spread,
                bytes_read=sum(step.sizes[s] for s in op.reads),
                bytes_made=sum(step.sizes[s] for s in op.writes),
                scratch_bytes=op.scratch_bytes,
                live_before_bytes=run.before_bytes,
                live_during_bytes=run.live_bytes,
                live_after_bytes=run.after_bytes,
            )
        )
    return tuple(found)


def extra_runs(walk: Walk, label: Callable[[Op], Label]) -> dict[Label, Extra]:
    """The runs that the baseline does not have, by a label of their op, slowest first.

    This is the only count of what a plan recomputes. Runs of standby ops are among
    them, so the times sum to what the plan takes longer, unless it leaves ops out.
    """
    numbers: dict[Label, int] = defaultdict(int)
    seconds: dict[Label, float] = defaultdict(float)
    for run in walk.runs:
        if run.again:
            op = walk.step.ops[run.op]
            numbers[label(op)] += 1
            seconds[label(op)] += op.seconds
    order = sorted(numbers, key=lambda name: (-seconds[name], -numbers[name]))
    return {name: Extra(numbers[name], seconds[name]) for name in order}


def by_module(step: StepGraph, depth: int = 2) -> tuple[Share, ...]:
    """Shares of modules, repeated layers collapsed, in the order of their first op.

    `depth` counts names: a number belongs to the name before it, so the depth of
    `layers.3.mlp` is two. Storages belong to the module whose op made them.
    """
    return shares_by(
        step,
        lambda op: module_group(op.module, depth),
        lambda op: module_prefix(op.module, depth),
    )


def by_op_type(step: StepGraph) -> tuple[Share, ...]:
    """Shares of op types, the slowest first."""
    found = shares_by(step, lambda op: short_target(op.target))
    return tuple(sorted(found, key=lambda share: -share.seconds))


def shares(step: StepGraph) -> dict[str, float]:
    """Fraction of the step's time spent in forward, backward and optimizer."""
    spent = dict.fromkeys(("forward", "backward", "optimizer"), 0.0)
    for number in step.baseline:
        op = step.ops[number]
        spent[op.phase] += op.seconds
    total = sum(spent.values())
    return {phase: part / total if total else 0.0 for phase, part in spent.items()}


def shares_by(
    step: StepGraph,
    label: Callable[[Op], str],
    instance: Callable[[Op], str] = lambda op: "",
) -> tuple[Share, ...]:
    """Shares of the groups that `label` makes of the ops, by their first op.

    A group may stand for several instances, such as the layers of one kind.
    """
    ops: dict[str, list[Op]] = defaultdict(list)
    for number in step.baseline:
        op = step.ops[number]
        ops[label(op)].append(op)
    peak_bytes: dict[str, int] = defaultdict(int)
    for s in step.at_peak().storages:
        if s.op_type:
            peak_bytes[label(step.ops[step.producers[s.storage][0]])] += s.nbytes
    kept = _kept(step, label)
    found: list[Share] = []
    for name, members in ops.items():
        signatures: dict[str, list[str]] = defaultdict(list)
        seconds: dict[Phase, float] = defaultdict(float)
        for op in members:
            signatures[instance(op)].append(op.signature)
            seconds[op.phase] += op.seconds
        kept_bytes, recompute_seconds = kept.get(name, (0, 0.0))
        found.append(
            Share(
                name=name,
                num_ops=len(members),
                count=len(signatures),
                identical=len({tuple(s) for s in signatures.values()}) == 1,
                forward_seconds=seconds["forward"],
                backward_seconds=seconds["backward"],
                optimizer_seconds=seconds["optimizer"],
                kept_bytes=kept_bytes,
                peak_bytes=peak_bytes[name],
                recompute_seconds=recompute_seconds,
            )
        )
    return tuple(found)


def _kept(step: StepGraph, label: Callable[[Op], str]) -> dict[str, tuple[int, float]]:
    """Bytes each group keeps for the backward, and the time to make them again.

    The time is that of the group's own ops: what they read from other groups is taken
    to be there.
    """
    again: set[int] = set()
    found: dict[str, tuple[int, float]] = {}
    for s in saved_by_baseline(step):
        group = label(step.ops[step.producers[s][0]])
        kept_bytes, seconds = found.get(group, (0, 0.0))

        def maker_of(storage: int, group: str = group) -> int:
            number = step.remakers[storage]
            return number if number >= 0 and label(step.ops[number]) == group else -1

        ops = remaking(step, [s], (), maker_of=maker_of, visited=again).ops
        seconds += sum(step.ops[number].seconds for number in ops)
        found[group] = (kept_bytes + step.sizes[s], seconds)
    return found

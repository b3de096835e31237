"""How eager runs a step whose model already checkpoints parts of itself.

`torch.utils.checkpoint` marks the ops of each part that it would run again. A plan does
not need the marks, it decides anew; but what the step needs without lowtide, of which a
budget may be a share, is what the checkpoints leave of it.
"""

from __future__ import annotations

from collections.abc import Sequence

from torch import fx

from lowtide.step.graph import StepGraph
from lowtide.step.schedule import with_frees
from lowtide.step.simulate import simulate


def part_of(node: fx.Node) -> int | None:
    """The number of the checkpointed part that would run a node again, if any."""
    policy = getattr(node.meta.get("recompute"), "name", "")
    return node.meta.get("ac_graph_id") if policy.endswith("_RECOMPUTE") else None


def checkpointed_peak_bytes(step: StepGraph, part: Sequence[int | None]) -> int:
    """Peak of the baseline in which each part is run again before its backward.

    Args:
        step: The step as eager runs it.
        part: For each op, the number of its part, or `None`.
    """
    kept = _kept(step, part)
    again = _again(step, part, kept)
    sequence: list[int] = []
    for number in step.baseline:
        if number > step.turn:
            for s in step.ops[number].reads:
                origin = part[step.producers[s][0]] if step.producers[s] else None
                if origin is not None and s not in kept:
                    sequence += again.pop(origin, ())
        sequence.append(number)
    return simulate(step, with_frees(step, sequence)).peak_bytes


def _kept(step: StepGraph, part: Sequence[int | None]) -> set[int]:
    """Storages that leave their part in the forward, or that nothing makes again."""
    kept = {s for s, remaker in enumerate(step.remakers) if remaker < 0}
    kept.update(step.outputs)
    for op in step.ops[: step.turn + 1]:
        for s in op.reads:
            made_by = step.producers[s][:1]
            if made_by and part[made_by[0]] != part[op.id]:
                kept.add(s)
    return kept


def _again(
    step: StepGraph, part: Sequence[int | None], kept: set[int]
) -> dict[int, list[int]]:
    """For each part, the ops that make again what the backward reads of it."""
    wanted = {s for op in step.ops[step.turn + 1 :] for s in op.reads} - kept
    again: dict[int, list[int]] = {}
    for op in reversed(step.ops[: step.turn]):
        own = part[op.id]
        made = wanted.intersection(op.writes)
        if own is None or op.standby or not made:
            continue
        runner = op.id if not op.once else step.remakers[min(made)]
        again.setdefault(own, []).insert(0, runner)
        wanted.update(s for s in step.ops[runner].reads if s not in kept)
    return again

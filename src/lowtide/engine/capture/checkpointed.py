"""How eager runs a step whose model already checkpoints parts of itself.

`torch.utils.checkpoint` marks the ops of each part that it would run again. A plan does
not need the marks, it decides anew; but what the step needs without lowtide, of which a
budget may be a share, is what the checkpoints leave of it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from torch import fx

from lowtide.step.graph import StepGraph
from lowtide.step.remake import missing_cone
from lowtide.step.schedule import with_frees
from lowtide.step.simulate import simulate


def part_of(node: fx.Node) -> int | None:
    """The number of the checkpointed part that would run a node again, if any."""
    policy = getattr(node.meta.get("recompute"), "name", "")
    return node.meta.get("ac_graph_id") if policy.endswith("_RECOMPUTE") else None


def checkpointed_peak_bytes(step: StepGraph, part: Sequence[int | None]) -> int:
    """Peak of eager's step if each part is run again before its backward.

    `part` has for each op the number of its part, or `None`. A part is run again with
    all that is in it, also what a plan would run only once: dropout, for which eager
    puts the random numbers back, and batch norm, which it lets count twice.
    """
    ops = [op if part[op.id] is None else replace(op, once="") for op in step.ops]
    step = replace(step, ops=tuple(ops))
    kept = _kept(step, part)
    early = {s for op in step.ops[: step.turn] for s in op.writes} - kept
    late = {s for op in step.ops[step.turn + 1 :] for s in op.reads} & early
    wanted: dict[int | None, list[int]] = {}
    for s in late:
        wanted.setdefault(part[step.producers[s][0]], []).append(s)
    wanted.pop(None, None)
    sequence: list[int] = []
    for number in step.baseline:
        for s in step.ops[number].reads if number > step.turn else ():
            origin = part[step.producers[s][0]] if s in late else None
            sequence += missing_cone(step, wanted.pop(origin, ()), kept)
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

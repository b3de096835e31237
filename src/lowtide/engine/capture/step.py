"""A `StepGraph` from a captured piece: names, regions, and the turn between them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import fx

from lowtide.engine.capture.call import calls_of, module_of, source_of
from lowtide.engine.capture.piece import UPDATES, Piece, PieceOp, tensors_of
from lowtide.engine.forms.overwrite import scratch_bytes
from lowtide.engine.forms.trial import default_parts
from lowtide.step.fields import PieceOps
from lowtide.step.graph import FOLDED, Op, Region, StepGraph, check_graph
from lowtide.step.remake import missing_cone
from lowtide.step.schedule import with_frees
from lowtide.step.simulate import simulate

ALIGNMENT_BYTES = {"cpu": 64, "cuda": 512}


def step_of(piece: Piece) -> StepGraph:
    """The training step that consists of this one piece.

    Ops are numbered in baseline order, the turn among them; op k of the step is op k of
    the piece before the turn, and op k-1 after it (`numbered_ops`). `facts["pieces"]`
    holds for each piece its fingerprint and the ranges of its forward and backward ops,
    `facts["eager_extra_bytes"]` by how much eager's peak is above the baseline's: ops
    are folded here, and parts may be checkpointed there.
    """
    if piece.step is None:
        step = _step(piece, piece.ops)
        extra = _eager_peak_bytes(piece) - step.baseline_peak_bytes
        piece.step = with_piece_facts(step, extra)
    return piece.step


def with_piece_facts(step: StepGraph, eager_extra_bytes: int) -> StepGraph:
    """The step of one piece with what `step_of` says of it in `facts`."""
    own = [step.fingerprint, 0, step.turn, step.turn + 1, len(step.ops)]
    facts = {"pieces": [own], "eager_extra_bytes": eager_extra_bytes}
    return replace(step, facts=facts)


def _eager_peak_bytes(piece: Piece) -> int:
    step = _with_noise(_step(piece, piece.unfolded), piece)
    parts = [_part_of(op.node) for op in piece.unfolded]
    if not any(parts):
        return step.baseline_peak_bytes
    parts.insert(step.turn, None)
    return _checkpointed_peak_bytes(step, parts)


def _part_of(node: fx.Node) -> int | None:
    """The number of the checkpointed part that would run a node again, if any."""
    policy = getattr(node.meta.get("recompute"), "name", "")
    return node.meta.get("ac_graph_id") if policy.endswith("_RECOMPUTE") else None


def _checkpointed_peak_bytes(step: StepGraph, part: Sequence[int | None]) -> int:
    """Peak of eager's step if each part is run again before its backward.

    `torch.utils.checkpoint` marks the ops of each part that it would run again. A plan
    decides anew; but a budget may be a share of what the checkpoints leave of the step.
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


def _with_noise(step: StepGraph, piece: Piece) -> StepGraph:
    """The step with what eager's dropout keeps on the CPU.

    That is the noise it multiplied by, in the type of its input, and no mask of bools.
    """
    if step.device != "cpu":
        return step
    storages = list(step.storages)
    for op in piece.unfolded:
        if op.node.target is torch.ops.aten.native_dropout.default:
            result, mask = op.writes
            storages[mask] = replace(storages[mask], nbytes=storages[result].nbytes)
    return replace(step, storages=tuple(storages))


def _step(piece: Piece, piece_ops: Sequence[PieceOp]) -> StepGraph:
    forward = [op for op in piece_ops if op.is_forward]
    backward = piece_ops[len(forward) :]
    ops = [_op(op, number) for number, op in enumerate(forward)]
    ops.append(turn_of(piece, len(ops)))
    ops += [_op(op, number) for number, op in enumerate(backward, len(ops))]
    return step_with(piece, ops)


def step_with(piece: Piece, ops: Sequence[Op]) -> StepGraph:
    """The step of a piece that consists of these ops, the turn among them."""
    devices = [t.device.type for node in piece.primals for t in tensors_of(node)]
    device = next((kind for kind in devices if kind != "cpu"), "cpu")
    step = StepGraph(
        ops=tuple(ops),
        storages=tuple(piece.storages),
        outputs=tuple(s for s in piece.held_outputs if s not in piece.let_go),
        regions=(Region(0, "forward"), Region(0, "backward")),
        alignment_bytes=ALIGNMENT_BYTES.get(device, 1),
        device=device,
    )
    check_graph(step)
    return step


def own_number(piece: PieceOps, number: int) -> int | None:
    """The number in its own step of an op of a larger one, if it is this piece's."""
    if number in piece.forward:
        return number - piece.forward.start
    if number in piece.backward:
        return number - piece.backward.start + len(piece.forward) + 1
    return None


def numbered_ops(piece: Piece) -> dict[int, PieceOp]:
    """The piece's ops by their numbers in its step, where the turn has one, too."""
    num_forward = sum(op.is_forward for op in piece.ops)
    return {n + (n >= num_forward): op for n, op in enumerate(piece.ops)}


def _op(op: PieceOp, number: int) -> Op:
    nodes = [op.node, *(f.node for f in op.then)]
    name = FOLDED.join(n.name for n in nodes) + (" again" if op.standby else "")
    target = FOLDED.join(str(n.target) for n in nodes)
    if op.variant == "unpack":
        (packed,) = op.packs
        name, target = f"{packed.node.name} unpacked", "lowtide::unpack"
    scratch = op.node.meta.get("temporaries", 0)
    if op.over >= 0 and op.form is None:
        unit = ALIGNMENT_BYTES["cpu"]
        scratch += -(-scratch_bytes(op) // unit) * unit
    signature = " + ".join(call.signature for call in calls_of(op))
    if op.form is not None:
        name = f"{op.form.name} {op.node.name}"
        target = f"lowtide::{op.form.name}"
        signature = f"{target}({op.form.head})"
        parts = default_parts(op.form.head)
        assert parts is not None, "a small head has no form"
        scratch = op.form.head.scratch_bytes(op.form.name, parts)
    return Op(
        id=number,
        name=name,
        target=target,
        reads=op.reads,
        writes=op.writes,
        phase="forward" if op.is_forward else "backward",
        once=op.once,
        standby=op.standby,
        module=module_of(op.node),
        source=source_of(op.node),
        signature=signature,
        scratch_bytes=scratch,
        spends=op.reads[:1] if op.once == UPDATES else (),
        over=op.over,
    )


def turn_of(piece: Piece, number: int) -> Op:
    """The op that stands for what is outside: the loss, and its first gradients."""
    return Op(
        id=number,
        name="turn",
        target="lowtide::turn",
        reads=piece.storages_in(piece.forward_outputs),
        writes=piece.storages_in(piece.arriving_tangents),
        phase="backward",
        piece=-1,
        once="runs outside",
        opens=1,
        signature="turn",
    )

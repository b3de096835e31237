"""A `StepGraph` from a captured piece: names, regions, and the turn between them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from lowtide.engine.capture.naming import module_of, signature_of, source_of
from lowtide.engine.capture.piece import Piece, PieceOp, tensors_of
from lowtide.step.graph import FOLDED, Op, Region, StepGraph, Storage, check_graph

ALIGNMENT_BYTES = {"cpu": 64, "cuda": 512}


def step_of(piece: Piece, *, name: str = "step") -> StepGraph:
    """The training step that consists of this one piece.

    Ops are numbered in baseline order, the turn among them; op k of the step is op k of
    the piece before the turn and op k-1 after it (see `piece_op`). `facts["pieces"]`
    holds for each piece its fingerprint and the ranges of its forward and backward ops,
    `facts["eager_extra_bytes"]` by how much the peak falls because ops are folded.
    """
    if piece.step is None:
        piece.step = _whole(piece)
    return piece.step if name == piece.step.name else replace(piece.step, name=name)


def _whole(piece: Piece) -> StepGraph:
    name = "step"
    step = _step(piece, piece.ops, name)
    num_forward = sum(op.is_forward for op in piece.ops)
    own = (step.fingerprint, 0, num_forward, num_forward + 1, len(step.ops))
    eager = _step(piece, piece.unfolded, name).baseline_peak_bytes
    extra = max(0, eager - step.baseline_peak_bytes)
    return replace(step, facts={"pieces": [list(own)], "eager_extra_bytes": extra})


def _step(piece: Piece, piece_ops: Sequence[PieceOp], name: str) -> StepGraph:
    device = _device(piece)
    storages = tuple(
        Storage(
            id=i,
            name=s.name,
            nbytes=s.nbytes,
            kind=s.kind,
            resident=s.resident,
            shape=s.shape,
            dtype=s.dtype,
        )
        for i, s in enumerate(piece.storages)
    )
    ops: list[Op] = []
    num_forward = sum(op.is_forward for op in piece_ops)
    for op in piece_ops[:num_forward]:
        ops.append(_op(op, len(ops)))
    ops.append(_turn(piece, len(ops)))
    for op in piece_ops[num_forward:]:
        ops.append(_op(op, len(ops)))
    step = StepGraph(
        ops=tuple(ops),
        storages=storages,
        outputs=piece.held_outputs,
        regions=(Region(0, "forward"), Region(0, "backward")),
        alignment_bytes=ALIGNMENT_BYTES.get(device, 1),
        name=name,
        device=device,
    )
    check_graph(step)
    return step


def piece_op(piece: Piece, number: int) -> PieceOp:
    """The piece's op under its number in the step."""
    num_forward = sum(op.is_forward for op in piece.ops)
    assert number != num_forward, "the turn is no op of the piece"
    return piece.ops[number if number < num_forward else number - 1]


def _op(op: PieceOp, number: int) -> Op:
    suffix = {"plain": "", "replay": " again", "without_statistics": " again"}
    nodes = [op.node, *(f.node for f in op.then)]
    return Op(
        id=number,
        name=FOLDED.join(n.name for n in nodes) + suffix[op.variant],
        target=FOLDED.join(str(n.target) for n in nodes),
        reads=op.reads,
        writes=op.writes,
        phase="forward" if op.is_forward else "backward",
        once=op.once,
        standby=op.standby,
        module=module_of(op.node),
        source=source_of(op.node),
        signature=signature_of(op),
    )


def _turn(piece: Piece, number: int) -> Op:
    reads = [s for n in piece.forward_outputs for s in piece.storage_of.get(n, ())]
    writes = [
        s
        for place, n in enumerate(piece.tangents)
        if place not in piece.absent_tangents
        for s in piece.storage_of[n]
    ]
    return Op(
        id=number,
        name="turn",
        target="lowtide::turn",
        reads=tuple(dict.fromkeys(reads)),
        writes=tuple(dict.fromkeys(writes)),
        phase="backward",
        piece=-1,
        once="runs outside",
        opens=1,
        signature="turn",
    )


def _device(piece: Piece) -> str:
    kinds = [t.device.type for node in piece.primals for t in tensors_of(node)]
    return next((kind for kind in kinds if kind != "cpu"), "cpu")

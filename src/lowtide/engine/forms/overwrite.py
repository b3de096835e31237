"""Ops that write their result over an argument which they read for the last time.

Each kind is a module: which argument that is, what else the op needs, and its call.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import torch
from torch import fx

from lowtide.engine.capture.piece import Piece, PieceOp
from lowtide.engine.forms import embedding, loss


class _Kind(NamedTuple):
    """One kind of such ops."""

    overwritten: Callable[[Piece, PieceOp], int]
    scratch_bytes: Callable[[PieceOp], int]
    emit: Callable[[fx.Graph, PieceOp, Any], fx.Node]


_KINDS: dict[Any, _Kind] = {
    loss.aten.nll_loss_backward.default: _Kind(
        loss.overwritten, loss.scratch_bytes, loss.emit_gradient_over
    ),
    loss.aten.embedding_dense_backward.default: _Kind(
        embedding.overwritten, embedding.scratch_bytes, embedding.emit_added
    ),
}


def find_overwritten(piece: Piece, kept: frozenset[int]) -> None:
    """Mark the ops of a piece that can write their result over an argument.

    Args:
        piece: Its ops are changed.
        kept: Storages that somebody outside reads; they are never overwritten.
    """
    for place, op in enumerate(piece.ops):
        kind = _KINDS.get(op.node.target)
        over = kind.overwritten(piece, op) if kind and op.then else -1
        if over >= 0 and over not in kept and _dies_at(piece, op, over):
            piece.ops[place] = replace(op, over=over)


def _dies_at(piece: Piece, last: PieceOp, storage: int) -> bool:
    """Whether nothing that runs after an op, even again, can want a storage.

    Other readers may only make what this op reads, or what the backward never does.
    """
    wanted = [storage]
    seen = {storage}
    while wanted:
        s = wanted.pop()
        for op in piece.ops:
            if op is last or s not in op.reads:
                continue
            if not op.is_forward:
                return False
            fresh = [made for made in op.writes if made not in seen]
            seen.update(fresh)
            wanted += fresh
    return True


def scratch_bytes(op: PieceOp) -> int:
    """What an op needs that writes over an argument, beside its arguments."""
    return _KINDS[op.node.target].scratch_bytes(op)


def emit_over(graph: fx.Graph, op: PieceOp, map_arguments: Any) -> fx.Node:
    """The call that writes over an argument, in a graph."""
    return _KINDS[op.node.target].emit(graph, op, map_arguments)


def is_last_use(storage: int, later: Sequence[PieceOp]) -> bool:
    """Whether a storage is not read again before it is made again."""
    for op in later:
        if storage in op.reads:
            return False
        if storage in op.writes:
            return True
    return True


def write_over(
    in_place: Any, out: str, over: torch.Tensor, plain: Any, /, *args: Any, **given: Any
) -> torch.Tensor:
    """Compute over an argument, if the result would have its layout anyway.

    A result takes its layout from the arguments. Capture foresees theirs, but where it
    errs (some backward formulas on channels-last images) the arguments differ, and then
    only the plain op gives the layout that the ops behind it are to see.
    """
    alike = (a for a in args if isinstance(a, torch.Tensor) and a.shape == over.shape)
    if all(a.stride() == over.stride() for a in alike):
        return in_place(*args, **given, **{out: over})
    return plain(*args, **given)

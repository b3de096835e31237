"""The gradient of cross entropy, written over the log-softmax that it is made from.

The largest tensors of a language model's step have a number for every token and every
word. The backward of the loss fills one with zeros, writes one number into each of its
rows, and makes the gradient of the logits from it and from the log-softmax, which dies
there. Every row of that is independent, so it can be done some rows at a time, each in
the place of its log-softmax: with the same kernels, hence the same bits, and with one
such tensor alive instead of two.
"""

from __future__ import annotations

from typing import Any, cast

import torch
from torch import fx
from torch._subclasses import FakeTensor

from lowtide.engine.capture.piece import Piece, PieceOp

aten = torch.ops.aten

# What is made at once: as much as stays in a cache, and a small part of the whole.
_BLOCK_BYTES = 1 << 20
_LEAST_BLOCKS = 16


def gradient_over(
    log_softmax: torch.Tensor,
    gradient: torch.Tensor,
    target: torch.Tensor,
    weight: torch.Tensor | None,
    reduction: int,
    ignore_index: int,
    total_weight: torch.Tensor,
) -> torch.Tensor:
    """`nll_loss_backward` and `_log_softmax_backward_data` in one.

    The result is written over the log-softmax, unless somebody keeps the graph for a
    second backward (`retain_graph=True`), which will read it again.
    """
    if is_graph_kept():
        log_softmax = log_softmax.clone()
    if isinstance(log_softmax, FakeTensor):
        return log_softmax  # a dry run; there may be many rows
    count, width = log_softmax.shape
    rows = rows_at_once(count, width, log_softmax.element_size())
    for start in range(0, len(log_softmax), rows):
        some = slice(start, start + rows)
        part = log_softmax[some]
        sent = gradient[some] if reduction == 0 else gradient
        given = (weight, reduction, ignore_index, total_weight)
        made = aten.nll_loss_backward(sent, part, target[some], *given)
        aten._log_softmax_backward_data.out(made, part, 1, part.dtype, out=part)
        del made  # before the next rows are made beside it
    return log_softmax


def is_graph_kept() -> bool:
    """Whether the backward that runs now may run again (`retain_graph=True`)."""
    # NOTE(torch>=2.13): AOTAutograd asks the same before it reuses what was saved.
    autograd: Any = torch._C._autograd  # pyright: ignore[reportAttributeAccessIssue]
    return autograd._get_current_graph_task_keep_graph()


def rows_at_once(count: int, width: int, element_bytes: int) -> int:
    """How many of these rows are made at once."""
    row_bytes = max(1, width * element_bytes)
    return max(1, min(_BLOCK_BYTES // row_bytes, count // _LEAST_BLOCKS))


def scratch_bytes(op: PieceOp) -> int:
    """What the rows that are made at once need beside the log-softmax."""
    value = cast(fx.Node, op.node.args[1]).meta["val"]
    most = value.numel() * value.element_size()
    count, width = value.shape
    row_bytes = width * value.element_size()
    rows = rows_at_once(count, width, value.element_size())
    return int(min(most, rows * row_bytes))


def overwritten(piece: Piece, op: PieceOp) -> int:
    """The log-softmax from which an op makes the gradient of the logits, or -1."""
    node: Any = op.node.args[1]
    follower: Any = op.then[0].node
    value = node.meta["val"]
    fits = (
        follower.target is aten._log_softmax_backward_data.default
        and piece.storage_of[follower.args[1]] == piece.storage_of[node]
        and follower.args[1].meta["val"].stride() == value.stride()
        and value.dim() == 2
        and value.is_contiguous()
        and value.device.type == "cpu"
        and follower.args[2] in (1, -1)
        and follower.args[3] == value.dtype == follower.meta["val"].dtype
    )
    (storage,) = piece.storage_of[node]
    size = value.numel() * value.element_size()
    return storage if fits and piece.storages[storage].nbytes == size else -1


def emit_gradient_over(graph: fx.Graph, op: PieceOp, map_arguments: Any) -> fx.Node:
    """The call that writes over the log-softmax, in a graph."""
    gradient, log_softmax, *others = map_arguments(op.node.args)
    made = graph.call_function(gradient_over, (log_softmax, gradient, *others))
    made.meta = dict(op.then[0].node.meta)
    return made

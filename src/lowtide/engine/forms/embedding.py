"""The gradient of an embedding, added to that of the head which shares its matrix.

A language model often reads words and predicts them with one matrix. The head's
gradient of it is there early and waits for the embedding's, which is as large and
almost all zeros. Each row of that depends on its own word alone, so it can be made some
words at a time and added in place: with the same kernels in the same order, hence the
same bits, and with one such tensor alive instead of two.
"""

from __future__ import annotations

from typing import Any, cast

import torch
from torch import fx

from lowtide.engine.capture.piece import Piece, PieceOp

aten = torch.ops.aten

_BLOCK_BYTES = 1 << 20


def add_gradient(
    total: torch.Tensor,
    gradient: torch.Tensor,
    places: torch.Tensor,
    words: int,
    padding_index: int,
    by_frequency: bool,
) -> torch.Tensor:
    """Add `embedding_dense_backward` to another gradient of the matrix, in place."""
    rows = gradient.reshape(-1, gradient.shape[-1])
    flat = places.reshape(-1)
    for start in range(0, words, count := words_at_once(total)):
        some = total[start : start + count]
        here = (flat >= start) & (flat < start + len(some)) & (flat != padding_index)
        # Tokens of other words are passed over as if they were padding.
        own = torch.where(here, flat - start, len(some))
        given = (rows, own, len(some), len(some), by_frequency)
        some.add_(aten.embedding_dense_backward(*given))
    return total


def words_at_once(total: torch.Tensor) -> int:
    """For how many words the gradient is made at once."""
    count, width = total.shape
    return max(1, min(count, _BLOCK_BYTES // max(1, width * total.element_size())))


def scratch_bytes(op: PieceOp) -> int:
    """What some words need: their gradients, and where their tokens are."""
    made: Any = op.node.meta["val"]
    gradient: Any = cast(fx.Node, op.node.args[0]).meta["val"]
    block = words_at_once(made) * made.shape[1] * made.element_size()
    tokens = gradient.numel() // gradient.shape[-1]
    return int(block + 32 * tokens)


def overwritten(piece: Piece, op: PieceOp) -> int:
    """The gradient that an embedding's is added to, or -1."""
    follower = op.then[0].node
    if follower.target is not aten.add.Tensor or follower.kwargs:
        return -1
    others: list[Any] = [a for a in follower.args if a is not op.then[0].argument]
    if len(others) != 1 or not isinstance(others[0], fx.Node):
        return -1
    value, made = others[0].meta["val"], op.node.meta["val"]
    fits = (
        (value.shape, value.stride(), value.dtype)
        == (made.shape, made.stride(), made.dtype)
        and value.is_contiguous()
        and value.device.type == "cpu"
        and op.node.args[4] is False
    )
    (storage,) = piece.storage_of[others[0]]
    own = piece.storages[storage]
    size = value.numel() * value.element_size()
    return storage if fits and own.nbytes == size and not own.resident else -1


def emit_added(graph: fx.Graph, op: PieceOp, map_arguments: Any) -> fx.Node:
    """The call that adds to a gradient in place, in a graph."""
    follower = op.then[0]
    other = next(a for a in follower.node.args if a is not follower.argument)
    total, *given = map_arguments((other, *op.node.args))
    made = graph.call_function(add_gradient, (total, *given))
    made.meta = dict(follower.node.meta)
    return made

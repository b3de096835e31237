"""What the profiler needs to know of an op: a function and the tensors it is given."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import fx

from lowtide._capture._joint import PieceOp, signature_of


@dataclass(frozen=True, slots=True)
class Call:
    """One call of an op. Tensors among the arguments are fake: shapes without bytes.

    Calls with equal signatures do the same work, so one of them is measured for all.
    """

    target: Callable[..., Any]
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    outputs: Any
    signature: str


def call_of(op: PieceOp) -> Call:
    """The call that a piece's op makes."""
    args = fx.map_arg(op.node.args, lambda n: n.meta["val"])
    kwargs = fx.map_arg(op.node.kwargs, lambda n: n.meta["val"])
    target: Any = op.node.target
    outputs = op.node.meta["val"]
    if op.variant == "without_statistics":
        target = torch.ops.aten._native_batch_norm_legit.no_stats
        args = (*args[:3], *args[5:8])
        outputs = tuple(outputs[:3])
    # A replay draws the same numbers again: it costs what the first draw costs.
    return Call(target, tuple(args), dict(kwargs), outputs, signature_of(op))

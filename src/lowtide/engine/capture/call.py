"""What the profiler needs to know of an op: a function and the tensors it is given."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import fx
from torch.types import py_sym_types

from lowtide.engine.capture.naming import signature_of_call
from lowtide.engine.capture.piece import PieceOp


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


def calls_of(op: PieceOp) -> list[Call]:
    """The calls that a piece's op makes: its own, and those folded into it."""
    node = op.node
    target: Any = node.target
    outputs = node.meta["val"]
    args, kwargs = _arguments(node)
    suffix = ""
    if op.variant == "without_statistics":
        target = torch.ops.aten._native_batch_norm_legit.no_stats
        args = (*args[:3], *args[5:8])
        outputs = tuple(outputs[:3])
    # A replay draws the same numbers again: it costs what the first draw costs.
    if op.variant != "plain":
        suffix = f"/{op.variant}"
    signature = signature_of_call(f"{node.target}{suffix}", node)
    calls = [Call(target, args, kwargs, outputs, signature)]
    for f in op.then:
        args, kwargs = _arguments(f.node)
        if f.out:
            kwargs[f.out] = f.argument.meta["val"]
        signature = signature_of_call(f.target, f.node)
        calls.append(Call(f.target, args, kwargs, f.node.meta["val"], signature))
    return calls


def _arguments(node: fx.Node) -> tuple[tuple[Any, ...], dict[str, Any]]:
    return tuple(fx.map_arg(node.args, _value)), dict(fx.map_arg(node.kwargs, _value))


def _value(node: fx.Node) -> Any:
    """Its fake value. Of a number that may change, the one it was captured with."""
    value = node.meta["val"]
    return value.node.hint if isinstance(value, py_sym_types) else value

"""What an op of a piece calls, and what it is called: its module, the user's line."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import fx
from torch.types import py_sym_types

from lowtide.engine.capture.piece import Packed, PieceOp
from lowtide.engine.capture.tensors import short_dtype, tensors_in
from lowtide.engine.forms.draws import drop_by_mask, masking_scale

_FILE_LINE = re.compile(r'File "([^"]+)", line (\d+)')
# Dynamo names the root by the variable that holds it: a local, a global, a cell.
_ROOT = re.compile(r"^(?:.*cell_contents|[LG]\['\w+'\])(?:\.__self__)?")


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
    """The calls that a piece's op makes: its own, and those folded into it.

    Unpacking counts for packing as well, which only happens if something is unpacked.
    """
    if op.variant == "unpack":
        return _packing_calls(op.packs[0])
    if op.form is not None:
        return [call for own in op.form.made_of for call in calls_of(own)]
    first = call_of(op.node.target, op.node, "" if not op.standby else f"/{op.variant}")
    if op.variant == "without_statistics":
        target = torch.ops.aten._native_batch_norm_legit.no_stats
        args = (*first.args[:3], first.args[5], 0.0, first.args[7])
        first = Call(target, args, {}, tuple(first.outputs[:3]), first.signature)
    elif op.variant == "masked":
        scale = masking_scale(first.outputs[0], first.args[1])
        args = (first.args[0], first.outputs[1], scale)
        first = Call(drop_by_mask, args, {}, first.outputs[0], first.signature)
    # A replay draws the same numbers again: it costs what the first draw costs.
    calls = [first]
    for f in op.then:
        call = replace(call_of(f.target, f.node), outputs=f.argument.meta["val"])
        if f.out:
            call.kwargs[f.out] = call.outputs
        calls.append(call)
    return calls


def _packing_calls(packed: Packed) -> list[Call]:
    how, value = packed.how, packed.node.meta["val"]
    with value.fake_mode:
        small = torch.empty(how.nbytes, dtype=torch.uint8, device=value.device)
    calls: list[Call] = []
    for target, given, more, made in (
        (how.pack, value, how.given, small),
        (how.unpack, small, how.layout, value),
    ):
        shown = [show_tensor(given), *map(str, more)]
        signature = f"lowtide::{target.__name__}({', '.join(shown)})"
        calls.append(Call(target, (given, *more), {}, made, signature))
    return calls


def call_of(target: Any, node: fx.Node, suffix: str = "") -> Call:
    """The call of an op with a node's arguments."""
    args = tuple(fx.map_arg(node.args, _value))
    kwargs = dict(fx.map_arg(node.kwargs, _value))
    signature = signature_of(f"{target}{suffix}", node.args, node.kwargs, _show)
    return Call(target, args, kwargs, node.meta.get("val"), signature)


def _value(node: fx.Node) -> Any:
    """Its fake value. Of a number that may change, the one it was captured with."""
    value = node.meta.get("val")
    return value.node.hint if isinstance(value, py_sym_types) else value


def _show(value: Any) -> str:
    if isinstance(value, fx.Node):
        found = value.meta.get("val")
        if isinstance(found, int):  # a size, for the values that it is planned for
            return str(found)
        return "+".join(map(show_tensor, tensors_in(found)))
    return str(value)


def show_tensor(tensor: torch.Tensor) -> str:
    """Number type, shape and strides."""
    return f"{short_dtype(tensor)}{list(tensor.shape)}{tensor.stride()}"


def signature_of(
    target: Any, args: Any, kwargs: Any, show_one: Callable[[Any], str]
) -> str:
    """One call with shapes, strides, dtypes and plain arguments."""

    def show(value: Any) -> str:
        if isinstance(value, list | tuple):
            return "[" + ",".join(map(show, value)) + "]"
        return show_one(value)

    shown = [*map(show, args), *(f"{k}={show(v)}" for k, v in kwargs.items())]
    return f"{target}({', '.join(shown)})"


def source_of(node: fx.Node) -> str:
    """The user's `file.py:line` that this node comes from, or nothing."""
    places = _FILE_LINE.findall(node.meta.get("stack_trace") or "")
    if not places:
        return ""
    path, line = places[-1]
    return f"{path.rsplit('/', 1)[-1]}:{line}"


def module_of(node: fx.Node) -> str:
    """The module path that this node comes from, such as `layers.3.mlp`."""
    stack = node.meta.get("nn_module_stack") or node.meta.get("fwd_nn_module_stack")
    if not stack:
        return ""
    path = _ROOT.sub("", list(stack.values())[-1][0])
    path = re.sub(r"\[['\"]?([^\]'\"]+)['\"]?\]", r".\1", path)
    path = re.sub(r"(^|\.)(_modules|_orig_mod)(?=\.|$)", "", path)
    return re.sub(r"\.+", ".", path).strip(".")

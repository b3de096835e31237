"""What a captured op is called: its module, the user's line, its signature."""

from __future__ import annotations

import re
from typing import Any

from torch import fx

from lowtide.engine.capture.piece import PieceOp, tensors_of

_FILE_LINE = re.compile(r'File "([^"]+)", line (\d+)')


def source_of(node: fx.Node) -> str:
    """The user's `file.py:line` that this node comes from, or nothing."""
    places = _FILE_LINE.findall(node.meta.get("stack_trace") or "")
    if not places:
        return ""
    path, line = places[-1]
    return f"{path.rsplit('/', 1)[-1]}:{line}"


# Dynamo names the root by the variable that holds it: a local, a global, a cell.
_ROOT = re.compile(r"^(?:[LG]\['\w+'\]|.*cell_contents)(?:\.__self__)?")


def module_of(node: fx.Node) -> str:
    """The module path that this node comes from, such as `layers.3.mlp`."""
    stack = node.meta.get("nn_module_stack") or node.meta.get("fwd_nn_module_stack")
    if not stack:
        return ""
    path = _ROOT.sub("", list(stack.values())[-1][0])
    path = re.sub(r"\[['\"]?([^\]'\"]+)['\"]?\]", r".\1", path)
    path = re.sub(r"(^|\.)(_modules|_orig_mod)(?=\.|$)", "", path)
    return re.sub(r"\.+", ".", path).strip(".")


def signature_of(op: PieceOp) -> str:
    """The op, and those folded into it, with shapes, strides and plain arguments."""
    suffix = "" if op.variant == "plain" else f"/{op.variant}"
    first = signature_of_call(f"{op.node.target}{suffix}", op.node)
    return " + ".join([first, *(signature_of_call(f.target, f.node) for f in op.then)])


def signature_of_call(target: Any, node: fx.Node) -> str:
    """One call with shapes, strides, dtypes and plain arguments."""

    def show(value: Any) -> str:
        if isinstance(value, fx.Node):
            shown = [
                f"{str(t.dtype).removeprefix('torch.')}{list(t.shape)}{t.stride()}"
                for t in tensors_of(value)
            ]
            return "+".join(shown)
        if isinstance(value, list | tuple):
            return "[" + ",".join(show(v) for v in value) + "]"
        return str(value)

    arguments = [show(a) for a in node.args]
    arguments += [f"{k}={show(v)}" for k, v in node.kwargs.items()]
    return f"{target}({', '.join(arguments)})"

"""Where capture computes otherwise than the same step without it, and how it is undone.

NOTE(torch>=2.13,<2.14): reaches into the Python dispatcher's tables (`py_kernels`,
`_dispatch_cache`), into `proxy_tensor` for the autocast cache, and relies on capture
replacing `dropout` by `native_dropout` on every device.

Tracing is meant for compilers that will replace every kernel anyway, so it takes
liberties with the numbers: it decomposes ops in Python, casts a weight once per use
under autocast, and runs the backward under the forward's autocast. Our graphs run
torch's own kernels, so here each of these liberties is taken back. `tracing_as_eager`
holds while a graph is traced; `compute_as_eager` mends the graph that came out.
"""

from __future__ import annotations

import operator
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, nullcontext
from typing import Any, cast
from unittest.mock import patch

import torch
from torch import fx
from torch._C import DispatchKey
from torch._dispatch.python import all_py_loaded_overloads
from torch._functorch import config
from torch._ops import OpOverload

aten = torch.ops.aten

_DROPOUT = aten.native_dropout.default
_DROPOUT_BACKWARD = aten.native_dropout_backward.default
_TRACING = threading.RLock()


@contextmanager
def tracing_as_eager() -> Iterator[None]:
    """Let AOTAutograd trace what eager runs.

    What is changed for the time of the block is global to the process, so only one
    thread is in it at a time. It may be entered again within itself.
    """
    with _TRACING, ExitStack() as stack:
        stack.enter_context(_kernels_of_eager())
        # Eager leaves autocast before the backward, or at least before each cast in it.
        stack.enter_context(config.patch(backward_pass_autocast="off"))
        # A weight that is cast once has one gradient in the lower precision, in which
        # the gradients of its uses are summed. Tracing fears casts that some other
        # trace has made; but the cache knows tensors by identity, and every trace
        # makes its own. Only leaves are cached.
        place = "torch.fx.experimental.proxy_tensor.disable_autocast_cache"
        stack.enter_context(patch(place, nullcontext))
        stack.enter_context(patch("torch._mirror_autograd_meta_to", _mirror))
        yield


@contextmanager
def _kernels_of_eager() -> Iterator[None]:
    """Hide the kernels that torch has in Python to decompose ops before autograd.

    They are there for symbolic shapes, which we do not have, and round otherwise than
    the kernels of eager. Dropout keeps one, because the mask of `native_dropout` takes
    a byte where eager's noise takes a number.
    """
    hidden: list[tuple[OpOverload, dict[Any, Callable[..., Any]]]] = []
    for op in list(all_py_loaded_overloads()):
        decomposing = {k: f for k, f in op.py_kernels.items() if _is_before_autograd(k)}
        if op.namespace == "aten" and decomposing:
            hidden.append((op, decomposing))
    try:
        for op, decomposing in hidden:
            for key in decomposing:
                del op.py_kernels[key]
            if op is aten.dropout.default:
                op.py_kernels.update(dict.fromkeys(decomposing, _dropout))
            op._dispatch_cache.clear()
        yield
    finally:
        for op, decomposing in hidden:
            op.py_kernels.update(decomposing)
            op._dispatch_cache.clear()


def _is_before_autograd(key: Any) -> bool:
    return isinstance(key, DispatchKey) and (
        key == DispatchKey.CompositeImplicitAutograd or "Autograd" in key.name
    )


def _dropout(tensor: torch.Tensor, p: float, train: bool) -> torch.Tensor:
    """Dropout through `native_dropout`, where eager draws random numbers at all."""
    if train and 0 < p < 1 and tensor.numel():
        return aten.native_dropout(tensor, p, train)[0]
    eager = aten.dropout.default._op_dk
    return eager(DispatchKey.CompositeImplicitAutograd, tensor, p, train)


_mirror_as_torch: Any = torch._mirror_autograd_meta_to  # type: ignore[attr-defined]


def _mirror(source: torch.Tensor, wrapper: torch.Tensor) -> None:
    """Let the tensor that is traced require a gradient as the given one does.

    Torch makes it require one, but never a leaf.
    """
    _mirror_as_torch(source, wrapper)
    if source.is_leaf and source.requires_grad:
        wrapper.detach_().requires_grad_()


def compute_as_eager(joint: fx.GraphModule) -> None:
    """Change a joint graph so that its numbers are those of the uncaptured step."""
    for node in list(joint.graph.nodes):
        if node.target is _DROPOUT:
            _scale_forward(node)
        elif node.target is _DROPOUT_BACKWARD:
            _scale_backward(node)


# Eager dropout on the CPU divides a noise of ones and zeros by the share that stays, in
# the input's type, and multiplies by that. The captured ops multiply by a scale that is
# divided in 64 bits, which in 32 bits is another number for one share in seven.


def _scale_forward(node: fx.Node) -> None:
    """Scale the result of `native_dropout` anew if its scale is not eager's."""
    tensor, share_dropped = node.args[0], cast(float, node.args[1])
    value = node.meta["val"][0]
    items = {user.args[1]: user for user in node.users}
    scale = _scale_of_eager(value, share_dropped)
    if scale is None or scale == _rounded(1 / (1 - share_dropped), value.dtype):
        return
    graph = node.graph
    if 1 not in items:  # no gradient is asked for
        with graph.inserting_after(node):
            items[1] = graph.call_function(operator.getitem, (node, 1))
            items[1].meta = {**node.meta, "val": node.meta["val"][1]}
    with graph.inserting_after(items[1]):
        scaled = graph.call_function(_DROPOUT_BACKWARD, (tensor, items[1], scale))
    with value.fake_mode:
        scaled.meta = {**node.meta, "val": torch.empty_like(value)}
    items[0].replace_all_uses_with(scaled)
    graph.erase_node(items[0])


def _scale_backward(node: fx.Node) -> None:
    """Give a gradient of dropout the scale that eager's has."""
    gradient, mask, _ = node.args
    source = mask.args[0] if isinstance(mask, fx.Node) and mask.args else None
    if isinstance(source, fx.Node) and source.target is _DROPOUT:
        scale = _scale_of_eager(node.meta["val"], source.args[1])
        if scale is not None:
            node.args = (gradient, mask, scale)


def _scale_of_eager(value: torch.Tensor, share_dropped: Any) -> float | None:
    """What eager multiplies by what stays; on other devices that is as captured."""
    if value.device.type != "cpu":
        return None
    return torch.ones((), dtype=value.dtype).div_(1 - share_dropped).item()


def _rounded(number: float, dtype: torch.dtype) -> float:
    return torch.tensor(number, dtype=dtype).item()

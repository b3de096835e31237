"""Where capture computes other numbers than eager does, and how that is undone.

NOTE(torch>=2.13,<2.16): reaches into the Python dispatcher's tables (`py_kernels`,
`_dispatch_cache`), replaces a few functions of AOTAutograd and `proxy_tensor`, and
relies on capture turning `dropout` into `native_dropout` on every device.

Tracing is meant for compilers that will replace every kernel anyway, so it takes
liberties with the numbers: it decomposes ops in Python, casts a weight once per use
under autocast, runs the backward under the forward's autocast, copies gradients into
the layout of the outputs, and drops random ops whose results nobody uses. Our graphs
run torch's own kernels, so here each of these liberties is taken back.
`tracing_as_eager` holds while a graph is traced; `compute_as_eager` mends the graph
that came out.
"""

from __future__ import annotations

import operator
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any, cast
from unittest.mock import patch

import torch
from torch import fx
from torch._C import DispatchKey
from torch._dispatch.python import all_py_loaded_overloads
from torch._functorch import config
from torch._functorch._aot_autograd import (
    graph_capture,
    graph_compile,
    subclass_utils,
)
from torch._functorch._aot_autograd.schemas import MemoryFormatMeta
from torch._inductor import config as inductor_config
from torch._ops import OpOverload
from torch.fx.experimental import proxy_tensor

from lowtide.engine.capture import gaps, recurrent
from lowtide.engine.capture.formulas import opaque_where_values_decide
from lowtide.engine.capture.layouts import layouts_of_eager
from lowtide.engine.capture.momentum import set_momentum
from lowtide.engine.capture.prod import product
from lowtide.engine.forms.draws import masking_scale
from lowtide.engine.seam import saving_as_it_comes

aten = torch.ops.aten

# Batch norm changes statistics without saying so, and the others look at values.
_KEPT = (
    aten.native_batch_norm.default,
    aten.cudnn_batch_norm.default,
    aten.miopen_batch_norm.default,
    aten.one_hot.default,
    aten.tensor_split.tensor_indices_or_sections,
)
_DROPOUT = aten.native_dropout.default
_DROPOUT_BACKWARD = aten.native_dropout_backward.default
_TRACING = threading.RLock()


@dataclass(frozen=True)
class Arrival:
    """In what form gradients reach a backward, and under which autocast.

    `strides` are those of each gradient, `None` where they are the output's. `autocast`
    names the devices for which autocast is on while the backward runs, and its type.
    """

    strides: tuple[tuple[int, ...] | None, ...] = ()
    autocast: tuple[tuple[str, torch.dtype], ...] = ()


AS_OUTPUTS = Arrival()


@contextmanager
def tracing_as_eager(arrival: Arrival = AS_OUTPUTS) -> Iterator[None]:
    """Let AOTAutograd trace what eager runs, for gradients that arrive like this.

    What is changed for the time of the block is global to the process, so only one
    thread is in it at a time. It may be entered again within itself.
    """

    def with_strides(function: Any, inputs: Any, *args: Any, **kwargs: Any) -> Any:
        if isinstance(inputs, tuple):  # those of a joint graph
            inputs = (inputs[0], _restrided(inputs[1], arrival.strides))
        return _trace(function, inputs, *args, **kwargs)

    autocast = [{"device_type": d, "dtype": t} for d, t in arrival.autocast]
    changes = (
        _kernels_of_eager(),
        layouts_of_eager(),
        opaque_where_values_decide(),
        config.patch(backward_pass_autocast=autocast or "off"),
        # Eager draws random numbers also for what nobody uses then.
        inductor_config.patch(fallback_random=True),
        # A weight that is cast once has one gradient in the lower precision, in which
        # the gradients of its uses are summed. Tracing fears casts that some other
        # trace has made; but the cache knows tensors by identity, and every trace
        # makes its own. Only leaves are cached.
        patch.object(proxy_tensor, "disable_autocast_cache", nullcontext),
        patch("torch._mirror_autograd_meta_to", _mirror),
        # Whoever runs the graphs turns autocast off, and sees before whether it is on.
        patch("torch._C._is_any_autocast_enabled", lambda: False),
        patch.object(subclass_utils, "maybe_suggest_memory_format", _any_layout),
        patch.object(graph_capture, _TRACE, with_strides),
        # What is saved is nobody's to write over: a graph may be kept at any time.
        patch.object(graph_compile, "collect_bw_donated_buffer_idxs", lambda *_: []),
        saving_as_it_comes(),
    )
    with _TRACING, ExitStack() as stack:
        for change in changes:
            stack.enter_context(change)
        yield


class _Anything:
    """A shape, or strides, to which all others are equal."""

    __hash__ = object.__hash__

    def __eq__(self, other: object) -> bool:
        return True


def _any_layout(tensor: torch.Tensor, asked: bool) -> MemoryFormatMeta | None:
    """What layout a gradient is to have: it is left as it comes."""
    del tensor
    anything: Any = _Anything()
    return MemoryFormatMeta(size=anything, stride=anything) if asked else None


_TRACE = "_create_graph_and_save_traced_inputs"
_trace = getattr(graph_capture, _TRACE)


def _restrided(
    tangents: Sequence[Any], strides: Sequence[tuple[int, ...] | None]
) -> list[Any]:
    found = list(tangents)
    for place, wanted in enumerate(strides):
        if wanted is not None:
            with found[place].fake_mode:
                found[place] = found[place].new_empty_strided(
                    found[place].shape, wanted
                )
    return found


_BEFORE_AUTOGRAD = frozenset(
    key for name, key in DispatchKey.__members__.items() if "Autograd" in name
)


@contextmanager
def _kernels_of_eager() -> Iterator[None]:
    """Hide the kernels that torch has in Python to decompose ops before autograd.

    They are there for symbolic shapes, which we do not have, and round differently from
    the kernels of eager. Those that tell tracing what eager's kernel does (`_KEPT`)
    stay. Some ops get one of ours; dropout does because the mask of `native_dropout`
    takes a byte where eager's noise takes a number.
    """
    own: dict[OpOverload, Callable[..., Any]] = {
        aten.dropout.default: _dropout,
        aten.bernoulli_.float: _draw_in_memory_order,
        aten.prod.default: product,
        aten.prod.dim_int: product,
        recurrent.LAYER: recurrent.layer_like,
        **gaps.kernels(),
    }
    before = {
        op: dict(op.py_kernels)
        for op in list(all_py_loaded_overloads())
        if op in own
        or (
            (op.namespace == "aten" and op not in _KEPT)
            and not _BEFORE_AUTOGRAD.isdisjoint(op.py_kernels)
        )
    }
    try:
        for op, kernels in before.items():
            hidden = [key for key in kernels if key in _BEFORE_AUTOGRAD]
            for key in hidden:
                del op.py_kernels[key]
            if op is recurrent.LAYER:
                op.py_kernels[DispatchKey.Meta] = own[op]
            elif op in own:
                for key in hidden or [DispatchKey.Autograd]:
                    op.py_kernels[key] = own[op]
            op._dispatch_cache.clear()
        yield
    finally:
        for op, kernels in before.items():
            op.py_kernels.clear()
            op.py_kernels.update(kernels)
            op._dispatch_cache.clear()


def _dropout(tensor: torch.Tensor, p: float, train: bool) -> torch.Tensor:
    """Dropout through `native_dropout`, where eager draws random numbers at all."""
    if train and 0 < p < 1 and tensor.numel():
        return aten.native_dropout(tensor, p, train)[0]
    eager = aten.dropout.default._op_dk
    return eager(DispatchKey.CompositeImplicitAutograd, tensor, p, train)


def _draw_in_memory_order(
    tensor: torch.Tensor, p: float = 0.5, *, generator: torch.Generator | None = None
) -> torch.Tensor:
    """Fill a tensor in place, element after element as they lie in memory.

    The form of this op that leaves its result beside has it contiguous, and so draws in
    another order for an image with channels last.
    """
    strides = tensor.stride()
    order = sorted(range(tensor.dim()), key=lambda place: -strides[place])
    with torch._C._AutoDispatchBelowAutograd():
        aten.bernoulli_.float(tensor.permute(order), p, generator=generator)
    return tensor


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
    set_momentum(joint)
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
    if scale is None or scale == masking_scale(value, share_dropped):
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

"""The two gradients of a convolution as two ops.

Autograd asks for both at once, so that what was convolved, its gradient and the
gradient of the result are all there together: often the largest moment of a
convolutional network. The kernels are two, one after the other. The gradient of what
was convolved is computed from its size alone, so as an op of its own it does not read
it. torch hands it a single number, expanded, for the size (`torch.nn.grad`).
"""

from __future__ import annotations

import operator
from typing import Any, cast

import torch
from torch import fx

aten = torch.ops.aten
_GRADIENTS = aten.convolution_backward.default


def set_gradients_apart(joint: fx.GraphModule) -> None:
    """Replace what computes several gradients of a convolution by two ops.

    That of what was convolved comes first, so in this order all are there at once as
    they are in eager.
    """
    for node in joint.graph.find_nodes(op="call_function", target=_GRADIENTS):
        if _can_be_apart(node):
            _set_apart(node)


def _can_be_apart(node: fx.Node) -> bool:
    """Whether the first gradient is the same from the size of the convolved alone.

    The layout of the convolved decides about that of its gradient, if no other does.
    """
    gradient, convolved, weight = (_value(node.args[k]) for k in range(3))
    mask: Any = node.args[10]
    layouts = [_layout(value) for value in (convolved, weight)]
    sizes = (*convolved.shape, *gradient.shape, *weight.shape)
    return (
        bool(mask[0] and (mask[1] or mask[2]))
        and convolved.device.type == "cpu"
        and all(isinstance(size, int) for size in sizes)
        and min(sizes) > 0
        and min(convolved.shape[1:]) > 1
        and layouts in (["plain", "plain"], ["last", "last"])
    )


def _layout(value: torch.Tensor) -> str:
    """Whether channels come last in memory; only one that is plain may be both."""
    if value.is_contiguous():
        return "plain"
    is_image = value.dim() == 4
    last = torch.channels_last
    return "last" if is_image and value.is_contiguous(memory_format=last) else ""


def _value(node: Any) -> torch.Tensor:
    return node.meta["val"]


def _set_apart(node: fx.Node) -> None:
    graph, given = node.graph, cast(tuple[Any, ...], node.args)
    gradient, convolved, *others, mask = given
    shape = tuple(_value(convolved).shape)
    values = node.meta["val"]

    def call(target: Any, args: tuple[Any, ...], value: Any) -> fx.Node:
        made = graph.call_function(target, args)
        made.meta = {**node.meta, "val": value}
        return made

    with graph.inserting_before(node):
        with _value(gradient).fake_mode:  # type: ignore[attr-defined]
            size = _value(gradient).as_strided(shape, (0,) * len(shape))
        stand_in = call(
            aten.as_strided.default, (gradient, shape, (0,) * len(shape)), size
        )
        first = call(
            _GRADIENTS,
            (gradient, stand_in, *others, [True, False, False]),
            (values[0], None, None),
        )
        second = call(
            _GRADIENTS,
            (gradient, convolved, *others, [False, *mask[1:]]),
            (None, *values[1:]),
        )
        for item in list(node.users):
            assert item.target is operator.getitem, f"{item} takes {node} as a whole"
            place: Any = item.args[1]
            source = first if place == 0 else second
            made = call(operator.getitem, (source, place), values[place])
            made.meta = dict(item.meta)
            item.replace_all_uses_with(made)
            graph.erase_node(item)
    graph.erase_node(node)

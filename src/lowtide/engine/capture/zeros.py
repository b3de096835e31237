"""Take out of a joint graph the gradients that will never arrive.

AOTAutograd makes a tangent for every differentiable output. A model that returns its
loss and its logits is usually differentiated through the loss alone; autograd would
then fill a logits-sized tangent with zeros and add it to the real gradient. Eager never
does, so neither do we: the tangent is removed, and with it everything that is zero
because of it. Only gradients that reach a sum with another one are removed; a graph in
which a zero would reach anything else is left as it is.
"""

from __future__ import annotations

import operator
from typing import Any

import torch
from torch import fx

from lowtide.engine.capture.nodes import (
    has_effect,
    is_view,
    made_from,
    outputs_of,
    tangents_of,
)
from lowtide.engine.capture.tensors import storage_key

aten = torch.ops.aten

# For each op that maps a zero gradient to zeros: the places of its gradient arguments.
_LINEAR: dict[str, tuple[int, ...]] = {
    **dict.fromkeys(
        "view _unsafe_view reshape t transpose permute expand unsqueeze squeeze slice "
        "select clone detach alias _to_copy neg div sum slice_backward select_backward "
        "native_dropout_backward native_layer_norm_backward tanh_backward "
        "gelu_backward silu_backward threshold_backward _log_softmax_backward_data "
        "_softmax_backward_data embedding_dense_backward".split(),
        (0,),
    ),
    **dict.fromkeys(("mm", "bmm", "mul"), (0, 1)),
}
_ADD = aten.add.Tensor


def guess_absent(joint: fx.GraphModule) -> frozenset[int]:
    """Places of the tangents that a training step usually does not provide.

    Where exactly one differentiable output is a single number, and it is computed from
    the others, it is taken for the loss and the others for values that are only looked
    at. An output that the number does not depend on is returned to be used.
    """
    tangents = tangents_of(joint)
    sizes = [n.meta["val"].numel() for n in tangents]
    losses = [i for i, size in enumerate(sizes) if size == 1]
    if len(losses) != 1:
        return frozenset()
    (loss,) = losses
    outputs = _differentiated(joint)
    if len(outputs) != len(tangents):
        return frozenset()
    below = made_from(outputs[loss].all_input_nodes)
    others = [i for i in range(len(tangents)) if i != loss]
    if any(below.isdisjoint(_same_values(outputs[i])) for i in others):
        return frozenset()
    return frozenset(others)


def _differentiated(joint: fx.GraphModule) -> list[fx.Node]:
    """The forward's outputs that have a tangent, in the order of the tangents."""
    flat, descriptions = outputs_of(joint)
    named = dict(zip(descriptions, flat, strict=True))
    wanted = [getattr(t.meta.get("desc"), "output", None) for t in tangents_of(joint)]
    return [n for d in wanted if isinstance(n := named.get(d), fx.Node)]


def _same_values(node: fx.Node) -> set[fx.Node]:
    """The node and what it is only a view of."""
    found = {node}
    storage = _storage(node)
    while storage is not None and node.op == "call_function" and node.all_input_nodes:
        node = node.all_input_nodes[0]
        if _storage(node) != storage:
            break
        found.add(node)
    return found


def _storage(node: fx.Node) -> int | None:
    value = node.meta.get("val")
    return storage_key(value) if isinstance(value, torch.Tensor) else None


def without_tangents(
    joint: fx.GraphModule, absent: frozenset[int]
) -> fx.GraphModule | None:
    """A copy of the graph in which these tangents are zero and gone, or `None`.

    The placeholders stay, unused, so that the calling convention is the same.
    """
    graph = fx.Graph()
    values: dict[fx.Node, fx.Node] = {}
    zero = {n for i, n in enumerate(tangents_of(joint)) if i in absent}
    moved: set[fx.Node] = set()  # whose values lie elsewhere than they did
    for node in joint.graph.nodes:
        if node.op in ("placeholder", "get_attr"):
            values[node] = graph.node_copy(node)
            continue
        if node.op == "output":
            # A parameter that only feeds what is not differentiated gets no gradient
            # in eager.
            outputs = fx.map_arg(
                node.args[0], lambda n: None if n in zero else values[n]
            )
            graph.output(outputs).meta = dict(node.meta)
            graph.eliminate_dead_code(is_impure_node=_must_stay)
            return fx.GraphModule(joint, graph)
        touched = [a for a in node.all_input_nodes if a in zero]
        if not touched:
            copy = values[node] = graph.node_copy(node, values.__getitem__)
            if moved.intersection(node.all_input_nodes) and is_view(node):
                _view_again(copy)
                moved.add(node)
        elif node.target is operator.getitem or _stays_zero(node, zero):
            zero.add(node)
        elif node.target is _ADD and (kept := _other_term(node, zero)) is not None:
            values[node] = values[kept]
            moved.add(node)
        else:
            return None
    raise AssertionError("a graph ends with its output")


def _stays_zero(node: fx.Node, zero: set[fx.Node]) -> bool:
    schema = getattr(node.target, "_schema", None)
    places = _LINEAR.get(schema.name.removeprefix("aten::"), ()) if schema else ()
    if any(p < len(node.args) and node.args[p] in zero for p in places):
        return True
    return node.target is _ADD and all(a in zero for a in node.args[:2])


def _other_term(node: fx.Node, zero: set[fx.Node]) -> fx.Node | None:
    """The term of a sum that is not zero, if the sum is just that term."""
    if node.kwargs:
        return None
    terms = [a for a in node.args[:2] if isinstance(a, fx.Node) and a not in zero]
    if len(terms) != 1:
        return None
    result, term = node.meta["val"], terms[0].meta["val"]
    # Its strides may be others than the sum's: those of eager, which adds nothing.
    same = (result.shape, result.dtype) == (term.shape, term.dtype)
    return terms[0] if same else None


def _view_again(node: fx.Node) -> None:
    """Say that a view lies where what it views lies, now that this is another value."""
    value: Any = node.meta["val"]
    if isinstance(value, torch.Tensor):
        args, kwargs = fx.map_arg((node.args, node.kwargs), lambda n: n.meta["val"])
        target: Any = node.target
        with value.fake_mode:  # type: ignore[attr-defined]
            node.meta["val"] = target(*args, **kwargs)


def _must_stay(node: fx.Node) -> bool:
    is_op = isinstance(node.target, torch._ops.OpOverload)
    return not is_op or has_effect(node)

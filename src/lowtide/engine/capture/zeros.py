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
from torch.utils import _pytree as pytree

aten = torch.ops.aten

# For each op that maps a zero gradient to zeros: the places of its gradient arguments.
_LINEAR: dict[Any, tuple[int, ...]] = {
    overload: (0,)
    for packet in (
        aten.view,
        aten._unsafe_view,
        aten.reshape,
        aten.t,
        aten.transpose,
        aten.permute,
        aten.expand,
        aten.unsqueeze,
        aten.squeeze,
        aten.slice,
        aten.select,
        aten.clone,
        aten.detach,
        aten.alias,
        aten._to_copy,
        aten.neg,
        aten.sum,
        aten.slice_backward,
        aten.select_backward,
        aten.native_dropout_backward,
        aten.native_layer_norm_backward,
        aten.tanh_backward,
        aten.gelu_backward,
        aten.silu_backward,
        aten.threshold_backward,
        aten._log_softmax_backward_data,
        aten._softmax_backward_data,
        aten.embedding_dense_backward,
    )
    for overload in (getattr(packet, o) for o in packet.overloads())
} | {
    overload: (0, 1)
    for packet in (aten.mm, aten.bmm, aten.mul)
    for overload in (getattr(packet, o) for o in packet.overloads())
}
_DIVIDE = {getattr(aten.div, o) for o in aten.div.overloads()}
_ADD = aten.add.Tensor


def guess_absent(joint: fx.GraphModule) -> frozenset[int]:
    """Places of the tangents that a training step usually does not provide.

    Where exactly one differentiable output is a single number, and it is computed from
    the others, it is taken for the loss and the others for values that are only looked
    at. An output that the number does not depend on is returned to be used.
    """
    tangents = _tangents(joint)
    sizes = [n.meta["val"].numel() for n in tangents]
    losses = [i for i, size in enumerate(sizes) if size == 1]
    if len(losses) != 1:
        return frozenset()
    (loss,) = losses
    outputs = _differentiated(joint)
    if len(outputs) != len(tangents):
        return frozenset()
    below = _ancestors(outputs[loss])
    others = [i for i in range(len(tangents)) if i != loss]
    if any(below.isdisjoint(_same_values(outputs[i])) for i in others):
        return frozenset()
    return frozenset(others)


def _differentiated(joint: fx.GraphModule) -> list[fx.Node]:
    """The forward's outputs that have a tangent, in the order of the tangents."""
    (output,) = joint.graph.find_nodes(op="output")
    flat = pytree.tree_leaves(output.args[0], is_leaf=lambda x: x is None)
    descriptions = output.meta.get("desc") or [None] * len(flat)
    named = dict(zip(descriptions, flat, strict=True))
    found: list[fx.Node] = []
    for tangent in _tangents(joint):
        description = getattr(tangent.meta.get("desc"), "output", None)
        node = named.get(description)
        if isinstance(node, fx.Node):
            found.append(node)
    return found


def _ancestors(node: fx.Node) -> set[fx.Node]:
    seen: set[fx.Node] = set()
    stack = [node]
    while stack:
        for source in stack.pop().all_input_nodes:
            if source not in seen:
                seen.add(source)
                stack.append(source)
    return seen


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
    if not isinstance(value, torch.Tensor):
        return None
    return int(value.untyped_storage()._cdata)


def without_tangents(
    joint: fx.GraphModule, absent: frozenset[int]
) -> fx.GraphModule | None:
    """A copy of the graph in which these tangents are zero and gone, or `None`.

    The placeholders stay, unused, so that the calling convention is the same.
    """
    graph = fx.Graph()
    values: dict[fx.Node, fx.Node] = {}
    zero = {n for i, n in enumerate(_tangents(joint)) if i in absent}
    tangents = set(zero)
    for node in joint.graph.nodes:
        if node in tangents or node.op in ("placeholder", "get_attr"):
            values[node] = graph.node_copy(node)
            continue
        if node.op == "output":
            return _finish(joint, graph, node, values, zero)
        touched = [a for a in node.all_input_nodes if a in zero]
        if not touched:
            values[node] = graph.node_copy(node, values.__getitem__)
        elif node.target is operator.getitem or _stays_zero(node, zero):
            zero.add(node)
        elif node.target is _ADD and (kept := _other_term(node, zero)) is not None:
            values[node] = values[kept]
        else:
            return None
    raise AssertionError("a graph ends with its output")


def _tangents(joint: fx.GraphModule) -> list[fx.Node]:
    placeholders = joint.graph.find_nodes(op="placeholder")
    return [n for n in placeholders if n.name.startswith("tangents")]


def _stays_zero(node: fx.Node, zero: set[fx.Node]) -> bool:
    if node.target in _DIVIDE:
        return node.args[0] in zero
    places = _LINEAR.get(node.target, ())
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


def _finish(
    joint: fx.GraphModule,
    graph: fx.Graph,
    output: fx.Node,
    values: dict[fx.Node, fx.Node],
    zero: set[fx.Node],
) -> fx.GraphModule | None:
    # A parameter that only feeds what is not differentiated gets no gradient in eager.
    made = graph.output(
        fx.map_arg(output.args[0], lambda n: None if n in zero else values[n])
    )
    made.meta = dict(output.meta)
    graph.eliminate_dead_code(is_impure_node=_has_effect)
    return fx.GraphModule(joint, graph)


def _has_effect(node: fx.Node) -> bool:
    if node.op in ("placeholder", "output"):
        return True
    target = node.target
    return not isinstance(target, torch._ops.OpOverload) or (
        target._schema.is_mutable or torch.Tag.nondeterministic_seeded in target.tags
    )

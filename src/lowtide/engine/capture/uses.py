"""Gradients of what goes from one graph to the next, term by term as eager adds them.

Eager adds up the gradient of a value as its uses are differentiated, the last one
first. A captured graph would add up the terms of its own uses and hand over their sum;
if the value is used in another graph as well, the terms are then added in another
order, and the last bit differs. So each use gets an input of its own, an alias of the
value, and autograd adds what comes back through them.

What returns its own argument in eager is no use: `x.to(torch.float32)` of a tensor that
is one stands in the graph as an op whose own uses would be added up first.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from typing import Any, cast

import torch
from torch import fx

from lowtide.engine.capture.tensors import tensors_in

Spread = Callable[[Sequence[Any]], list[Any]]


def with_an_input_for_each_use(
    gm: fx.GraphModule, inputs: Sequence[Any]
) -> tuple[fx.GraphModule, list[Any], Spread]:
    """The graph, its inputs, and how to make these of the inputs it was to have.

    Parameters stay as they are: two gradients of a tied weight would take as much more.
    """
    if any(map(_returns_its_argument, gm.graph.nodes)):
        gm = _copied(gm)
        for node in filter(_returns_its_argument, list(gm.graph.nodes)):
            node.replace_all_uses_with(node.args[0])
            gm.graph.erase_node(node)
        gm.recompile()
    nodes = gm.graph.find_nodes(op="placeholder")
    several = [
        place
        for place, (node, value) in enumerate(zip(nodes, inputs, strict=True))
        if isinstance(value, torch.Tensor)
        and not isinstance(value, torch.nn.Parameter)
        and value.requires_grad
        and not any(map(_needs_itself, node.users))
        and len(_uses(node)) > 1
    ]
    if not several:
        return gm, list(inputs), list
    # Dynamo reads the inputs of its own graph again.
    gm = _copied(gm)
    nodes = gm.graph.find_nodes(op="placeholder")
    aliased = [p for p in several for _ in range(_split(nodes[p]))]
    values = [*inputs, *(inputs[p].detach().requires_grad_() for p in aliased)]
    gm.recompile()

    def spread(args: Sequence[Any]) -> list[Any]:
        return [*args, *(args[place].view_as(args[place]) for place in aliased)]

    return gm, values, spread


def _copied(gm: fx.GraphModule) -> fx.GraphModule:
    graph = fx.Graph()
    copies: dict[fx.Node, fx.Node] = {}
    graph.output(graph.graph_copy(gm.graph, copies))
    for node, copy in copies.items():
        copy.__dict__.update({k: v for k, v in vars(node).items() if k == _SOURCE})
    made = fx.GraphModule(gm, graph)
    made.meta.update(gm.meta)
    return made


_SOURCE = "_dynamo_source"


_IDLE = frozenset("to type type_as float double half bfloat16 contiguous".split())


def _returns_its_argument(node: fx.Node) -> bool:
    """Whether an op hands on the very tensor that it is given."""
    if node.op != "call_method" or node.target not in _IDLE:
        return False
    owner = cast(fx.Node, node.args[0])
    made, given = (n.meta.get("example_value") for n in (node, owner))
    return (
        isinstance(made, torch.Tensor)
        and isinstance(given, torch.Tensor)
        and made.untyped_storage()._cdata == given.untyped_storage()._cdata
        and (made.dtype, made.device) == (given.dtype, given.device)
        and made.stride() == given.stride()
    )


def _uses(node: fx.Node) -> list[fx.Node]:
    """The ops that compute with an input, each as often as it is given it, in order."""
    uses: list[fx.Node] = []
    for user in node.graph.nodes:
        is_call = user in node.users and user.op in ("call_function", "call_method")
        if is_call and tensors_in(user.meta.get("example_value")):
            given: list[fx.Node] = []
            fx.map_arg((user.args, user.kwargs), given.append)
            uses += [user] * given.count(node)
    return uses


def _split(node: fx.Node) -> int:
    """Replace an input by a new one for each use, behind the last of all.

    The alias that is made last gets its gradient first. So the uses get theirs in
    order, but the arguments of one op in reverse: of these autograd takes the first
    one first.
    """
    uses, last = _uses(node), node.graph.find_nodes(op="placeholder")[-1]
    own: dict[fx.Node, list[fx.Node]] = {user: [] for user in uses}
    for number, user in enumerate(uses):
        with node.graph.inserting_after(last):
            last = node.graph.placeholder(f"{node.name}_{number}_of_uses")
        last.meta = dict(node.meta)
        setattr(last, _SOURCE, getattr(node, _SOURCE, None))
        own[user].append(last)
    for user, aliases in own.items():

        def take(argument: fx.Node, aliases: list[fx.Node] = aliases) -> fx.Node:
            return aliases.pop() if argument is node else argument

        user.args = fx.map_arg(user.args, take)
        user.kwargs = fx.map_arg(user.kwargs, take)
    return len(uses)


def _needs_itself(user: fx.Node) -> bool:
    """Whether an op may write into what it is given, or asks for its gradient."""
    name = str(getattr(user.target, "__name__", user.target))
    is_in_place = name.endswith("_") and not name.endswith("__")
    is_operator = getattr(user.target, "__module__", "") == operator.add.__module__
    return (
        is_in_place
        or user.target is torch.autograd.grad
        or (is_operator and name in ("setitem", "delitem"))
        or (is_operator and name.startswith("i") and hasattr(operator, name[1:]))
        or "out" in user.kwargs
        or bool(user.kwargs.get("inplace"))
    )

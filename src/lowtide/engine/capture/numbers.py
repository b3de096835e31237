"""Python numbers that a captured step computes for its caller.

A model may count its calls or cool a temperature: `self.temperature *= 0.9`. Dynamo
then lets the graph return the new number. Torch would make a constant of every number
among the outputs of a joint graph, and capture the step anew whenever it changes. So
these are computed beside the graph, as Python computes them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import fx

from lowtide.engine.capture.nodes import made_from

Run = Callable[..., Any]


def take_numbers(gm: fx.GraphModule) -> Callable[[Run], Run]:
    """Let a dynamo graph return only tensors.

    What is returned adds the numbers again to what a run of the graph returns.
    """
    (output,) = gm.graph.find_nodes(op="output")
    returned: Sequence[Any] = output.args[0]
    places = [k for k, node in enumerate(returned) if _is_number(node)]
    if not places:
        return lambda run: run
    numbers = _only(gm, [returned[k] for k in places])
    rest = [k for k in range(len(returned)) if k not in places]
    output.args = (tuple(returned[k] for k in rest),)
    # Nothing else may go: an op that nobody reads may draw random numbers.
    for node in reversed(gm.graph.nodes):
        if _is_number(node) and not node.users and node.op != "placeholder":
            gm.graph.erase_node(node)
    gm.recompile()

    def with_numbers(run: Run) -> Run:
        def call(*args: Any) -> Any:
            found = dict(zip(places, numbers(*args), strict=True))
            found.update(zip(rest, run(*args), strict=True))
            return tuple(found[k] for k in range(len(found)))

        return call

    return with_numbers


def _is_number(node: Any) -> bool:
    """Whether it is a number, or the tensor that dynamo returns one in."""
    if not isinstance(node, fx.Node):
        return False
    if node.target is torch.scalar_tensor:
        return _is_number(node.args[0])
    return isinstance(node.meta.get("example_value"), torch.SymFloat)


def _only(gm: fx.GraphModule, nodes: Sequence[fx.Node]) -> fx.GraphModule:
    """The part of a graph that computes some of its nodes; it takes all inputs."""
    needed = made_from(nodes)
    graph = fx.Graph()
    copies: dict[fx.Node, fx.Node] = {}
    for node in gm.graph.nodes:
        if node.op == "placeholder" or node in needed:
            copies[node] = graph.node_copy(node, copies.__getitem__)
    graph.output(tuple(copies[node] for node in nodes))
    return fx.GraphModule(gm, graph)

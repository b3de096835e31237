"""Gradients leave a planned backward part by part, each as soon as it is finished.

A captured graph is one node of autograd's graph, so all its gradients would arrive when
its backward ends, and what waits for them, such as the all-reduce of
`DistributedDataParallel`, would begin only then. So the backward is cut where enough
gradients are finished. The compiled node runs the first part. The parameters whose
gradients come later enter it through gates, which are nodes of autograd's graph too,
and the backward of a gate runs the next part. Autograd runs accumulators before all
else that is ready, so the gradients of a part are handed over before the next begins.
The ops, their order and what is alive between them stay as planned.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import fx
from torch._subclasses import FakeTensor

from lowtide.engine.capture.nodes import (
    gradient_of,
    inputs_of,
    is_view,
    outputs_of,
)
from lowtide.engine.capture.piece import Piece
from lowtide.engine.graphs.others import Run, callable_of
from lowtide.engine.graphs.rewrite import GraphWriter
from lowtide.engine.ranks.agreement import exchange

# DDP's first bucket is as small as this, so that the exchange begins early.
_FIRST_BYTES = 1 << 20


class Handover:
    """The parts in which the backwards of one graph hand over their gradients.

    `groups` are the places of gradients in the order in which they are finished, by
    part; `gradient_of` has for an input the place of its gradient.
    """

    def __init__(self, piece: Piece, backward: fx.GraphModule, cap_bytes: int) -> None:
        self.backward = backward
        descriptions = outputs_of(piece.joint)[1][len(piece.forward_outputs) :]
        self.gradient_of = {
            of: place
            for place, what in enumerate(descriptions)
            if (of := gradient_of(what)) is not None
        }
        self.groups = _groups(backward, cap_bytes)
        known = set(self.gradient_of.values())
        gradients = outputs_of(backward)[0]
        made = {k for k, node in enumerate(gradients) if isinstance(node, fx.Node)}
        if not made <= known or not self.gradient_of.keys().isdisjoint(
            piece.mutated_inputs
        ):
            self.groups = [list(range(len(gradients)))]
        self.parts: dict[Run, list[Run]] = {}
        # Of the backward that is running: parts to come, what they start from, and
        # gradients that nobody has asked for yet.
        self.rest: list[Run] = []
        self.live: list[Any] = []
        self.made: dict[int, Any] = {}

    def gated(self, args: Sequence[Any]) -> list[Any]:
        """The inputs of a forward, those behind gates whose gradients come later.

        Of two gates that are ready, autograd runs the one that was made last.
        """
        args = list(args)
        of = {place: k for k, place in self.gradient_of.items()}
        for number in reversed(range(1, len(self.groups))):
            places = [k for k in self.groups[number] if args[of[k]].requires_grad]
            if places:
                values = (args[of[k]] for k in places)
                behind = _Gate.apply(self, number, places, *values)
                for k, value in zip(places, behind, strict=True):
                    args[of[k]] = value
        return args

    def first_part(self, run: Run) -> Run:
        """A backward that ends with its first part, and leaves the rest to the gates.

        One that is not just a graph runs whole.
        """
        module = getattr(run, "module", None)
        if module is None or len(self.groups) < 2:
            return run
        if run not in self.parts:
            self.parts[run] = [callable_of(m) for m in in_parts(module, self.groups)]

        def begin(args: list[Any]) -> list[Any]:
            self.rest, self.live = list(self.parts[run]), args
            self.made = {}
            self.next_part()
            return [self.made.pop(k, None) for k in range(sum(map(len, self.groups)))]

        return begin

    def next_part(self) -> None:
        """Run one part; what it leaves for the next is kept here."""
        group = self.groups[len(self.groups) - len(self.rest)]
        live, self.live = self.live, []
        outputs = list(self.rest.pop(0)(live))
        self.made.update(zip(group, outputs, strict=False))
        self.live = outputs[len(group) :]

    def finish(self, number: int) -> None:
        """Run all parts up to this one that have not run yet."""
        while len(self.groups) - len(self.rest) <= number:
            self.next_part()


class _Gate(torch.autograd.Function):
    """Passes values on; its backward runs the part that makes their gradients."""

    @staticmethod
    def forward(
        ctx: Any, handover: Handover, number: int, places: list[int], *values: Any
    ) -> Any:
        ctx.handover, ctx.number, ctx.places = handover, number, places
        ctx.set_materialize_grads(False)
        return tuple(value.detach() for value in values)

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        handover: Handover = ctx.handover
        if any(g is not None for g in gradients):  # the backward ran whole
            return None, None, None, *gradients
        with torch.no_grad():
            handover.finish(ctx.number)
        made = [handover.made.pop(place, None) for place in ctx.places]
        return None, None, None, *made


def _groups(backward: fx.GraphModule, cap_bytes: int) -> list[list[int]]:
    """Places of the gradients in the order in which they are made, cut by bytes."""
    when = {node: number for number, node in enumerate(_in_order(backward))}
    gradients = outputs_of(backward)[0]
    groups: list[list[int]] = [[]]
    nbytes, limit = 0, min(_FIRST_BYTES, cap_bytes)
    for k in sorted(range(len(gradients)), key=lambda k: when.get(gradients[k], -1)):
        if nbytes >= limit:
            groups.append([])
            nbytes, limit = 0, cap_bytes
        groups[-1].append(k)
        if isinstance(gradients[k], fx.Node):
            nbytes += gradients[k].meta["val"].nbytes
    return groups


def _in_order(module: fx.GraphModule) -> list[fx.Node]:
    """The ops of a graph, views that it returns right behind what they show.

    As they are written they come last, and so would all that is handed over.
    """
    outside = ("placeholder", "output", "get_attr")
    body = [n for n in module.graph.nodes if n.op not in outside]
    places = {node: number for number, node in enumerate(body)}
    when = dict(places)
    for node in outputs_of(module)[0]:
        views: list[fx.Node] = []
        while isinstance(node, fx.Node) and is_view(node):
            views.append(node)
            node, *others = node.all_input_nodes
            if others:
                break
        else:
            if node in places:
                when |= dict.fromkeys(views, places[node])
    return sorted(body, key=when.__getitem__)


def in_parts(
    module: fx.GraphModule, groups: Sequence[Sequence[int]]
) -> list[fx.GraphModule]:
    """The graph cut behind the last op that each group of its outputs needs.

    A part takes what the part before it leaves, and returns its group of outputs and
    then what it leaves for the next.
    """
    outputs = outputs_of(module)[0]
    placeholders = inputs_of(module)
    body = _in_order(module)
    when = {node: number for number, node in enumerate(body)}
    part_of: dict[fx.Node, int] = {}
    begin = 0
    for number, group in enumerate(groups):
        ends = [when[n] + 1 for k in group if (n := outputs[k]) in when]
        end = len(body) if number == len(groups) - 1 else max([begin, *ends])
        part_of |= dict.fromkeys(body[begin:end], number)
        begin = end
    # The last part that reads each value.
    last: dict[fx.Node, int] = {}
    for node in body:
        for read in node.all_input_nodes:
            last[read] = max(part_of[node], last.get(read, 0))
    for number, group in enumerate(groups):
        for node in (outputs[k] for k in group if isinstance(outputs[k], fx.Node)):
            last[node] = max(number, last.get(node, 0))
    parts: list[fx.GraphModule] = []
    entering = placeholders
    for number, group in enumerate(groups):
        part = _Part()
        for node in entering:
            part.values[node] = part.placeholder(node)
        own = [n for n in body if part_of[n] == number]
        for node in own:
            part.values[node] = part.graph.node_copy(node, part.value)
        leaving = [n for n in (*entering, *own) if last.get(n, 0) > number]
        made = fx.map_arg([outputs[k] for k in group], part.value)
        part.graph.output((*made, *(part.values[n] for n in leaving)))
        parts.append(part.module(module))
        entering = leaving
    return parts


class _Part(GraphWriter):
    """Writes one part of a graph."""

    def value(self, node: fx.Node) -> fx.Node:
        if node not in self.values:
            assert node.op == "get_attr", f"{node} is not there yet"
            self.values[node] = self.graph.node_copy(node)
        return self.values[node]


def cap_of_exchange(args: Sequence[Any]) -> int | None:
    """The bytes of a bucket of the exchange that a real forward is part of, if any."""
    wrapper = exchange()
    if wrapper is None or any(isinstance(value, FakeTensor) for value in args):
        return None
    return wrapper.bucket_bytes_cap

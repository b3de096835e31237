"""The two graphs that run a compiled piece in a plan's order.

Kernels of the forward that run again are emitted as copies of the fx nodes of their
cones, next to where the plan has them; Inductor fuses them anew. Everything that is not
kept for the backward but wanted there (a view, what was fused away) is derived again
from what is.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from torch import fx

from lowtide.engine.capture.nodes import has_effect, inputs_of
from lowtide.engine.graphs.rewrite import GraphWriter, Halves, Orders
from lowtide.engine.inductor.kernels import PLACE
from lowtide.engine.inductor.piece import CompiledPiece


def split_compiled(piece: CompiledPiece, orders: Orders) -> Halves:
    """The graphs that launch a piece's kernels in these orders."""
    second = _Emitter(piece)
    second.backward(orders.backward)
    first = _Emitter(piece)
    saved = list(second.saved)
    first.forward(orders.forward, saved)
    return Halves(
        first.module(piece.forward),
        second.module(piece.backward),
        tuple(node.name for node in saved),
    )


class _Emitter(GraphWriter):
    """Writes one graph of a compiled piece.

    `derived` are values of the forward that have no storage; they go when what they
    were derived from is made again.
    """

    def __init__(self, piece: CompiledPiece) -> None:
        super().__init__()
        self.piece = piece
        self.derived: dict[fx.Node, fx.Node] = {}
        self.place = 0
        self.ran: set[fx.Node] = set()
        self.crossing: dict[fx.Node, fx.Node] = {}

    def forward(self, order: Iterable[int], saved: list[fx.Node]) -> None:
        piece = self.piece
        for node in piece.primals:
            self.values[node] = self.placeholder(node)
        for self.place, number in enumerate(order):
            self.run(piece.launches[number].cone)
        for node in piece.forward.graph.nodes:
            if node not in self.ran and has_effect(node):
                self.values[node] = self.written(node)
        self.finish(piece.forward, [*piece.forward_outputs, *saved])

    def backward(self, order: Iterable[int]) -> None:
        piece = self.piece
        assert piece.step is not None
        inputs = inputs_of(piece.backward)
        for node in piece.tangents:
            self.values[node] = self.placeholder(node)
            self.first_tangent = self.first_tangent or self.values[node]
        self.crossing = dict(zip(inputs, piece.saved, strict=False))
        for self.place, number in enumerate(order):
            cone = piece.launches[number].cone
            if piece.step.ops[number].phase == "forward":
                self.run(cone)
            else:
                for node in cone:
                    self.value(node)
        self.finish(piece.backward, piece.gradients)

    def finish(self, like: fx.GraphModule, outputs: list[Any]) -> None:
        """Return the values that these outputs of the old graph have here."""
        values = [self.value(n) if isinstance(n, fx.Node) else n for n in outputs]
        made = self.graph.output(tuple(values))
        made.meta = dict(like.graph.output_node().meta)

    def run(self, cone: Sequence[fx.Node]) -> None:
        """Compute the nodes of a cone, anew if they were computed before."""
        for node in cone:
            self.values.pop(node, None)
        self.derived.clear()
        for node in cone:
            self.values[node] = self.written(node)
        for node in cone:
            # Only what has a storage is there for others.
            if node not in self.piece.value_of:
                self.derived[node] = self.values.pop(node)

    def written(self, node: fx.Node) -> fx.Node:
        """A copy of the node, which says where in the order it stands."""
        made = self.graph.node_copy(node, self.value)
        made.meta = {**node.meta, PLACE: self.place}
        self.ran.add(node)
        return made

    def value(self, node: fx.Node) -> fx.Node:
        """What holds this value here: it is known, was saved, or is derived."""
        node = self.crossing.get(node, node)
        known = self.values.get(node) or self.derived.get(node)
        if known is not None:
            return known
        if self.first_tangent is not None and self.must_be_saved(node):
            return self.save(node)
        made = self.written(node)
        is_early = node.graph is self.piece.forward.graph
        (self.derived if is_early else self.values)[node] = made
        return made

    def must_be_saved(self, node: fx.Node) -> bool:
        if node.graph is not self.piece.forward.graph:
            return False
        is_input = node.op == "placeholder"
        return is_input or node in self.piece.value_of or has_effect(node)

    def save(self, node: fx.Node) -> fx.Node:
        assert self.first_tangent is not None
        with self.graph.inserting_before(self.first_tangent):
            made = self.placeholder(node)
        self.saved[node] = self.values[node] = made
        return made

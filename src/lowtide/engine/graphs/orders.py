"""The orders in which one captured graph runs, by the sizes of its inputs.

A graph whose sizes are symbols serves many lengths. A schedule that keeps a budget at
one of them keeps it at all smaller ones, since every storage is smaller there; and
where there is room, another schedule with less recomputation may keep it too. So the
graph is read for the largest sizes seen, the others are rounded up to a few sizes, and
for each of these the order is decided once.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import fx
from torch.utils._python_dispatch import _disable_current_modes

from lowtide.engine.capture.nodes import inputs_of
from lowtide.engine.capture.piece import Piece, is_number, is_object
from lowtide.engine.capture.shapes import ResizedError, Shapes, value_as_traced
from lowtide.engine.graphs.others import Run, callable_of
from lowtide.engine.graphs.rewrite import Halves, Orders, saved_name, split

aten = torch.ops.aten

# Into how many parts the range of a size is divided.
_PARTS = 32


@dataclass
class Variant:
    """A graph in one order: its halves, and what of its storages the backward takes.

    `others` are the backwards for unexpected gradients that were ever needed.
    """

    piece: Piece
    orders: Orders
    halves: Halves
    kept: Sequence[int]
    forward: Run
    backward: Run
    others: dict[Any, Run] = field(default_factory=dict[Any, Run])


@dataclass(frozen=True)
class Way:
    """How the graph runs for certain sizes.

    `tangents` are the gradients that it expects then, without their bytes, and
    `kept_bytes` is what its forward keeps for its backward. The forward hands `mark` to
    the backward, so that it is run the same way, whatever was decided in between.
    """

    variant: Variant
    values: tuple[int, ...]
    tangents: Sequence[torch.Tensor]
    kept_bytes: int
    mark: torch.Tensor


class OrdersBySize:
    """Decides for each size how the graph runs, and remembers it.

    Args:
        joint: The graph, in which sizes may be symbols.
        read: Reads it as it then is.
        decide: Says in which order the ops of a reading run.
        generation: If it is another at a later forward, all is decided anew.
    """

    def __init__(
        self,
        joint: fx.GraphModule,
        read: Callable[[], Piece],
        decide: Callable[[Piece], Orders],
        generation: int,
    ) -> None:
        self.joint, self.read = joint, read
        self.decide, self.generation = decide, generation
        self.shapes = Shapes(node.meta.get("val") for node in inputs_of(joint))
        self.most = self.shapes.hints
        self.piece = self.read_at(self.most)
        self.numbers = [n for n in self.piece.primals if is_number(n)]
        self.objects = [n for n in self.piece.primals if is_object(n)]
        self.used = self.shapes.used_in(self.piece.formulas.values())
        self.ways: list[Way] = []
        self.variants: dict[Any, Variant] = {}
        self.start_anew()
        self.first = self.decided_for(self.most)[0]

    def start_anew(self) -> None:
        """Forget what was decided; forwards that have run keep their ways."""
        self.decided: dict[tuple[int, ...], tuple[Variant, int]] = {}
        self.current: dict[tuple[int, ...], Way] = {}

    def read_at(self, values: tuple[int, ...]) -> Piece:
        """The graph as it is for these values of its symbols."""
        self.shapes.fix(self.joint, values)
        return self.read()

    # At run time.

    def for_forward(self, args: Sequence[Any], generation: int) -> Way:
        """How to run for these arguments."""
        if generation != self.generation:
            self.generation = generation
            self.start_anew()
        given = [args[place] for place in self.shapes.places]
        # Numbers that no size depends on change from call to call.
        values = list(self.shapes.hints)
        for place in self.used:
            values[place] = given[place]
        key = tuple(values)
        if key not in self.current:
            self.current[key] = self.way(key)
        return self.current[key]

    def marked(self, way: Way, outputs: Sequence[Any]) -> tuple[Any, ...]:
        """What a forward returns, with the mark among what it saves.

        Numbers go last, and objects before them.
        """
        outputs = self.as_made(outputs)
        place = len(outputs) - len(self.numbers) - len(self.objects)
        return (*outputs[:place], way.mark, *outputs[place:])

    def as_made(self, outputs: Sequence[Any]) -> Sequence[Any]:
        """The outputs, without a trace of the results that they were written over.

        An op that is folded into another may write through a view. To autograd that is
        a view made in a captured graph, which nobody may change in place.
        """
        nodes = self.piece.forward_outputs
        own = [
            aten._unsafe_view(value, value.shape)
            if isinstance(value, torch.Tensor)
            and value._is_view()
            and node not in self.piece.views
            else value
            for node, value in zip(nodes, outputs, strict=False)
        ]
        return (*own, *outputs[len(own) :])

    def for_backward(self, args: list[Any]) -> Way:
        """How the forward ran; its mark is taken out of the arguments."""
        behind = len(self.objects) + len(self.piece.tangents)
        mark = args.pop(len(args) - behind - 1)
        return self.ways[mark.shape[1]]

    # What is decided.

    def way(self, values: tuple[int, ...]) -> Way:
        """How the graph is to run for these values."""
        rounded = values if values in self.decided else self.rounded(values)
        variant, kept_bytes = self.decided_for(rounded)
        expected = [value_as_traced(node) for node in self.piece.tangents]
        tangents = self.shapes.at(values, expected)
        mark = torch.empty(0, len(self.ways))
        self.ways.append(Way(variant, values, tangents, kept_bytes, mark))
        self.most = tuple(map(max, self.most, values))
        return self.ways[-1]

    def rounded(self, values: tuple[int, ...]) -> tuple[int, ...]:
        """Somewhat larger values, of which there are few; never above those seen.

        All sizes are larger with them, so a schedule for these serves those.
        """
        if any(v > m for v, m in zip(values, self.most, strict=True)):
            return values
        units = [max(1, m // _PARTS) for m in self.most]
        return tuple(
            min(m, -(-v // unit) * unit)
            for v, m, unit in zip(values, self.most, units, strict=True)
        )

    def decided_for(self, values: tuple[int, ...]) -> tuple[Variant, int]:
        """The variant for these values, and what it keeps."""
        if values not in self.decided:
            # To decide, ops may be timed.
            with _disable_current_modes(), torch.no_grad():
                piece, orders = self.decide_for(values)
            variant = self.variant(orders)
            nbytes = sum(piece.storages[s].nbytes for s in variant.kept)
            self.decided[values] = variant, nbytes
        return self.decided[values]

    def decide_for(self, values: tuple[int, ...]) -> tuple[Piece, Orders]:
        """In which order to run for these values.

        What is known for other sizes may do. If it does not, the graph is read for
        these, so that its ops can be measured.
        """
        if values == self.shapes.hints:
            return self.piece, self.decide(self.piece)
        piece = self.shapes.resized(self.piece, values)
        try:
            return piece, self.decide(piece)
        except ResizedError:
            self.piece = self.read_at(values)
            return self.piece, self.decide(self.piece)

    def variant(self, orders: Orders) -> Variant:
        piece = self.piece
        key = id(piece), tuple(orders.forward), tuple(orders.backward)
        if key in self.variants:
            return self.variants[key]
        # Another backward may need any input; those that change are not theirs again.
        inputs = [
            node.name
            for place, node in enumerate(piece.primals)
            if piece.absent_tangents and place not in piece.mutated_inputs
        ]
        always = (*self.numbers, *self.objects)
        others = [n.name for n in always if n.name not in inputs]
        halves = split(piece, orders, also_save=[*inputs, *others])
        saved = set(halves.saved)
        self.variants[key] = Variant(
            piece,
            orders,
            halves,
            kept=[
                number
                for number, storage in enumerate(piece.storages)
                if not storage.resident and saved_name(piece, number) in saved
            ],
            forward=callable_of(halves.forward),
            backward=callable_of(halves.backward),
        )
        return self.variants[key]

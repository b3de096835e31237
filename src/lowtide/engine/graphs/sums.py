"""Notices a gradient that is summed in another order than without lowtide.

A planned graph adds up what it contributes to a parameter's gradient and hands over the
sum. If that is all there is, the order is eager's. If the parameter is used outside of
the graph too (a second call before the backward, a term of the loss computed elsewhere,
another graph behind a graph break), eager would add one term after the other, and a sum
of floats depends on the order in its last bit. This cannot be helped from inside the
graph, so it is said.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
from torch import fx
from torch._subclasses import FakeTensor

from lowtide.engine.bits import checksum
from lowtide.engine.capture.nodes import gradient_of, outputs_of
from lowtide.engine.capture.piece import Piece
from lowtide.engine.notices import warn

_ADD = torch.ops.aten.add.Tensor
_CAST = torch.ops.aten._to_copy.default


class SumWatch:
    """Compares, in the first step, what a graph hands over with what arrives."""

    def __init__(self, piece: Piece, names: dict[int, str], told: set[str]) -> None:
        self.places = _summed(piece)
        self.names, self.told = names, told
        self.is_first = True
        self.sums: dict[int, int] = {}
        self.hooks: list[Any] = []

    def start(self, inputs: Any) -> None:
        """Before the first forward: listen at the parameters, if they are real."""
        is_first, self.is_first = self.is_first, False
        if not is_first or any(isinstance(value, FakeTensor) for value in inputs):
            return
        for place in self.places.values():
            parameter = inputs[place]
            if parameter.is_leaf and not parameter._backward_hooks:
                listener = partial(self.listen, place)
                self.hooks.append(parameter.register_hook(listener))

    def note(self, gradients: Any) -> None:
        """After the first backward: remember what the graph made."""
        if self.hooks:
            for number, place in self.places.items():
                if gradients[number] is not None:
                    self.sums[place] = checksum(gradients[number])

    def listen(self, place: int, gradient: torch.Tensor) -> None:
        """At a parameter: compare what arrives, once."""
        for handle in self.hooks:
            handle.remove()
        self.hooks.clear()
        made = self.sums.pop(place, None)
        name = self.names.get(place, "a parameter")
        if made is None or name in self.told or made == checksum(gradient):
            return
        self.told.add(name)
        warn(
            f"lowtide: {name} is used several times in a planned graph and once more "
            "around it. Its gradient is right, but its terms are added in another "
            "order than without lowtide, so the last bit may differ. Optimize a "
            "function that runs all of it to get the same bits."
        )


def _summed(piece: Piece) -> dict[int, int]:
    """Places among the gradients of those that are sums, with their inputs' places."""
    descriptions = outputs_of(piece.joint)[1][len(piece.forward_outputs) :]
    places: dict[int, int] = {}
    pairs = zip(piece.gradients, descriptions, strict=True)
    for number, (node, what) in enumerate(pairs):
        while isinstance(node, fx.Node) and node.target is _CAST:
            node = node.args[0]
        of = gradient_of(what)
        if of is not None and isinstance(node, fx.Node) and node.target is _ADD:
            places[number] = of
    return places

"""Backwards for gradients that arrive otherwise than was planned for."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import fx
from torch.fx.graph import _BoxedCodeGen

from lowtide.engine.capture.arrival import Tracer
from lowtide.engine.capture.eager import AS_OUTPUTS, Arrival, compute_as_eager
from lowtide.engine.capture.joint import read_joint
from lowtide.engine.capture.piece import Piece
from lowtide.engine.capture.step import step_of
from lowtide.engine.capture.zeros import without_tangents
from lowtide.engine.rewrite import backward_from, saved_name
from lowtide.step.schedule import sequence_from_kept


def boxed(module: fx.GraphModule) -> Callable[..., Any]:
    """The module as a function that takes a list and empties it."""
    module.graph.set_codegen(_BoxedCodeGen())
    module.recompile()
    forward = module.forward

    def run(args: list[Any]) -> Any:
        return forward(args)

    run._boxed_call = True  # type: ignore[attr-defined]
    return run


class OtherBackwards:
    """Backwards for when gradients arrive otherwise than was planned for.

    That is, for other outputs, in another layout, or under autocast. They start from
    what the planned forward saved. If they run the ops that were planned, they run them
    in that order; otherwise they make again what they need, so their gradients are
    right, but their peak is not planned.
    """

    def __init__(
        self,
        joint: fx.GraphModule,
        num_forward_outputs: int,
        saved: Sequence[str],
        tracer: Tracer,
        planned: Sequence[int],
    ) -> None:
        self.joints = {AS_OUTPUTS: joint}
        self.num_forward_outputs = num_forward_outputs
        self.saved, self.tracer, self.planned = saved, tracer, planned
        self.known: dict[tuple[frozenset[int], Arrival], Callable[..., Any]] = {}

    def find(
        self, absent: frozenset[int], arrival: Arrival, piece: Piece, args: list[Any]
    ) -> Callable[..., Any]:
        """The backward for gradients that arrive like this."""
        known = self.known.get((absent, arrival))
        if known is not None:
            return known
        joint = self.joint(arrival)
        reduced = without_tangents(joint, absent) if absent else joint
        if reduced is None:
            # The zeros reach an op we know nothing of, so they must be there.
            _fill_in_zeros(piece, args)
            return self.find(frozenset(), arrival, piece, args)
        self.known[absent, arrival] = self.build(reduced, absent, piece)
        return self.known[absent, arrival]

    def joint(self, arrival: Arrival) -> fx.GraphModule:
        if arrival not in self.joints:
            traced = self.tracer.joint(arrival)
            compute_as_eager(traced)
            self.joints[arrival] = traced
        return self.joints[arrival]

    def build(
        self, joint: fx.GraphModule, absent: frozenset[int], planned: Piece
    ) -> Callable[..., Any]:
        piece = read_joint(
            joint,
            num_forward_outputs=self.num_forward_outputs,
            absent_tangents=absent,
        )
        step = step_of(piece)
        if [op.name for op in step.ops] == [op.name for op in step_of(planned).ops]:
            return boxed(backward_from(piece, self.planned, self.saved))
        saved = set(self.saved)
        kept = [s for s in range(len(piece.storages)) if saved_name(piece, s) in saved]
        # An output that the forward did not save as well is out of reach.
        early = {s for op in step.ops[: step.turn] for s in op.writes}
        outputs = tuple(s for s in step.outputs if s in kept or s not in early)
        step = replace(step, outputs=outputs)
        sequence = sequence_from_kept(step, kept)
        backward = sequence[sequence.index(step.turn) + 1 :]
        return boxed(backward_from(piece, backward, self.saved))


def _fill_in_zeros(piece: Piece, args: list[Any]) -> None:
    first = len(args) - len(piece.tangents)
    for place, node in enumerate(piece.tangents):
        if args[first + place] is None:
            fake = node.meta["val"]
            args[first + place] = torch.zeros(
                fake.shape, dtype=fake.dtype, device=fake.device
            )

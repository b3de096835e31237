"""Backwards for gradients that do not arrive as planned."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import torch
from torch import fx
from torch.fx.graph import _BoxedCodeGen

from lowtide.engine.capture import recurrent
from lowtide.engine.capture.arrival import Tracer
from lowtide.engine.capture.eager import AS_OUTPUTS, Arrival
from lowtide.engine.capture.joint import read_joint
from lowtide.engine.capture.nodes import made_from, outputs_of, tangents_of
from lowtide.engine.capture.step import step_of
from lowtide.engine.capture.zeros import without_tangents
from lowtide.engine.graphs.rewrite import backward_from, saved_name
from lowtide.errors import InvalidScheduleError
from lowtide.step.carry import carried_over
from lowtide.step.schedule import sequence_from_kept, settled, with_frees
from lowtide.step.simulate import simulate

if TYPE_CHECKING:
    from lowtide.engine.graphs.orders import Variant, Way
    from lowtide.step.graph import StepGraph

Run = Callable[[list[Any]], Any]


def callable_of(module: fx.GraphModule) -> Run:
    """The module as a function that takes a list and empties it."""
    module.graph.set_codegen(_BoxedCodeGen())
    module.recompile()
    forward = module.forward

    def run(args: list[Any]) -> Any:
        with surroundings_of(module):
            return forward(args)

    run.module = module  # type: ignore[attr-defined]
    return run


@contextmanager
def surroundings_of(module: fx.GraphModule) -> Iterator[None]:
    """What holds while a graph runs: what autocast changes has been captured."""
    nodes = module.graph.find_nodes(op="call_function", target=recurrent.LAYER)
    workspaces = recurrent.with_workspaces() if nodes else nullcontext()
    with torch._C._DisableAutocast(), workspaces:
        yield


class OtherBackwards:
    """Backwards of one graph for gradients that do not arrive as planned.

    That is, for other outputs, in another layout, or under autocast. What is traced for
    them is brought into the form of what was planned by `as_planned`. They start from
    what the planned forward saved, and run what was planned in its order, as far as
    they have it. Their gradients are right, but their peak is not planned.
    """

    def __init__(
        self,
        joint: fx.GraphModule,
        num_forward_outputs: int,
        tracer: Tracer,
        as_planned: Callable[[fx.GraphModule], None],
    ) -> None:
        self.num_forward_outputs = num_forward_outputs
        self.tracer, self.as_planned = tracer, as_planned
        self.planned_joint = joint
        self.joints: dict[Any, fx.GraphModule] = {}

    def find(self, way: Way, absent: frozenset[int], arrival: Arrival) -> Run:
        """The backward of a forward that ran this way.

        `absent` are the places of the gradients that do not arrive, and `arrival` says
        how the others do.
        """
        known, key = way.variant.others, (absent, arrival, way.values)
        if key not in known:
            joint = self.joint(arrival, way.values)
            reduced = without_tangents(joint, absent) if absent else joint
            if reduced is None:
                # The zeros reach an op we know nothing of, so they must be there.
                whole = self.find(way, frozenset(), arrival)
                known[key] = _with_zeros(whole, way.tangents, _untouched(joint, absent))
            else:
                known[key] = self.build(reduced, absent, way.variant)
        return known[key]

    def joint(self, arrival: Arrival, values: tuple[int, ...]) -> fx.GraphModule:
        if arrival == AS_OUTPUTS:
            return self.planned_joint
        if (arrival, values) not in self.joints:
            traced = self.tracer.joint(arrival, values)
            self.as_planned(traced)
            self.joints[arrival, values] = traced
        return self.joints[arrival, values]

    def build(
        self, joint: fx.GraphModule, absent: frozenset[int], planned: Variant
    ) -> Run:
        piece = read_joint(
            joint,
            num_forward_outputs=self.num_forward_outputs,
            absent_tangents=absent,
        )
        step, saved = step_of(piece), planned.halves.saved
        kept = [s for s in range(len(piece.storages)) if saved_name(piece, s) in saved]
        # An output that the forward did not save as well is out of reach.
        early = {s for op in step.ops[: step.turn] for s in op.writes}
        outputs = tuple(s for s in step.outputs if s in kept or s not in early)
        step = replace(step, outputs=outputs)
        backward = _order(step, kept, planned)
        return callable_of(backward_from(piece, backward, saved))


def _order(step: StepGraph, kept: list[int], planned: Variant) -> list[int]:
    """The order that was planned, if it can be that of this backward.

    Otherwise, and where that needs less, what is missing is made again where it is
    needed first.
    """
    plain = sequence_from_kept(step, kept)
    start = plain.index(step.turn) + 1
    carried = carried_over(step_of(planned.piece), planned.orders.backward, step, kept)
    orders = [settled(step, [*plain[:start], *carried]), settled(step, plain)]

    def peak(order: list[int]) -> int:
        return simulate(step, with_frees(step, order)).peak_bytes

    try:
        return min(orders, key=peak)[start:]
    except InvalidScheduleError:
        return orders[1][start:]


def _untouched(joint: fx.GraphModule, absent: frozenset[int]) -> list[bool]:
    """For each of the graph's outputs, whether only absent gradients reach it.

    Such a gradient is not zero but missing, and an optimizer tells the two apart.
    """
    tangents = tangents_of(joint)
    gone = {tangents[place] for place in absent}
    found: list[bool] = []
    for value in outputs_of(joint)[0]:
        sources = made_from([value]).intersection(tangents)
        found.append(bool(sources) and sources <= gone)
    return found


def _with_zeros(
    run: Callable[..., Any],
    expected: Sequence[torch.Tensor],
    untouched: list[bool],
) -> Callable[..., Any]:
    """A backward that gets zeros for missing gradients, and passes on what misses."""

    def backward(args: list[Any]) -> list[Any]:
        first = len(args) - len(expected)
        for place, fake in enumerate(expected):
            if args[first + place] is None:
                args[first + place] = torch.zeros(
                    fake.shape, dtype=fake.dtype, device=fake.device
                )
        gradients = run(args)
        skipped = untouched[len(untouched) - len(gradients) :]
        return [None if s else g for s, g in zip(skipped, gradients, strict=True)]

    return backward

"""From what was captured to the step that is planned: surroundings and costs.

`prepare` is the one way: `lowtide.profile` and the planned call both take it. A step is
first read from its graphs (`unpriced`), which needs their fx nodes, and then priced,
which needs only plain descriptions of the calls, so that the graphs may have been seen
by another process.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import nn

from lowtide.engine.capture.call import Call, calls_of
from lowtide.engine.capture.piece import Piece
from lowtide.engine.capture.record import Recording, compose
from lowtide.engine.capture.step import piece_op, step_of
from lowtide.engine.costs import costs, state_bytes, total_cost
from lowtide.step.graph import Kind, StepGraph, Storage


@dataclass(frozen=True)
class Unpriced:
    """A step without costs, and for each op of its graphs the calls it makes."""

    step: StepGraph
    calls: dict[int, list[Call]]


def prepare(
    source: Piece | Unpriced,
    modules: Sequence[nn.Module],
    *,
    optimizer: torch.optim.Optimizer | None = None,
    how: Any = "measure",
    device: str | None = None,
    cache: bool = True,
    progress: Any = None,
) -> StepGraph:
    """The step as planners read it, with everything in memory and every op's cost.

    Args:
        source: One captured graph, or a whole step that was seen in a dry run.
        modules: What else is resident: their parameters, buffers and gradients.
        optimizer: Whose state is resident too.
        how: "measure" or "estimate", with `device`, as in `lowtide.profile`.
        device: See there.
        cache: See there.
        progress: Called with the number of distinct ops priced, and of all.
    """
    found = unpriced(source) if isinstance(source, Piece) else source
    step = _surrounded(found.step, modules, optimizer)
    flat = [call for own in found.calls.values() for call in own]
    prices = iter(costs(flat, how=how, device=device, cache=cache, progress=progress))
    ops = list(step.ops)
    for place, own in found.calls.items():
        cost = total_cost([next(prices) for _ in own])
        ops[place] = replace(
            ops[place],
            seconds=cost.seconds,
            spread=cost.spread,
            scratch_bytes=cost.scratch_bytes,
        )
    facts = {**step.facts, "how": how, "costs_of": device or ""}
    return replace(step, ops=tuple(ops), facts=facts)


def unpriced(source: Piece | Recording, *, name: str = "step") -> Unpriced:
    """The step of one graph, or of all graphs of a recorded step."""
    if isinstance(source, Piece):
        pieces, step = [source], step_of(source)
    else:
        pieces, step = source.pieces, compose(source, name=name)
    calls = {
        op.id: calls_of(piece_op(pieces[op.piece], _own_number(step, op.id)))
        for op in step.ops
        if op.piece >= 0 and op.opens < 0
    }
    return Unpriced(step, calls)


def _own_number(step: StepGraph, number: int) -> int:
    """An op's number within its own piece (see `step_of`)."""
    for piece in step.pieces:
        if number in piece.forward:
            return number - piece.forward.start
        if number in piece.backward:
            return number - piece.backward.start + len(piece.forward) + 1
    raise AssertionError(f"op {number} belongs to no piece")


def with_room_at_turn(step: StepGraph, nbytes: int) -> StepGraph:
    """The step with more bytes needed while what is outside runs, at its turn."""
    turn = step.ops[step.turn]
    turn = replace(turn, scratch_bytes=turn.scratch_bytes + nbytes)
    return replace(step, ops=(*step.ops[: turn.id], turn, *step.ops[turn.id + 1 :]))


def _surrounded(
    step: StepGraph,
    modules: Sequence[nn.Module],
    optimizer: torch.optim.Optimizer | None,
) -> StepGraph:
    """The step with what else stays in memory: other parameters, optimizer state."""
    here = sum(s.nbytes for s in step.storages if s.kind in ("parameter", "buffer"))
    gradients = sum(
        p.grad.untyped_storage().nbytes()
        for m in modules
        for p in m.parameters()
        if p.grad is not None
    )
    around: tuple[tuple[str, Kind, int], ...] = (
        ("parameters and buffers elsewhere", "parameter", _bytes_of(modules) - here),
        ("optimizer state", "optimizer_state", state_bytes(optimizer)),
        ("gradients from before", "gradient", gradients),
    )
    storages = list(step.storages)
    for name, kind, nbytes in around:
        if nbytes > 0:
            storages.append(
                Storage(len(storages), name, nbytes, kind=kind, resident=True)
            )
    return _with_outside_loss(replace(step, storages=tuple(storages)))


def _with_outside_loss(step: StepGraph) -> StepGraph:
    """A loss that is computed outside, and its gradient, live to the end."""
    unit = step.alignment_bytes
    turn = step.ops[step.turn]
    if step.turn < 0 or all(step.sizes[s] <= unit for s in turn.writes):
        return step
    loss = Storage(len(step.storages), "loss and its gradient", 2 * unit)
    turn = replace(turn, writes=(*turn.writes, loss.id))
    return replace(
        step,
        storages=(*step.storages, replace(loss, kind="temporary")),
        ops=(*step.ops[: turn.id], turn, *step.ops[turn.id + 1 :]),
        outputs=(*step.outputs, loss.id),
    )


def _bytes_of(modules: Sequence[nn.Module]) -> int:
    """Bytes of the modules' parameters and buffers, shared ones once."""
    storages: dict[int, int] = {}
    for module in modules:
        for value in (*module.parameters(), *module.buffers()):
            if isinstance(value, nn.UninitializedParameter | nn.UninitializedBuffer):
                continue
            storage = value.untyped_storage()
            storages[storage._cdata] = storage.nbytes()
    return sum(storages.values())

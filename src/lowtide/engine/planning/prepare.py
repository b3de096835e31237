"""From what was captured to the step that is planned: surroundings and costs.

`prepare` is the one way: `lowtide.profile` and the planned call both take it. A step is
first read from its graphs (`unpriced`), which needs their fx nodes, and then priced,
which needs only plain descriptions of the calls, so that the graphs may have been seen
by another process.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Unpack

from torch import nn
from torch.optim import Optimizer

from lowtide.engine.capture.call import Call, calls_of
from lowtide.engine.capture.piece import Piece
from lowtide.engine.capture.record import Recording, compose
from lowtide.engine.capture.step import numbered_ops, own_number, step_of
from lowtide.engine.capture.tensors import bytes_in, own_part
from lowtide.engine.costs.cost import Cost, total_cost
from lowtide.engine.costs.devices import find_device
from lowtide.engine.costs.optimizer import UpdateBytes, update_bytes
from lowtide.engine.costs.prices import Pricing, costs
from lowtide.engine.forms.head import AHEAD, Head
from lowtide.engine.forms.trial import default_parts, exact_parts
from lowtide.engine.graphs.outside import Outside
from lowtide.engine.ranks.agreement import bucket_bytes
from lowtide.step.analysis.summary import assumption
from lowtide.step.graph import Kind, Op, Region, StepGraph, Storage

# No single number takes more.
_NUMBER_BYTES = 16


@dataclass(frozen=True)
class Unpriced:
    """A step without costs, and for each op of its graphs the calls it makes.

    `heads` are those of the ops that run in parts, if these give the same bits.
    """

    step: StepGraph
    calls: dict[int, list[Call]]
    heads: dict[int, Head] = field(default_factory=dict[int, Head])


def prepare(
    source: Piece | Unpriced,
    modules: Sequence[nn.Module],
    *,
    optimizer: Optimizer | None = None,
    limit_bytes: int | None = None,
    **pricing: Unpack[Pricing],
) -> StepGraph:
    """The step as planners read it, with everything in memory and every op's cost.

    Args:
        source: One captured graph, or a whole step that was seen in a dry run.
        modules: What else is resident: their parameters, buffers and gradients.
        optimizer: Whose state is resident too.
        limit_bytes: How much may be in memory while ops are measured.
        pricing: As for `costs`.
    """
    how, device = pricing.get("how", "measure"), str(pricing.get("device") or "")
    bare = unpriced(source) if isinstance(source, Piece) else source
    step = _surrounded(bare.step, modules, optimizer)
    calls = [call for own in bare.calls.values() for call in own]
    room = None if limit_bytes is None else max(0, limit_bytes - step.resident_bytes)
    parameters = [p for m in modules for p in m.parameters()]
    lent = [own_part(p).detach() for p in parameters if not nn.parameter.is_lazy(p)]
    prices = iter(costs(calls, room_bytes=room, lent=lent, **pricing))
    ops = list(step.ops)
    for place, own in bare.calls.items():
        cost = total_cost([next(prices) for _ in own])
        if isinstance(source, Piece):
            source.scratch[place] = cost.scratch_bytes
        if place in bare.heads and how == "measure":
            ops[place], cost = _tried(ops[place], cost, bare.heads[place])
        ops[place] = replace(
            ops[place],
            seconds=cost.seconds,
            spread=cost.spread,
            scratch_bytes=ops[place].scratch_bytes + cost.scratch_bytes,
        )
    facts = {**step.facts, "how": how, "costs_of": device}
    priced = replace(step, ops=tuple(ops), facts=facts)
    return _on_device(priced, device) if how == "estimate" and device else priced


def _tried(op: Op, cost: Cost, head: Head) -> tuple[Op, Cost]:
    """An op that runs in parts as it does here; one that makes nothing if it cannot."""
    parts, foreseen = exact_parts(head), default_parts(head)
    name = op.target.removeprefix("lowtide::")
    # Without blocks of tokens, gradients ahead cost more than they were taken to.
    if (
        parts is None
        or foreseen is None
        or (name in AHEAD and bool(parts.tokens) != bool(foreseen.tokens))
    ):
        return replace(op, reads=(), writes=(), over=-1), cost
    scratch = op.scratch_bytes - head.scratch_bytes(name, foreseen)
    scratch += head.scratch_bytes(name, parts)
    # The cost is that of the whole.
    own = replace(cost, scratch_bytes=int(cost.scratch_bytes * head.share(parts)))
    return replace(op, scratch_bytes=scratch), own


def _on_device(step: StepGraph, device: str) -> StepGraph:
    """The step with the sizes that another device's allocator hands out.

    What else would be different there is not known here, and said.
    """
    unit = find_device(device).alignment_bytes
    note = (
        f"{assumption(step)} So attention is that of {step.device}, and convolutions "
        f"have no workspace. Sizes are rounded to {unit} bytes as the allocator of "
        f"{device} does. A model that is profiled on such a device has that device's "
        "graph."
    )
    return replace(step, alignment_bytes=unit, notes=(*step.notes, note))


def unpriced(source: Piece | Recording, *, name: str = "step") -> Unpriced:
    """The step of one graph, or of all graphs of a recorded step."""
    if isinstance(source, Piece) and source.calls:
        return Unpriced(step_of(source), source.calls)
    if isinstance(source, Piece):
        pieces, step = [source], step_of(source)
    else:
        pieces, step = source.pieces, compose(source, name=name)
    calls: dict[int, list[Call]] = {}
    heads: dict[int, Head] = {}
    rows = step.pieces
    op_of = [numbered_ops(piece) for piece in pieces]
    for op in step.ops:
        if op.piece >= 0 and op.opens < 0 and not op.spends:
            number = own_number(rows[op.piece], op.id)
            assert number is not None, f"op {op.id} belongs to another piece"
            own = op_of[op.piece][number]
            calls[op.id] = calls_of(own)
            if own.form is not None:
                heads[op.id] = own.form.head
    return Unpriced(step, calls, heads)


def with_room_at_turn(step: StepGraph, nbytes: int) -> StepGraph:
    """The step with more bytes needed while what is outside runs, at its turn."""
    turn = step.ops[step.turn]
    return _with_op(step, replace(turn, scratch_bytes=turn.scratch_bytes + nbytes))


def with_guessed_room(step: StepGraph, piece: Piece) -> StepGraph:
    """With room for a loss outside: three times the outputs that it starts from."""
    tangents = [s for n in piece.arriving_tangents for s in piece.storage_of[n]]
    room = 3 * sum(step.sizes[s] for s in tangents if step.storages[s].nbytes > 64)
    return with_room_at_turn(step, room)


def _with_op(step: StepGraph, op: Op) -> StepGraph:
    return replace(step, ops=(*step.ops[: op.id], op, *step.ops[op.id + 1 :]))


def with_outside(step: StepGraph, outside: Outside) -> StepGraph:
    """The step with what the code outside its graphs was seen to need."""
    outside = outside.at(
        sum(step.storages[s].nbytes for s in step.ops[step.turn].writes)
    )
    step = with_room_at_turn(step, max(0, outside.room_bytes - outside.held_bytes))
    if not outside.held_bytes:
        return step
    return _with_held(step, "kept by code outside", outside.held_bytes)


def with_beside(step: StepGraph, nbytes: int) -> StepGraph:
    """The step with this many more bytes in memory from beginning to end."""
    return _with_resident(step, "beside the planned graphs", "temporary", nbytes)


def _with_resident(step: StepGraph, name: str, kind: Kind, nbytes: int) -> StepGraph:
    if nbytes <= 0:
        return step
    more = Storage(len(step.storages), name, nbytes, kind=kind, resident=True)
    return replace(step, storages=(*step.storages, more))


def _with_held(step: StepGraph, name: str, nbytes: int) -> StepGraph:
    """The step with bytes that appear at its turn and stay to the end."""
    turn, place = step.ops[step.turn], len(step.storages)
    step = _with_op(step, replace(turn, writes=(*turn.writes, place)))
    held = Storage(place, name, nbytes, kind="temporary")
    return replace(
        step, storages=(*step.storages, held), outputs=(*step.outputs, place)
    )


def _surrounded(
    step: StepGraph, modules: Sequence[nn.Module], optimizer: Optimizer | None
) -> StepGraph:
    """The step with what else stays in memory: other parameters, optimizer state."""
    here = sum(s.nbytes for s in step.storages if s.kind in ("parameter", "buffer"))
    update = UpdateBytes(0, 0) if optimizer is None else update_bytes(optimizer)
    values = [v for m in modules for v in (*m.parameters(), *m.buffers())]
    elsewhere = bytes_in([v for v in values if not nn.parameter.is_lazy(v)]) - here
    before = gradient_bytes(modules)
    name = "parameters and buffers elsewhere"
    step = _with_resident(step, name, "parameter", elsewhere)
    step = _with_resident(step, "optimizer state", "optimizer_state", update.state)
    step = _with_resident(step, "gradients from before", "gradient", before)
    buckets = bucket_bytes()
    step = _with_resident(step, "buckets of gradients", "gradient", buckets)
    step = _with_outside_loss(step)
    if not update.temporaries or any(op.spends for op in step.ops):
        return step
    return _with_update(step, update.temporaries)


def _with_update(step: StepGraph, nbytes: int) -> StepGraph:
    """The step with the optimizer's update at its end, as one op that needs so much."""
    update = Op(
        id=len(step.ops),
        name="optimizer update",
        target="lowtide::update",
        reads=(),
        writes=(),
        scratch_bytes=nbytes,
        phase="optimizer",
        piece=-1,
        once="is the optimizer's update",
        opens=len(step.regions),
        module="(optimizer)",
    )
    regions = (*step.regions, Region(-1, "optimizer"))
    return replace(step, ops=(*step.ops, update), regions=regions)


def _with_outside_loss(step: StepGraph) -> StepGraph:
    """A loss that is computed outside, and its gradient, live to the end."""
    unit = step.alignment_bytes
    turn = step.ops[step.turn]
    inside = all(step.storages[s].nbytes <= _NUMBER_BYTES for s in turn.writes)
    if step.turn < 0 or inside:
        return step
    return _with_held(step, "loss and its gradient", 2 * unit)


def gradient_bytes(modules: Sequence[nn.Module]) -> int:
    """Bytes of the gradients that are there before the step."""
    return bytes_in([p.grad for m in modules for p in m.parameters()])

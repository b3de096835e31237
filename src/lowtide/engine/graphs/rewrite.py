"""Forward and backward graphs that do exactly what a schedule says.

NOTE(torch>=2.13,<2.16): follows AOTAutograd's convention for partitions: the forward
returns its outputs and then what is saved; the backward takes what was saved and then
the tangents.

Each graph is emitted op by op in the schedule's order. Views are derived again next to
where they are read. Items of a tuple are taken out right behind the op that made it,
because a tuple holds all of its items. Nothing is freed explicitly: the generated code
drops each name after its last use, which is where the schedule's frees are.
"""

from __future__ import annotations

import operator
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, cast

import torch
from torch import fx

from lowtide.engine.capture.piece import (
    Follower,
    Form,
    Piece,
    PieceOp,
    is_number,
    is_object,
    tensors_of,
)
from lowtide.engine.capture.step import numbered_ops, own_number, step_of
from lowtide.engine.forms.draws import (
    draw,
    draw_again,
    drop_by_mask,
    generator_state,
    masking_scale,
)
from lowtide.engine.forms.overwrite import emit_over, is_last_use, write_over
from lowtide.engine.forms.trial import exact_parts
from lowtide.errors import CaptureError, PlanMismatchError
from lowtide.step.plan import Plan
from lowtide.step.schedule import with_frees
from lowtide.step.simulate import simulate

aten = torch.ops.aten


class Orders(NamedTuple):
    """Numbers of a piece's ops (as in `step_of`) in the order in which they run."""

    forward: Sequence[int]
    backward: Sequence[int]


def keep_everything(piece: Piece) -> Orders:
    """The order of the unplanned step."""
    step = step_of(piece)
    turn = step.baseline.index(step.turn)
    return Orders(step.baseline[:turn], step.baseline[turn + 1 :])


def orders_of(plan: Plan, piece: Piece, place: int = 0) -> Orders:
    """What a plan says about one piece.

    Of several pieces with the same fingerprint, `place` says which one it is. An op of
    the backward may run before the turn if nothing that it reads comes from outside; it
    then belongs to the forward.

    Raises:
        PlanMismatchError: the plan was made for other graphs.
        InvalidScheduleError: the plan would run this graph wrongly. Plans are files, so
            nothing is believed that the simulator does not accept.
    """
    step = step_of(piece)
    equal = [p for p in plan.pieces if p.fingerprint == step.fingerprint]
    if not equal:
        known = ", ".join(p.fingerprint for p in plan.pieces) or plan.fingerprint
        seen = f"the graph that arrived has {len(piece.ops)} ops"
        raise PlanMismatchError(known, step.fingerprint, seen)
    wanted = equal[place % len(equal)]
    before: list[int] = []
    after: list[int] = []
    order = before
    for number in plan.ops:
        if number == wanted.backward.start - 1:
            order = after
        own = own_number(wanted, number)
        if own is not None:
            order.append(own)
    simulate(step, with_frees(step, [*before, step.turn, *after]))
    return Orders(before, after)


@dataclass(frozen=True)
class Halves:
    """The two graph modules of a piece, and the names of what goes between them."""

    forward: fx.GraphModule
    backward: fx.GraphModule
    saved: tuple[str, ...]


def split(piece: Piece, orders: Orders, also_save: Sequence[str] = ()) -> Halves:
    """The graphs that run a piece's ops in these orders.

    `also_save` are inputs to hand to the backward even if it does not read them.
    """
    op_of = numbered_ops(piece)
    forward_ops = [op_of[n] for n in orders.forward]
    backward_ops = [op_of[n] for n in orders.backward]
    wanted = frozenset(s for op in forward_ops + backward_ops for s in op.reads)
    second = _Emitter(piece, wanted)
    gradients = second.backward(backward_ops, also_save)
    first = _Emitter(piece, wanted)
    outputs = first.forward(forward_ops)
    saved = [first.value_to_save(what) for what in second.saved]
    # Numbers go last, and arrive first; objects stand behind tensors on either side: so
    # AOTAutograd has it.
    saved.sort(key=lambda node: 2 * is_number(node) + is_object(node))
    first.graph.output((*outputs, *saved))
    second.graph.output(tuple(gradients))
    names = tuple(saved_name(piece, what) for what in second.saved)
    return Halves(first.module(piece.joint), second.module(piece.joint), names)


def backward_from(
    piece: Piece, backward: Sequence[int], saved: Sequence[str]
) -> fx.GraphModule:
    """Another backward for a forward that saves exactly this."""
    op_of = numbered_ops(piece)
    ops = [op_of[n] for n in backward]
    emitter = _Emitter(piece, frozenset(s for op in ops for s in op.reads))
    gradients = emitter.backward(ops, saved)
    missing = [saved_name(piece, what) for what in emitter.saved][len(saved) :]
    if missing:
        raise CaptureError(
            f"other outputs are differentiated than were planned for, and "
            f"{', '.join(missing)} was not kept",
            fix="Give lowtide.optimize a function that returns only the loss",
        )
    emitter.graph.output(tuple(gradients))
    return emitter.module(piece.joint)


# What goes from forward to backward: a storage by its number, or an input of the piece.
# Inputs go by themselves, because several may lie in one storage.
Saved = int | fx.Node


def saved_name(piece: Piece, what: Saved) -> str:
    """The name under which a storage or an input goes from forward to backward."""
    if isinstance(what, fx.Node):
        return what.name
    return piece.bases.get(what, piece.storages[what]).name


class GraphWriter:
    """Writes one graph. `values` maps nodes of the old to what holds their value now.

    What a backward takes from its forward is in `saved`; its placeholders stand before
    the `first_tangent`, those of neither tensors nor numbers from `first_object` on.
    """

    def __init__(self) -> None:
        self.graph = fx.Graph()
        self.values: dict[fx.Node, fx.Node] = {}
        self.saved: dict[Any, fx.Node] = {}
        self.first_object: fx.Node | None = None
        self.first_tangent: fx.Node | None = None

    def placeholder(self, node: fx.Node) -> fx.Node:
        copy = self.graph.placeholder(node.name)
        copy.meta = dict(node.meta)
        return copy

    def module(self, like: fx.GraphModule) -> fx.GraphModule:
        """The graph that was written, with what its nodes name in the old one."""
        self.graph.lint()
        return fx.GraphModule(like, self.graph)


class _Emitter(GraphWriter):
    """Writes one graph of a piece.

    Generator states and packed copies, which the captured graph does not know, are in
    `states`; they are made only if they are among the storages that are `wanted`.
    """

    def __init__(self, piece: Piece, wanted: frozenset[int]) -> None:
        super().__init__()
        self.piece, self.wanted = piece, wanted
        self.states: dict[int, fx.Node] = {}

    def forward(self, ops: Sequence[PieceOp]) -> list[Any]:
        for node in self.piece.primals:
            self.values[node] = self.placeholder(node)
        self.run_all(ops)
        return [self.map(n) for n in self.piece.forward_outputs]

    def backward(self, ops: Sequence[PieceOp], saved: Sequence[str]) -> list[Any]:
        for place, node in enumerate(self.piece.tangents):
            copy = self.placeholder(node)
            self.first_tangent = self.first_tangent or copy
            if place not in self.piece.absent_tangents:
                self.values[node] = copy
        known: dict[str, Saved] = {
            saved_name(self.piece, s): s for s in range(len(self.piece.storages))
        }
        known |= {node.name: node for node in self.piece.primals}
        for name in saved:
            self.save(known[name])
        self.run_all(ops)
        return [self.map(n) for n in self.piece.gradients]

    # Values.

    def map(self, argument: Any) -> Any:
        return fx.map_arg(argument, self.value)

    def value(self, node: fx.Node) -> fx.Node:
        """The node that holds this value here: known, derived, or saved."""
        known = self.values.get(node)
        if known is not None:
            return known
        if node.op == "get_attr":
            made = self.graph.node_copy(node)
        elif node in self.piece.views and not self.is_item_of_op(node):
            made = self.graph.node_copy(node, self.value)
            if made.target is aten.view.default:
                # As eager has it in a backward: strides may be others than foreseen.
                made.target = aten.reshape.default
        elif node.op == "placeholder":
            made = self.save(node)
        else:
            (storage,) = self.piece.storage_of[node]
            made = self.save(storage)
        self.values[node] = made
        return made

    def is_item_of_op(self, node: fx.Node) -> bool:
        source = node.args[0]
        return (
            node.target is operator.getitem
            and isinstance(source, fx.Node)
            and source not in self.piece.views
        )

    def save(self, what: Saved) -> fx.Node:
        """A value that the backward takes from the forward."""
        base = self.base_of(what)
        if base is not None and base.op == "placeholder":
            what = base
        if what in self.saved:
            return self.saved[what]
        before = self.first_tangent
        assert before is not None, f"{saved_name(self.piece, what)} is not made before"
        if base is not None and is_number(base):
            before = next(n for n in self.graph.nodes if not is_number(n))
        elif base is None or not is_object(base):
            before = self.first_object or before
        with self.graph.inserting_before(before):
            # A parameter's name is fixed even where fx renames its node, so it must
            # not be the name of any node emitted so far.
            copy = self.saved[what] = self.graph.placeholder(f"saved_{what}")
        if base is not None:
            copy.meta = dict(base.meta)
            self.first_object = self.first_object or (copy if is_object(base) else None)
        else:
            assert isinstance(what, int)
            copy.meta["val"] = self.fake_state(what)
        return copy

    def base_of(self, what: Saved) -> fx.Node | None:
        return what if isinstance(what, fx.Node) else self.piece.bases.get(what)

    def value_to_save(self, what: Saved) -> fx.Node:
        base = self.base_of(what)
        return self.states[cast(int, what)] if base is None else self.value(base)

    def fake_state(self, storage: int) -> torch.Tensor:
        like = next(t for n in self.piece.primals for t in tensors_of(n))
        with like.fake_mode:  # type: ignore[attr-defined]
            if storage in self.piece.alike:
                return torch.empty_like(self.piece.alike[storage])
            return torch.empty(self.piece.storages[storage].nbytes, dtype=torch.uint8)

    # Ops.

    def run_all(self, ops: Sequence[PieceOp]) -> None:
        for place, op in enumerate(ops):
            is_over = op.over >= 0 and is_last_use(op.over, ops[place + 1 :])
            if op.form is not None:
                self.run_form(op, op.form, is_over)
            elif is_over:
                self.write_over(op)
            else:
                self.run(op)

    def write_over(self, op: PieceOp) -> None:
        """Run the op and the first that follows it in one, over an argument."""
        first, *others = op.then
        made = emit_over(self.graph, op, self.map)
        # The argument is gone, and so are views of what an earlier run has made.
        self.forget(op.over, *op.writes)
        self.values[first.node] = made
        for follower in others:
            self.follow(follower)

    def run(self, op: PieceOp) -> None:
        if op.variant == "unpack":
            self.unpack(op)
            return
        if op.variant == "plain":
            if op.state in self.wanted:
                made = self.draw(op, self.save_generator_state(op), draw)
            else:
                made = self.graph.node_copy(op.node, self.value)
        elif op.variant == "replay":
            made = self.draw(op, self.state(op.state), draw_again)
        elif op.variant == "masked":
            made = self.drop(op)
        else:
            # The running statistics are not mapped: they have changed by now.
            tensor, weight, bias = self.map(op.node.args[:3])
            training, _, eps = op.node.args[5:8]
            made = self.graph.call_function(
                aten._native_batch_norm_legit.no_stats,
                (tensor, weight, bias, training, 0.0, eps),
            )
            made.meta = {**op.node.meta, "val": tuple(op.node.meta["val"][:3])}
        self.forget(*op.writes)
        self.values[op.node] = made
        if op.variant == "masked":
            self.values[_item(op.node, 0)] = self.values.pop(op.node)
        else:
            self.take_out_items(op, made)
        for follower in op.then:
            self.follow(follower)
        for p in op.packs:
            if p.packed in self.wanted:
                given = (self.value(p.node), *p.how.given)
                self.states[p.packed] = self.graph.call_function(p.how.pack, given)
                self.states[p.packed].meta["val"] = self.fake_state(p.packed)

    def forget(self, *storages: int) -> None:
        """Values in these storages are not there any more."""
        for s in storages:
            for node in self.piece.nodes_of.get(s, ()):
                self.values.pop(node, None)

    def unpack(self, op: PieceOp) -> None:
        (p,) = op.packs
        self.forget(p.storage)
        given = (self.state(p.packed), *p.how.layout)
        made = self.values[p.node] = self.graph.call_function(p.how.unpack, given)
        made.meta = dict(p.node.meta)

    def run_form(self, op: PieceOp, form: Form, is_over: bool) -> None:
        """Run other ops in their other form; all of its results are in one tuple."""
        parts = exact_parts(form.head)
        if parts is None:
            raise CaptureError(
                f"{form.name} gives other bits on this device than the ops it is for",
                fix="Plan the step on this device",
            )
        taken = (*map(self.state, form.takes), is_over) if form.takes else ()
        given = (*self.map(form.given), *taken, parts)
        made = self.graph.call_function(form.call, given)
        left = [self.fake_state(s) for s in form.leaves]
        made.meta["val"] = (*(node.meta["val"] for node in form.results), *left)
        self.forget(*op.writes, *(f.over for f in op.then))
        for place, what in enumerate((*form.results, *form.leaves)):
            item = self.graph.call_function(operator.getitem, (made, place))
            item.meta["val"] = made.meta["val"][place]
            if isinstance(what, fx.Node):
                item.meta = dict(what.meta)
                self.values[what] = item
            else:
                self.states[what] = item
        for follower in op.then:
            self.follow(follower)

    def follow(self, follower: Follower) -> None:
        """Overwrite the result of the op before; what was there is then gone."""
        node, target = follower.node, follower.target
        args: Any = self.map(node.args)
        if follower.out:
            target = write_over
            given = (follower.target, follower.out, self.value(follower.argument))
            args = (*given, node.target, *args)
        kwargs = self.map(node.kwargs)
        made = self.graph.create_node(
            "call_function", target, args, kwargs, name=node.name
        )
        made.meta = dict(node.meta)
        self.forget(follower.over)
        self.values[node] = made

    def take_out_items(self, op: PieceOp, made: fx.Node) -> None:
        if not isinstance(op.node.meta.get("val"), tuple | list):
            return
        del self.values[op.node]
        made_now = {*op.writes, *(f.over for f in op.then)}
        for user in op.node.users:
            if user.target is operator.getitem and made_now.issuperset(
                self.piece.storage_of[user]
            ):
                item = self.graph.call_function(operator.getitem, (made, user.args[1]))
                item.meta = dict(user.meta)
                self.values[user] = item

    def drop(self, op: PieceOp) -> fx.Node:
        """Dropout by a mask that is there; it is a value of its own, not in a tuple."""
        value = op.node.meta["val"][0]
        scale = masking_scale(value, cast(float, op.node.args[1]))
        given = (self.map(op.node.args[0]), self.value(_item(op.node, 1)), scale)
        made = self.graph.call_function(drop_by_mask, given)
        made.meta = {**op.node.meta, "val": value}
        return made

    def draw(self, op: PieceOp, state: fx.Node, how: Any) -> fx.Node:
        arguments: Any = (state, op.node.target, *self.map(op.node.args))
        made = self.graph.call_function(how, arguments, dict(self.map(op.node.kwargs)))
        made.meta = dict(op.node.meta)
        return made

    def save_generator_state(self, op: PieceOp) -> fx.Node:
        """Before a random op that is replayed later: where its generator stands."""
        device = tensors_of(op.node)[0].device
        state = self.graph.call_function(generator_state, (str(device),))
        state.meta["val"] = self.fake_state(op.state)
        self.states[op.state] = state
        return state

    def state(self, storage: int) -> fx.Node:
        if storage not in self.states:
            self.states[storage] = self.save(storage)
        return self.states[storage]


def _item(node: fx.Node, place: int) -> fx.Node:
    return next(user for user in node.users if user.args[1] == place)

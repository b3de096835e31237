"""Finds the heads of language models with their losses, and offers them in parts.

What is looked for is a matrix product, the cross entropy of its rows, and the gradients
of both (see `forms/head.py`). Only reshapes and a change of type may stand in between,
and nothing else may read what is never there in parts.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, cast

import torch
from torch import fx
from torch.utils import _pytree as pytree

from lowtide.engine.capture.nodes import reached
from lowtide.engine.capture.piece import Form, Piece, PieceOp
from lowtide.engine.capture.tensors import storage_record
from lowtide.engine.forms.head import (
    Head,
    Layout,
    Loss,
    Read,
    head_ahead,
    head_arrived,
    head_gradients,
    head_loss,
)
from lowtide.engine.forms.trial import default_parts

aten = torch.ops.aten

_PRODUCTS = (aten.mm.default, aten.addmm.default)
_RESHAPES = (
    aten.view.default,
    aten._unsafe_view.default,
    aten.detach.default,
    aten.alias.default,
)
_TURNS = (aten.t.default, aten.permute.default, aten.transpose.int)


def find_heads(piece: Piece) -> list[PieceOp]:
    """Forms of the heads of a piece; each stands behind the op that it is a form of."""
    finder = _Finder(piece)
    return [
        form
        for op in piece.ops
        if op.node.target is aten.nll_loss_forward.default
        for form in finder.forms(op)
    ]


@dataclass(slots=True)
class _Found:
    """The nodes of a head: its product, its change of type, its log-softmax."""

    product: fx.Node
    cast: fx.Node | None
    logs: fx.Node
    bias: fx.Node | None
    hidden: fx.Node
    matrix: fx.Node


@dataclass(slots=True)
class _Backward:
    """The gradients of a head.

    Whether that of the matrix is transposed, the first node, the ops between, and the
    nodes of the results: of what it reads, of its matrix, of its bias.
    """

    is_transposed: bool
    sent: Any
    ops: tuple[PieceOp, ...]
    results: tuple[fx.Node, ...]


class _Finder:
    def __init__(self, piece: Piece) -> None:
        self.piece = piece
        self.owner = {op.node: op for op in piece.ops}
        for op in piece.ops:
            self.owner.update((f.node, op) for f in op.then)

    def forms(self, op: PieceOp) -> list[PieceOp]:
        """The forms of one loss, and of its gradients."""
        logs, target, weight, reduction, ignore_index = op.node.args
        found = self.head(logs) if weight is None else None
        if found is None or not isinstance(target, fx.Node):
            return []
        told: Any = (reduction, ignore_index, found.logs.meta["val"].dtype)
        loss = Loss(*told)
        backward = self.backward(op.node, found)
        head = Head(
            _layout(found.hidden),
            _layout(found.matrix),
            None if found.bias is None else _layout(found.bias),
            loss,
            is_transposed=backward is not None and backward.is_transposed,
        )
        parts = default_parts(head)
        read: Any = (found.hidden, found.matrix, found.bias, target)
        sized = self.piece.storages_in((*read, found.product))
        if parts is None or not self.piece.formulas.keys().isdisjoint(sized):
            return []
        made_of = self.ops(found.product, found.cast, found.logs)
        items = sorted(op.node.users, key=lambda user: cast(int, user.args[1]))
        given, results = (Read(*read), loss), tuple(items)
        forward = Form("head_loss", head_loss, given, results, (*made_of, op), head)
        forms = [self.form([op], forward)]
        if backward is not None and op.is_forward:
            late = self.late(backward, forward)
            forms.append(self.form(self.ops(*late.results), late))
            if not found.bias and reduction:
                forms += self.ahead(op, backward, forward, late, bool(parts.tokens))
        return [form for form in forms if form is not None]

    def late(self, backward: _Backward, forward: Form) -> Form:
        """The gradients of a head, in parts."""
        read, loss = forward.given
        product = forward.made_of[:1]
        ends = self.ops(*backward.results)
        gradient, total_weight = backward.sent.args[0], backward.sent.args[6]
        return Form(
            "head_gradients",
            head_gradients,
            (gradient, read, total_weight, loss, backward.is_transposed),
            backward.results,
            (*forward.made_of[:-1], *backward.ops, *product, *backward.ops, *ends),
            forward.head,
        )

    def ahead(
        self,
        op: PieceOp,
        backward: _Backward,
        forward: Form,
        late: Form,
        at_once: bool,
    ) -> list[PieceOp]:
        """The gradients with the loss, and what hands them on when theirs arrives."""
        hidden, matrix = backward.results
        first = forward.results[0]
        likes = {f"{n.name} ahead": n.meta["val"] for n in (matrix, hidden, first)}
        leaves = tuple(self.ours(name, value) for name, value in likes.items())
        ends = self.ops(matrix, hidden)
        product = () if at_once else forward.made_of[:1]
        early = replace(
            forward,
            name="head_ahead",
            call=head_ahead,
            given=(*forward.given, backward.is_transposed),
            made_of=(*forward.made_of, *backward.ops, *product, *ends),
            leaves=leaves,
        )
        arrived = replace(
            late,
            name="head_arrived",
            call=head_arrived,
            results=(matrix, hidden),
            made_of=(),
            takes=leaves,
        )
        made, done = self.form([op], early), self.form(ends, arrived)
        return [made, done] if made is not None and done is not None else []

    def ours(self, name: str, like: torch.Tensor) -> int:
        """A new storage for a value that the captured graph does not know."""
        number = len(self.piece.storages)
        nbytes = like.numel() * like.element_size()
        record = storage_record(like, number, name, nbytes, "temporary", False)
        self.piece.storages.append(record)
        self.piece.alike[number] = like
        return number

    def head(self, node: Any) -> _Found | None:
        """The head of which this is the log-softmax."""
        logs = _unshaped(node)
        if logs.target is not aten._log_softmax.default or logs.args[2] is not False:
            return None
        value = logs.meta["val"]
        product = _unshaped(logs.args[0])
        changed = None
        if _is_cast(product):
            changed, product = product, _unshaped(product.args[0])
        if (
            product.target not in _PRODUCTS
            or product.kwargs
            or value.dim() != 2
            or logs.args[1] not in (1, -1)
            or value.device.type != "cpu"
            or not value.dtype.is_floating_point
            or product.meta["val"].shape != value.shape
        ):
            return None
        *biases, hidden, matrix = cast(tuple[fx.Node, ...], product.args)
        bias = biases[0] if biases else None
        if bias is not None and bias.meta["val"].dim() != 1:
            return None
        return _Found(product, changed, logs, bias, hidden, matrix)

    def backward(self, loss: fx.Node, found: _Found) -> _Backward | None:
        """The gradients of a head, if nothing else is made from those of its logits."""
        sent = [
            n
            for n in self.piece.joint.graph.find_nodes(
                op="call_function", target=aten.nll_loss_backward.default
            )
            if _unshaped(n.args[1]) is found.logs and n.args[6].args[0] is loss
        ]
        if len(sent) != 1:
            return None
        (follower, *others) = sent[0].users
        if others or follower.target is not aten._log_softmax_backward_data.default:
            return None
        if _unshaped(follower.args[1]) is not found.logs:
            return None
        same = reached(
            [follower],
            lambda n: [u for u in n.users if _passes_on(u) or _is_cast(u)],
        )
        casts = [n for n in same if _is_cast(n)]
        if len(casts) != (found.cast is not None):
            return None
        readers = {u for n in same for u in n.users if u not in same}
        kinds = {self.result(reader, same, found): reader for reader in readers}
        names = ["hidden", "matrix", "bias"][: 2 + (found.bias is not None)]
        is_transposed = "turned" in kinds
        if is_transposed:
            kinds["matrix"] = kinds.pop("turned")
        if len(readers) != len(names) or kinds.keys() != set(names):
            return None
        back = self.ops(sent[0], *casts)
        results = tuple(kinds[name] for name in names)
        return _Backward(is_transposed, sent[0], back, results)

    def result(self, node: fx.Node, sent: set[fx.Node], found: _Found) -> str:
        """Which gradient this makes from that of the logits."""
        if node.target is aten.sum.dim_IntList and node.args[1:] == ([0], True):
            return "bias"
        if node.target is not aten.mm.default:
            return ""
        first, second = cast(tuple[fx.Node, fx.Node], node.args)
        shape = found.product.meta["val"].shape
        if first in sent and first.meta["val"].shape == shape:
            is_turned = self.is_same(second, found.matrix, is_turned=True)
            return "hidden" if is_turned and second not in sent else ""
        if first in sent and second not in sent:
            return "matrix" if self.is_same(second, found.hidden) else ""
        if second in sent and second.meta["val"].shape == shape:
            is_turned = self.is_same(first, found.hidden, is_turned=True)
            return "turned" if is_turned else ""
        return ""

    def is_same(
        self, node: fx.Node, other: fx.Node, *, is_turned: bool = False
    ) -> bool:
        """Whether both are the same numbers in the same layout, or one transposed."""
        layout = _layout(other)
        if is_turned:
            layout = Layout(layout.shape[::-1], layout.stride[::-1], layout.dtype)
        at = node.meta["val"].storage_offset() == other.meta["val"].storage_offset()
        stored = self.piece.storage_of
        return at and stored[node] == stored[other] and _layout(node) == layout

    def ops(self, *nodes: fx.Node | None) -> tuple[PieceOp, ...]:
        """The ops of which these nodes are part, each once."""
        found = {id(self.owner[n]): self.owner[n] for n in nodes if n is not None}
        return tuple(found.values())

    def form(self, ends: Sequence[PieceOp], form: Form) -> PieceOp | None:
        """The form as an op; None if what follows its ops reads more than they do."""
        op = ends[0]
        then = tuple(f for end in ends for f in end.then)
        more = self.piece.storages_in(a for f in then for a in f.node.all_input_nodes)
        reads = self.piece.storages_in(pytree.tree_leaves(form.given))
        made = {f.over for f in then}
        if any(end.once for end in ends) or not made.union(reads).issuperset(more):
            return None
        writes = tuple(s for end in ends for s in end.writes)
        return PieceOp(
            op.node,
            "form",
            (*reads, *form.takes),
            (*writes, *form.leaves),
            is_forward=op.is_forward,
            then=then,
            over=form.takes[0] if form.takes else -1,
            form=form,
        )


def _layout(node: fx.Node) -> Layout:
    value = node.meta["val"]
    return Layout(tuple(value.shape), tuple(value.stride()), value.dtype)


def _unshaped(node: Any) -> fx.Node:
    """What a node only reshapes."""
    while node.target in _RESHAPES:
        node = node.args[0]
    return node


def _passes_on(node: fx.Node) -> bool:
    return node.target in _RESHAPES or node.target in _TURNS


def _is_cast(node: fx.Node) -> bool:
    """Whether it only changes the type of its argument."""
    given = set(node.kwargs)
    return node.target is aten._to_copy.default and "memory_format" not in given

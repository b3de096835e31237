"""Ops that write their result over an argument that nobody else reads.

NOTE(torch>=2.13,<2.16): asks the dispatcher which in-place kernels a device has.

Capture makes every op leave a result of its own, also where the model (`ReLU(inplace)`)
or autograd (the sum of two gradients) works in place. Here elementwise ops go back into
the op whose result they are the only reader of: the two become one op that writes one
storage, so the value between them takes no memory beside its successor. Nothing that a
plan could use is lost, because the value between can never be worth more than the one
made from it: both have the same size, and nothing else reads it.

A softmax along rows that lie one behind the other writes each row only after it has
read it, on the CPU, and so does its backward: they too go over their argument. That
leaves one copy of a language model's logits where there were two.

An elementwise op may read more than the value it overwrites. That must then be alive
when the first of the two runs, which costs memory if it would otherwise be made again
in between. So it has to be something that is alive there anyway, or the first op has to
read no more bytes than it makes: then it may as well wait.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import Any

import torch
from torch import fx

from lowtide.engine.capture.piece import Follower, Piece, PieceOp

aten = torch.ops.aten

# Elementwise, though torch does not say so.
_ALSO_ELEMENTWISE = frozenset(
    "hardtanh_backward hardsigmoid_backward leaky_relu_backward elu_backward "
    "hardswish".split()
)

# Which read a row before they write it, and where they are told the dimension.
_BY_ROWS = {
    "_softmax": 1,
    "_log_softmax": 1,
    "_softmax_backward_data": 2,
    "_log_softmax_backward_data": 2,
}


def fold_in_place(piece: Piece, kept: frozenset[int]) -> dict[int, int]:
    """Fold elementwise ops of a piece into the op before, as far as that is free.

    Returns for each storage that is no more the one that its bytes now belong to. What
    is `kept`, since somebody outside reads it, is never overwritten.
    """
    return _Fold(piece, kept).run()


class _Fold:
    def __init__(self, piece: Piece, kept: frozenset[int]) -> None:
        self.piece, self.kept = piece, kept
        self.num_readers = Counter(s for op in piece.ops for s in op.reads)
        self.ops: list[PieceOp] = []
        self.maker: dict[int, int] = {}
        self.ancestors: list[int] = []

    def run(self) -> dict[int, int]:
        became: dict[int, int] = {}
        for op in self.piece.ops:
            follower = self.follower(op)
            if follower is None:
                place = len(self.ops)
                self.ops.append(op)
                self.ancestors.append(0)
            else:
                place = self.maker[follower.over]
                self.ops[place] = _joined(self.ops[place], op, follower)
                became[follower.over] = op.writes[0]
            self.note_ancestors(place, op)
            self.maker.update(dict.fromkeys(op.writes, place))
        self.piece.ops = self.ops
        return became

    def note_ancestors(self, place: int, op: PieceOp) -> None:
        """Remember, as the bits of a number, the ops from which this one is made."""
        for s in op.reads:
            maker = self.maker.get(s, place)
            if maker != place:
                self.ancestors[place] |= self.ancestors[maker] | 1 << maker

    def follower(self, op: PieceOp) -> Follower | None:
        """How this op can follow one of those before it, if it can."""
        if op.once or len(op.writes) != 1 or not _can_write_over(op.node):
            return None
        makers = {s: self.maker[s] for s in op.reads if s in self.maker}
        if not makers:
            return None
        # What else it reads must be there when the first op runs, so that is the last.
        over = max(makers, key=lambda s: makers[s])
        first = self.ops[makers[over]]
        argument = self.argument(op, over)
        if (
            argument is None
            or over in self.kept
            or self.num_readers[over] != 1
            or first.is_forward != op.is_forward
            or not _is_own(first.node.target)
            or not self.is_free(op, first, over)
        ):
            return None
        form = _in_place_form(op.node, argument)
        return Follower(op.node, argument, over, *form) if form else None

    def argument(self, op: PieceOp, over: int) -> fx.Node | None:
        """The one argument in this storage, if the result fits exactly over it."""
        found = [n for n in op.node.all_input_nodes if over in self.piece.storage_of[n]]
        if len(found) != 1:
            return None
        (node,) = found
        old, new = node.meta["val"], op.node.meta["val"]
        size = self.piece.storages[over].nbytes
        fits = (
            isinstance(old, torch.Tensor)
            and (old.dtype, old.device) == (new.dtype, new.device)
            and (old.shape, old.stride()) == (new.shape, new.stride())
            and old.numel() * old.element_size() == size
            and self.piece.storages[op.writes[0]].nbytes == size
        )
        return node if fits else None

    def is_free(self, op: PieceOp, first: PieceOp, over: int) -> bool:
        """Whether what else the op reads is alive anyway when the first op runs."""
        storages = self.piece.storages
        others = [
            s
            for s in op.reads
            if s != over and not storages[s].resident and s not in first.reads
        ]
        if any(self.maker.get(s) == self.maker[over] for s in others):
            return False
        read = sum(storages[s].nbytes for s in first.reads if not storages[s].resident)
        return read <= storages[over].nbytes or all(
            self.is_held(s, op, self.maker[over]) for s in others
        )

    def is_held(self, s: int, op: PieceOp, place: int) -> bool:
        """Whether a storage that `op` reads is not made again after op `place`.

        A gradient is never made twice. What the op at `place` is made from, in the same
        half of the step, is held for `op` while that one runs.
        """
        maker = self.maker.get(s)
        if maker is None:
            return not op.is_forward  # what the caller sends to the backward
        if self.ops[maker].is_forward != op.is_forward:
            return False
        return not op.is_forward or bool(self.ancestors[place] >> maker & 1)


def _joined(first: PieceOp, op: PieceOp, follower: Follower) -> PieceOp:
    reads = dict.fromkeys((*first.reads, *op.reads))
    del reads[follower.over]
    writes = [op.writes[0] if s == follower.over else s for s in first.writes]
    return replace(
        first,
        reads=tuple(reads),
        writes=tuple(writes),
        then=(*first.then, follower),
    )


def _is_own(target: Any) -> bool:
    """Whether it is torch's own, whose results are new memory for certain."""
    return isinstance(target, torch._ops.OpOverload) and target.namespace == "aten"


def _can_write_over(node: fx.Node) -> bool:
    """Whether it reads each place, or each row, for the last time before writing it."""
    target: Any = node.target
    if not _is_own(target) or not isinstance(node.meta["val"], torch.Tensor):
        return False
    is_elementwise = torch.Tag.pointwise in target.tags
    return is_elementwise or _name(target) in _ALSO_ELEMENTWISE or _is_by_rows(node)


def _is_by_rows(node: fx.Node) -> bool:
    target: Any = node.target
    place = _BY_ROWS.get(_name(target))
    made = node.meta["val"]
    if place is None or made.device.type != "cpu" or not made.is_contiguous():
        return False
    return node.args[place] in (-1, made.dim() - 1)


def _in_place_form(node: fx.Node, argument: fx.Node) -> tuple[Any, str] | None:
    """The op that computes the same over one of its arguments, and by which keyword.

    Only forms with a kernel of their own: the others compute elsewhere and copy.
    """
    target: Any = node.target
    device = argument.meta["val"].device.type
    name = _name(target)
    if node.args and node.args[0] is argument:
        packet = getattr(aten, f"{name}_", None)
        if packet is not None and target._overloadname in packet.overloads():
            found = getattr(packet, target._overloadname)
            if _names(found) == _names(target) and _has_kernel(found, device):
                return found, ""
    packet = getattr(aten, name)
    for overload in packet.overloads():
        found = getattr(packet, overload)
        outs = [a.name for a in found._schema.arguments if a.is_out]
        if (
            len(outs) == 1
            and _names(found) == [*_names(target), *outs]
            and _types(found)[:-1] == _types(target)
            and _has_kernel(found, device)
        ):
            return found, outs[0]
    return None


def _name(op: Any) -> str:
    return op._schema.name.removeprefix("aten::")


def _names(op: Any) -> list[str]:
    return [a.name for a in op._schema.arguments]


def _types(op: Any) -> list[str]:
    return [str(a.type) for a in op._schema.arguments]


def _has_kernel(op: Any, device: str) -> bool:
    return torch._C._dispatch_has_kernel_for_dispatch_key(op.name(), device.upper())

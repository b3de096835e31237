"""One captured graph, forward and backward together, as ops over storages.

NOTE(torch>=2.13,<2.14): reads the joint graph that AOTAutograd hands to a partition
function: placeholders `primals_*` and `tangents_*`, an output list whose first entries
are the forward's, and `desc` records that say what each input and output is.

What the analysis decides:

* Views, aliases, tuple items and numbers are no ops. They cost nothing and are derived
  again from what they come from wherever they are needed.
* Every other call is an op. It may run again unless it draws random numbers, changes
  state, reads state that the step changes, or talks to other processes.
* An elementwise op that is the only reader of the result of another is folded into that
  one, and writes over it (see `_fold.py`).
* Two kinds of ops that may not run again have a stand-in that may: a random op is
  replayed from the generator state it started with, and a training-mode batch norm is
  computed without its running statistics.
"""

from __future__ import annotations

import operator
from dataclasses import replace
from typing import Any

import torch
from torch import fx
from torch._functorch._aot_autograd.descriptors import (
    GradAOTOutput,
    InputMutationAOTOutput,
    PlainAOTInput,
)
from torch.utils import _pytree as pytree

from lowtide.engine.capture.fold import fold_in_place
from lowtide.engine.capture.naming import source_of
from lowtide.engine.capture.piece import (
    NUMBERS,
    Piece,
    PieceOp,
    PieceStorage,
    tensors_of,
)
from lowtide.engine.draws import can_draw_again
from lowtide.errors import CaptureError
from lowtide.step.graph import Kind

aten = torch.ops.aten

RANDOM = "draws random numbers"
CHANGES_STATE = "changes state"
READS_CHANGED = "reads state that the step changes"
COLLECTIVE = "talks to other processes"
OPAQUE = "is a higher-order op"
UNKNOWN = "is not known to give the same bits again"
# Whose untagged ops compute the same from the same arguments.
_DETERMINISTIC_NAMESPACES = frozenset(("aten", "prims", "torchvision"))

_BATCH_NORM = aten._native_batch_norm_legit_functional.default
_RNG_STATE_BYTES = {"cpu": 5056, "cuda": 16}


def read_joint(
    joint: fx.GraphModule,
    *,
    num_forward_outputs: int,
    kinds: dict[int, Kind] | None = None,
    names: dict[int, str] | None = None,
    absent_tangents: frozenset[int] = frozenset(),
) -> Piece:
    """Analyse a joint graph.

    Args:
        joint: The graph. It is not changed.
        num_forward_outputs: How many of its outputs are the forward's.
        kinds: What each primal is, by position; "input" where it is not given.
        names: What to call each primal, by position.
        absent_tangents: Positions of tangents that will not arrive; the graph must
            already be free of them (see `_zeros.py`).
    """
    return _Reader(
        joint, num_forward_outputs, kinds or {}, names or {}, absent_tangents
    ).read()


class _Reader:
    def __init__(
        self,
        joint: fx.GraphModule,
        num_forward_outputs: int,
        kinds: dict[int, Kind],
        names: dict[int, str],
        absent_tangents: frozenset[int],
    ) -> None:
        self.kinds, self.names = kinds, names
        output = next(n for n in joint.graph.nodes if n.op == "output")
        flat = pytree.tree_leaves(output.args[0], is_leaf=lambda x: x is None)
        self.descriptions: list[Any] = list(
            output.meta.get("desc") or [None] * len(flat)
        )
        self.piece = Piece(
            joint=joint,
            storages=[],
            ops=[],
            storage_of={},
            views=set(),
            primals=[],
            tangents=[],
            forward_outputs=flat[:num_forward_outputs],
            gradients=flat[num_forward_outputs:],
            mutated_inputs=_mutated(self.descriptions[:num_forward_outputs]),
            held_outputs=(),
            absent_tangents=absent_tangents,
        )
        self.ids: dict[int, int] = {}
        self.changed: set[int] = set()
        self.became: dict[int, int] = {}

    def read(self) -> Piece:
        for node in self.piece.joint.graph.nodes:
            if node.op == "placeholder":
                self.placeholder(node)
            elif node.op == "get_attr":
                self.storage(node, kind="buffer", resident=True)
                self.remember(node)
            elif node.op == "call_function":
                self.call(node)
        self.drop_dead_and_split()
        self.find_what_reads_changed_state()
        self.name_gradients()
        self.fold()
        self.add_stand_ins()
        self.hold_outputs()
        return self.piece

    # Storages.

    def storage(self, node: fx.Node, *, kind: Kind, resident: bool) -> list[int]:
        """Register the storages that this node's value brings."""
        new: list[int] = []
        for value in tensors_of(node):
            key = value.untyped_storage()._cdata
            if key in self.ids:
                continue
            if any(not isinstance(d, int) for d in (*value.shape, *value.stride())):
                raise CaptureError(
                    f"{node.name} has a size that is known only at run time: "
                    f"{tuple(value.shape)}",
                    location=source_of(node),
                )
            self.ids[key] = len(self.piece.storages)
            new.append(self.ids[key])
            self.piece.storages.append(
                PieceStorage(
                    name=node.name,
                    nbytes=int(value.untyped_storage().nbytes()),
                    kind=kind,
                    resident=resident,
                    shape=tuple(int(d) for d in value.shape),
                    dtype=str(value.dtype).removeprefix("torch."),
                    base=node if isinstance(node.meta["val"], torch.Tensor) else None,
                )
            )
        return new

    def remember(self, node: fx.Node) -> None:
        keys = [v.untyped_storage()._cdata for v in tensors_of(node)]
        found = tuple(dict.fromkeys(self.ids[k] for k in keys))
        self.piece.storage_of[node] = found
        for s in found:
            self.piece.nodes_of.setdefault(s, []).append(node)
            if self.piece.storages[s].base is None and isinstance(
                node.meta["val"], torch.Tensor
            ):
                self.piece.storages[s].base = node

    def placeholder(self, node: fx.Node) -> None:
        value = node.meta.get("val")
        if isinstance(value, NUMBERS):
            self.piece.primals.append(node)
            self.remember(node)
            return
        if not isinstance(value, torch.Tensor):
            raise CaptureError(
                f"input {node.name} is a {type(value).__name__}, not a tensor",
                fix="Compile with dynamic=False, so that every shape has its own graph",
            )
        if node.name.startswith("tangents"):
            self.piece.tangents.append(node)
            self.storage(node, kind="temporary", resident=False)
        else:
            position = len(self.piece.primals)
            self.piece.primals.append(node)
            kind = self.kinds.get(position, "input")
            new = self.storage(node, kind=kind, resident=True)
            for s in new:
                self.piece.storages[s].name = self.names.get(position, node.name)
        self.remember(node)

    # Ops.

    def call(self, node: fx.Node) -> None:
        piece = self.piece
        reads = self.reads(node)
        new = self.storage(node, kind="activation", resident=False)
        self.remember(node)
        is_number = isinstance(node.meta.get("val"), NUMBERS)
        if node.target is operator.getitem or is_number:
            piece.views.add(node)
            return
        once = _why_once(node)
        aliases_only = bool(piece.storage_of[node]) and not new
        if aliases_only and once != CHANGES_STATE:
            piece.views.add(node)
            return
        piece.ops.append(PieceOp(node, "plain", reads, tuple(new), once))

    def reads(self, node: fx.Node) -> tuple[int, ...]:
        found = [s for a in node.all_input_nodes for s in self.piece.storage_of[a]]
        return tuple(dict.fromkeys(found))

    def drop_dead_and_split(self) -> None:
        """Drop ops nobody needs; mark those that the forward's outputs need.

        An op with an effect is needed, and so is everything that it reads.
        """
        piece = self.piece
        effects = [
            op.node
            for op in piece.ops
            if op.once in (RANDOM, CHANGES_STATE, COLLECTIVE) or not op.writes
        ]
        early = [n for n in effects if n.meta.get("partitioner_tag") != "is_backward"]
        in_forward = self.closure([*piece.forward_outputs, *early])
        wanted = in_forward | self.closure([*piece.gradients, *effects])
        alive = [op for op in piece.ops if op.node in wanted]
        for op in alive:
            op.is_forward = op.node in in_forward
            if not op.is_forward:
                for s in op.writes:
                    piece.storages[s].kind = "temporary"
        piece.ops = [op for op in alive if op.is_forward]
        piece.ops += [op for op in alive if not op.is_forward]

    def closure(self, roots: list[Any]) -> set[fx.Node]:
        seen: set[fx.Node] = set()
        stack = [r for r in roots if isinstance(r, fx.Node)]
        while stack:
            node = stack.pop()
            if node not in seen:
                seen.add(node)
                stack.extend(node.all_input_nodes)
        return seen

    def find_what_reads_changed_state(self) -> None:
        piece = self.piece
        changed: set[int] = set()
        for position in piece.mutated_inputs:
            changed.update(piece.storage_of[piece.primals[position]])
        self.changed = changed
        for op in piece.ops:
            if op.once or changed.isdisjoint(op.reads):
                continue
            op.once = READS_CHANGED
            if not op.is_forward:
                name = piece.storages[min(changed.intersection(op.reads))].name
                raise CaptureError(
                    f"the backward reads {name}, which the forward changes in place",
                    op=op.node.name,
                    location=source_of(op.node),
                    fix="Read a copy of it in the forward (`.clone()`)",
                )

    def name_gradients(self) -> None:
        piece = self.piece
        descriptions = self.descriptions[len(piece.forward_outputs) :]
        for node, description in zip(piece.gradients, descriptions, strict=True):
            if not isinstance(node, fx.Node):
                continue
            for s in piece.storage_of[node]:
                storage = piece.storages[s]
                if storage.resident:
                    continue
                storage.kind = "gradient"
                if isinstance(description, GradAOTOutput) and isinstance(
                    description.grad_of, PlainAOTInput
                ):
                    position = description.grad_of.idx
                    storage.name = f"grad of {self.names.get(position, storage.name)}"

    def fold(self) -> None:
        piece = self.piece
        kept = {
            s
            for node in (*piece.forward_outputs, *piece.gradients)
            if isinstance(node, fx.Node)
            for s in piece.storage_of[node]
        }
        piece.unfolded = list(piece.ops)
        self.became = fold_in_place(piece, frozenset(kept))

    def add_stand_ins(self) -> None:
        """Put behind each op that has one the form in which it can run again."""
        ops: list[PieceOp] = []
        for op in self.piece.ops:
            ops.append(op)
            if op.once == RANDOM:
                if self.can_replay(op):
                    ops.append(self.replay(op))
            elif op.node.target is _BATCH_NORM and op.node.args[5] is True:
                ops.append(self.batch_norm_again(op))
        self.piece.ops = ops

    def can_replay(self, op: PieceOp) -> bool:
        """Whether it draws from torch's generator, and from nothing that changes."""
        return self.changed.isdisjoint(op.reads) and can_draw_again(op.node)

    def replay(self, op: PieceOp) -> PieceOp:
        device = tensors_of(op.node)[0].device.type
        state = len(self.piece.storages)
        self.piece.storages.append(
            PieceStorage(
                name=f"{op.node.name} generator state",
                nbytes=_RNG_STATE_BYTES.get(device, 5056),
                kind="activation",
                resident=False,
                shape=(_RNG_STATE_BYTES.get(device, 5056),),
                dtype="uint8",
                base=None,
                is_rng_state=True,
            )
        )
        reads, writes = (*op.reads, state), op.writes
        op.writes = (*op.writes, state)
        return replace(op, variant="replay", reads=reads, writes=writes, once="")

    def batch_norm_again(self, op: PieceOp) -> PieceOp:
        """Normalise again without touching, or reading, the running statistics."""
        inputs = [a for a in op.node.args[:3] if isinstance(a, fx.Node)]
        inputs += [a for f in op.then for a in f.node.all_input_nodes]
        reads = [s for a in inputs for s in self.piece.storage_of[a]]
        keys = [v.untyped_storage()._cdata for v in op.node.meta["val"][:3]]
        made = [self.ids[k] for k in keys]
        return replace(
            op,
            variant="without_statistics",
            reads=tuple(s for s in dict.fromkeys(reads) if s not in self.became),
            writes=tuple(dict.fromkeys(self.owner(s) for s in made)),
            once="",
        )

    def owner(self, s: int) -> int:
        """The storage to which these bytes belong after folding."""
        while s in self.became:
            s = self.became[s]
        return s

    def hold_outputs(self) -> None:
        """What the caller holds: all of the forward's outputs but new buffer values."""
        piece = self.piece
        held: dict[int, None] = {}
        descriptions = self.descriptions[: len(piece.forward_outputs)]
        for node, description in zip(piece.forward_outputs, descriptions, strict=True):
            if isinstance(node, fx.Node) and not isinstance(
                description, InputMutationAOTOutput
            ):
                held.update(dict.fromkeys(piece.storage_of[node]))
        for node in piece.gradients:
            if isinstance(node, fx.Node):
                held.update(dict.fromkeys(piece.storage_of[node]))
        # `loss.backward()` makes the gradient of the loss, and holds it to its end.
        for place, node in enumerate(piece.tangents):
            if place not in piece.absent_tangents and node.meta["val"].numel() == 1:
                held.update(dict.fromkeys(piece.storage_of[node]))
        piece.held_outputs = tuple(s for s in held if not piece.storages[s].resident)


def _mutated(descriptions: list[Any]) -> dict[int, int]:
    """For each primal that the forward changes, the output that holds its new value."""
    found: dict[int, int] = {}
    for place, description in enumerate(descriptions):
        if isinstance(description, InputMutationAOTOutput) and isinstance(
            description.mutated_input, PlainAOTInput
        ):
            found[description.mutated_input.idx] = place
    return found


def _why_once(node: fx.Node) -> str:
    target = node.target
    if not isinstance(target, torch._ops.OpOverload):
        return OPAQUE
    if target.namespace in ("_c10d_functional", "c10d_functional", "_dtensor"):
        return COLLECTIVE
    if target._schema.is_mutable:
        return CHANGES_STATE
    if torch.Tag.nondeterministic_seeded in target.tags:
        return RANDOM if _really_random(node) else ""
    if not tensors_of(node):
        return CHANGES_STATE  # an assertion or the like: it runs for its effect
    if target.namespace not in _DETERMINISTIC_NAMESPACES:
        return UNKNOWN
    return ""


def _really_random(node: fx.Node) -> bool:
    """Attention ops carry the random tag but draw only when they drop out."""
    for place, argument in enumerate(node.target._schema.arguments):  # type: ignore[union-attr]
        if argument.name == "dropout_p":
            given = node.kwargs.get("dropout_p")
            if given is None:
                given = (
                    node.args[place]
                    if place < len(node.args)
                    else argument.default_value
                )
            return bool(given != 0.0)
    return True

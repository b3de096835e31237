"""One captured graph, forward and backward together, as ops over storages.

NOTE(torch>=2.13,<2.16): reads the joint graph that AOTAutograd hands to a partition
function: placeholders `primals_*` and `tangents_*`, an output list whose first entries
are the forward's, and `desc` records that say what each input and output is.

What the analysis decides:

* Views, aliases, tuple items and numbers are no ops. They cost nothing and are derived
  again from what they come from wherever they are needed.
* Every other call is an op. It may run again unless it draws random numbers, changes
  state, reads state that the step changes, or talks to other processes.
* An elementwise op that is the only reader of the result of another is folded into that
  one, and writes over it (see `fold.py`). The gradient of a cross entropy is written
  over the log-softmax that it is made from (see `loss.py`).
* Two kinds of ops that may not run again have a stand-in that may: a random op is
  replayed from the generator state it started with, and a training-mode batch norm is
  computed without its running statistics. What dropout drops is dropped again by its
  mask alone.
* The head of a language model with its loss, and their gradients, have a form in which
  they run in parts (see `heads.py`).
* Masks and indices that the backward reads have a packed copy (see `packing.py`), and a
  stand-in that makes them again from it.
"""

from __future__ import annotations

import operator
from dataclasses import replace
from typing import Any

import torch
from torch import fx
from torch._functorch._aot_autograd.descriptors import InputMutationAOTOutput

from lowtide.engine.capture.call import source_of
from lowtide.engine.capture.fold import fold_in_place
from lowtide.engine.capture.heads import find_heads
from lowtide.engine.capture.nodes import (
    draws_numbers,
    inputs_of,
    is_backward,
    made_from,
    outputs_of,
    owner_of,
    reached,
)
from lowtide.engine.capture.piece import (
    COLLECTIVE,
    NUMBERS,
    OBJECTS,
    UPDATES,
    Packed,
    Piece,
    PieceOp,
    tensors_of,
)
from lowtide.engine.capture.shapes import formulas_of
from lowtide.engine.capture.tensors import result_bytes, storage_key, storage_record
from lowtide.engine.costs.exchange import is_exchange, is_wait
from lowtide.engine.forms.draws import can_draw_again
from lowtide.engine.forms.overwrite import find_overwritten
from lowtide.engine.forms.packing import packing_of
from lowtide.errors import CaptureError
from lowtide.step.graph import Kind, Storage

aten = torch.ops.aten

RANDOM = "draws random numbers"
CHANGES_STATE = "changes state"
READS_CHANGED = "reads state that the step changes"
OPAQUE = "is a higher-order op"
UNKNOWN = "is not known to give the same bits again"
# Whose untagged ops compute the same from the same arguments.
_DETERMINISTIC_NAMESPACES = frozenset(("aten", "prims", "torchvision"))

_BATCH_NORM = aten._native_batch_norm_legit_functional.default
_DROPOUT = aten.native_dropout.default
_RNG_STATE_BYTES = {"cpu": 5056, "cuda": 16}


def read_joint(
    joint: fx.GraphModule,
    *,
    num_forward_outputs: int,
    kinds: dict[int, Kind] | None = None,
    names: dict[int, str] | None = None,
    absent_tangents: frozenset[int] = frozenset(),
) -> Piece:
    """Analyse a joint graph, which is not changed.

    `kinds` and `names` say, by position, what each primal is ("input" if they do not)
    and what to call it. `absent_tangents` are the positions of those that will not
    arrive; the graph must already be free of them (see `zeros.py`).
    """
    outputs, descriptions = outputs_of(joint)
    piece = Piece(
        joint,
        forward_outputs=outputs[:num_forward_outputs],
        gradients=outputs[num_forward_outputs:],
        mutated_inputs=_mutated(joint, descriptions[:num_forward_outputs]),
        absent_tangents=absent_tangents,
    )
    return _Reader(piece, kinds or {}, names or {}, descriptions).read()


class _Reader:
    def __init__(
        self,
        piece: Piece,
        kinds: dict[int, Kind],
        names: dict[int, str],
        descriptions: list[Any],
    ) -> None:
        self.piece, self.kinds, self.names = piece, kinds, names
        self.descriptions = descriptions
        self.ids: dict[int, int] = {}
        self.changed: set[int] = set()
        self.became: dict[int, int] = {}

    def read(self) -> Piece:
        for node in self.piece.joint.graph.nodes:
            if node.op == "placeholder":
                self.placeholder(node)
            elif node.op == "get_attr":
                self.storage(node, "buffer", resident=True)
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

    def storage(
        self, node: fx.Node, kind: Kind, *, resident: bool = False, name: str = ""
    ) -> list[int]:
        """Register the storages that this node's value brings."""
        new: list[int] = []
        for value, formula in zip(tensors_of(node), formulas_of(node), strict=True):
            key = storage_key(value)
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
            given = [t for a in node.all_input_nodes for t in tensors_of(a)]
            nbytes = int(result_bytes(node.target, given, value))
            if not isinstance(formula, int):
                self.piece.formulas[new[-1]] = formula
            own = (new[-1], name or node.name, nbytes, kind, resident)
            self.piece.storages.append(storage_record(value, *own))
        return new

    def change(self, s: int, **fields: Any) -> None:
        self.piece.storages[s] = replace(self.piece.storages[s], **fields)

    def remember(self, node: fx.Node) -> None:
        keys = [storage_key(v) for v in tensors_of(node)]
        found = tuple(dict.fromkeys(self.ids[k] for k in keys))
        self.piece.storage_of[node] = found
        for s in found:
            self.piece.nodes_of.setdefault(s, []).append(node)
            if isinstance(node.meta["val"], torch.Tensor):
                self.piece.bases.setdefault(s, node)

    def placeholder(self, node: fx.Node) -> None:
        value = node.meta.get("val")
        if isinstance(value, NUMBERS + OBJECTS):
            self.piece.primals.append(node)
            self.remember(node)
            return
        if not isinstance(value, torch.Tensor):
            raise CaptureError(
                f"input {node.name} is a {type(value).__name__}, not a tensor",
                fix="Pass tensors and numbers",
            )
        if node.name.startswith("tangents"):
            self.piece.tangents.append(node)
            self.storage(node, "temporary")
        else:
            position = owner_of(node.meta.get("desc"))
            position = len(self.piece.primals) if position is None else position
            self.piece.primals.append(node)
            kind = self.kinds.get(position, "input")
            self.storage(node, kind, resident=True, name=self.names.get(position, ""))
        self.remember(node)

    # Ops.

    def call(self, node: fx.Node) -> None:
        piece = self.piece
        reads = piece.storages_in(node.all_input_nodes)
        if is_wait(node.target):  # for its argument, which it returns
            (given,) = node.all_input_nodes
            for own, of in zip(tensors_of(node), tensors_of(given), strict=True):
                self.ids[storage_key(own)] = self.ids[storage_key(of)]
        new = self.storage(node, "activation")
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
        late = reached(piece.tangents, lambda n: n.users)
        early = [n for n in effects if n not in late and not is_backward(n)]
        in_forward = made_from([*piece.forward_outputs, *early])
        wanted = in_forward | made_from([*piece.gradients, *effects])
        alive = [op for op in piece.ops if op.node in wanted]
        for op in alive:
            op.is_forward = op.node in in_forward
            if not op.is_forward:
                for s in op.writes:
                    self.change(s, kind="temporary")
        piece.ops = [op for op in alive if op.is_forward]
        piece.ops += [op for op in alive if not op.is_forward]

    def find_what_reads_changed_state(self) -> None:
        piece = self.piece
        primals = [piece.primals[position] for position in piece.mutated_inputs]
        self.changed = set(piece.storages_in(primals))
        for op in piece.ops:
            if op.once or self.changed.isdisjoint(op.reads):
                continue
            op.once = READS_CHANGED
            if not op.is_forward:
                name = piece.storages[min(self.changed.intersection(op.reads))].name
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
            for s in piece.storage_of.get(node, ()):
                name = piece.storages[s].name
                if piece.storages[s].resident:
                    continue
                of = owner_of(description)
                if of is not None:
                    name = f"grad of {self.names.get(of, name)}"
                self.change(s, kind="gradient", name=name)
        for op in piece.ops:
            if op.once == UPDATES:
                parameter, gradient = op.reads
                name = f"grad of {piece.storages[parameter].name}"
                self.change(gradient, kind="gradient", name=name)

    def fold(self) -> None:
        piece = self.piece
        outputs = (*piece.forward_outputs, *piece.gradients)
        kept = frozenset(piece.storages_in(outputs))
        piece.unfolded = list(piece.ops)
        self.became = fold_in_place(piece, kept)
        find_overwritten(piece, kept)

    def add_stand_ins(self) -> None:
        """Put behind each op that has some the forms in which it can run again.

        A form comes behind those that make what it reads.
        """
        ops: list[PieceOp] = []
        forms = find_heads(self.piece)
        late = {s for op in self.piece.ops if not op.is_forward for s in op.reads}
        for op in self.piece.ops:
            op = self.with_packed(op, late)
            unpacked = [self.unpack(op, packed) for packed in op.packs]
            again: list[PieceOp] = []
            if op.once == RANDOM:
                # If it draws from torch's generator, and from nothing that changes.
                if self.changed.isdisjoint(op.reads) and can_draw_again(op.node):
                    state = self.bytes_of_ours(
                        f"{op.node.name} generator state",
                        _RNG_STATE_BYTES.get(tensors_of(op.node)[0].device.type, 5056),
                    )
                    again = [self.replay(op, state), *unpacked, *self.masked(op)]
                    op = replace(op, writes=(*op.writes, state), state=state)
            elif op.node.target is _BATCH_NORM and op.node.args[5] is True:
                again = [self.batch_norm_again(op)]
            ops += [op, *(again or unpacked)]
            ops += [form for form in forms if form.node is op.node]
        self.piece.ops = ops

    def bytes_of_ours(self, name: str, nbytes: int) -> int:
        """A new storage for something that the captured graph does not know."""
        number = len(self.piece.storages)
        record = Storage(number, name, nbytes, shape=(nbytes,), dtype="uint8")
        self.piece.storages.append(record)
        return number

    def with_packed(self, op: PieceOp, late: set[int]) -> PieceOp:
        """The op with a packed copy of those results that the backward wants.

        Unpacking knows the sizes, so there is none where they are symbols.
        """
        packs: list[Packed] = []
        if not self.piece.formulas.keys().isdisjoint((*op.reads, *op.writes)):
            return op
        for s in op.writes if op.is_forward else ():
            node = self.piece.bases.get(s)
            if s not in late or node is None or s in self.became.values():
                continue
            how = packing_of(op.node, node)
            if how is not None:
                packed = self.bytes_of_ours(f"{node.name} packed", how.nbytes)
                packs.append(Packed(node, s, packed, how))
        writes = (*op.writes, *(p.packed for p in packs))
        return replace(op, writes=writes, packs=tuple(packs)) if packs else op

    def unpack(self, op: PieceOp, packed: Packed) -> PieceOp:
        """Make a mask or an index again from its packed copy."""
        return replace(
            op,
            variant="unpack",
            reads=(packed.packed,),
            writes=(packed.storage,),
            once="",
            then=(),
            packs=(packed,),
        )

    def replay(self, op: PieceOp, state: int) -> PieceOp:
        reads = (*op.reads, state)
        return replace(op, variant="replay", reads=reads, once="", state=state)

    def masked(self, op: PieceOp) -> list[PieceOp]:
        """Drop again what was dropped, if the mask is there: nothing is drawn."""
        if op.node.target is not _DROPOUT:
            return []
        items = {user.args[1]: user for user in op.node.users}
        if items.keys() != {0, 1}:
            return []
        if items[0].meta["val"].device.type != "cpu":
            return []
        (dropped,), (mask,) = (self.piece.storage_of[items[k]] for k in (0, 1))
        reads, writes = (*op.reads, mask), (self.owner(dropped),)
        if mask not in op.writes or not set(writes).issubset(op.writes):
            return []
        form = {"variant": "masked", "reads": reads, "writes": writes}
        return [replace(op, **form, once="", packs=())]

    def batch_norm_again(self, op: PieceOp) -> PieceOp:
        """Normalise again without touching, or reading, the running statistics."""
        inputs = [a for a in op.node.args[:3] if isinstance(a, fx.Node)]
        inputs += [a for f in op.then for a in f.node.all_input_nodes]
        reads = self.piece.storages_in(inputs)
        made = [self.ids[storage_key(v)] for v in op.node.meta["val"][:3]]
        return replace(
            op,
            variant="without_statistics",
            reads=tuple(s for s in reads if s not in self.became),
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
        descriptions = self.descriptions[: len(piece.forward_outputs)]
        values = [
            node
            for node, what in zip(piece.forward_outputs, descriptions, strict=True)
            if not isinstance(what, InputMutationAOTOutput)
        ]
        # `loss.backward()` makes the gradient of the loss, and holds it to its end.
        ones = [n for n in piece.arriving_tangents if n.meta["val"].numel() == 1]
        held = piece.storages_in((*values, *piece.gradients, *ones))
        piece.held_outputs = tuple(s for s in held if not piece.storages[s].resident)


def _mutated(joint: fx.GraphModule, descriptions: list[Any]) -> dict[int, int]:
    """For each primal that the forward changes, the output that holds its new value."""
    primals = [n.meta.get("desc") for n in inputs_of(joint)]
    found: dict[int, int] = {}
    for place, description in enumerate(descriptions):
        if isinstance(description, InputMutationAOTOutput):
            found[primals.index(description.mutated_input)] = place
    return found


def _why_once(node: fx.Node) -> str:
    target = node.target
    if not isinstance(target, torch._ops.OpOverload):
        return OPAQUE
    if is_exchange(target):
        return COLLECTIVE
    if target.name() == "lowtide::update_":
        return UPDATES
    if target._schema.is_mutable:
        return CHANGES_STATE
    if draws_numbers(node):
        return RANDOM
    if not tensors_of(node):
        return CHANGES_STATE  # an assertion or the like: it runs for its effect
    if target.namespace not in _DETERMINISTIC_NAMESPACES:
        return UNKNOWN
    return ""

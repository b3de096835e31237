"""A step of what Inductor materialises: kernels as ops, buffers as storages.

The graphs that it starts from are those of Inductor's own partitioner, so the baseline
is the compiled step without a plan. What is fused into a kernel has no storage of its
own: it costs nothing to keep, and is made again with the kernel that computes it.

A kernel of the forward can run again if its results are values of the fx graph. Its
cone are the nodes from these results back to the nearest values that have a storage.
Kernels whose results are no such values (the first half of a reduction, a weight in
another layout) belong to the kernel that reads them. Kernels of the backward run once,
in Inductor's order.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import networkx
import torch
from torch import fx
from torch._ops import OpOverload

from lowtide.engine.capture.call import Call, call_of, module_of, source_of
from lowtide.engine.capture.joint import CHANGES_STATE, READS_CHANGED
from lowtide.engine.capture.nodes import (
    draws_numbers,
    inputs_of,
    outputs_of,
    reached,
    tangents_of,
)
from lowtide.engine.capture.piece import Piece, tensors_of
from lowtide.engine.capture.step import step_with, turn_of, with_piece_facts
from lowtide.engine.capture.tensors import storage_record
from lowtide.engine.inductor.kernels import Buffer, Kernel, Lowered, lower
from lowtide.step.graph import FOLDED, Kind, Op, Phase, Storage

aten = torch.ops.aten
DRAWS_SEEDS = "draws the seeds of random numbers"
COMPILED_BACKWARD = "is a kernel of the compiled backward"
_RANDOM = (
    torch.ops.prims.inductor_random.default,
    torch.ops.prims.inductor_randint.default,
)


@dataclass(frozen=True)
class Launch:
    """Kernels that run as one op, and the fx nodes that compute what they make."""

    kernels: tuple[Kernel, ...]
    cone: tuple[fx.Node, ...]


@dataclass(slots=True, eq=False, kw_only=True)
class CompiledPiece(Piece):
    """A piece whose ops are Inductor's kernels.

    `forward` and `backward` are the graphs without a plan; `launches` has an entry for
    each op of the step but the turn. `saved` are the values of the forward that
    the unplanned backward takes, in the order of its inputs. `value_of` are the fx
    nodes whose values have a storage.
    """

    forward: fx.GraphModule
    backward: fx.GraphModule
    saved: list[fx.Node]
    launches: dict[int, Launch] = field(default_factory=dict)
    value_of: dict[fx.Node, int] = field(default_factory=dict)


def read_compiled(
    forward: fx.GraphModule,
    backward: fx.GraphModule,
    *,
    num_outputs: int,
    kinds: dict[int, Kind],
    names: dict[int, str],
) -> CompiledPiece:
    """The piece of two graphs that Inductor would compile.

    The first `num_outputs` outputs of the forward are the user's, the others are saved;
    the backward takes these, and then the tangents. `kinds` and `names` say, by
    position, what each input of the forward is and what to call it.
    """
    outputs, _ = outputs_of(forward)
    piece = CompiledPiece(
        forward,
        forward_outputs=outputs[:num_outputs],
        gradients=outputs_of(backward)[0],
        mutated_inputs={},
        absent_tangents=frozenset(),
        primals=inputs_of(forward),
        tangents=tangents_of(backward),
        forward=forward,
        backward=backward,
        saved=outputs[num_outputs:],
    )
    return _Reader(piece, kinds, names).read()


class _Half:
    """One of the two graphs: its kernels, and its names for storages.

    `known` has the storages of its buffers and inputs, `nodes` its fx nodes, by name.
    """

    def __init__(self, phase: Phase, graph: fx.GraphModule) -> None:
        self.phase: Phase = phase
        self.lowered = lower(graph, is_backward=phase == "backward")
        self.known: dict[str, int] = {}
        self.nodes = {n.name: n for n in graph.graph.nodes}
        self.read_by: dict[str, set[str]] = defaultdict(set)
        self.buffers = self.lowered.buffers
        for kernel in self.lowered.kernels:
            for name in kernel.reads:
                self.read_by[name].add(kernel.name)


class _Reader:
    def __init__(
        self, piece: CompiledPiece, kinds: dict[int, Kind], names: dict[int, str]
    ) -> None:
        self.piece, self.kinds, self.names = piece, kinds, names
        self.crossing = inputs_of(piece.backward)[: len(piece.saved)]
        self.early = _Half("forward", piece.forward)
        self.late = _Half("backward", piece.backward)
        self.ops: list[Op] = []

    def read(self) -> CompiledPiece:
        piece, early, late = self.piece, self.early, self.late
        for place, node in enumerate(piece.primals):
            kind = self.kinds.get(place, "input")
            early.known[node.name] = self.input(node, kind, self.names.get(place, ""))
        self.forward_ops()
        outputs = early.lowered.outputs
        held = outputs[-len(piece.saved) :] if piece.saved else ()
        for node, name in zip(self.crossing, held, strict=True):
            if name in early.known:
                late.known[node.name] = early.known[name]
        for node in piece.tangents:
            late.known[node.name] = self.input(node, "temporary")
        for node, name in zip(piece.forward_outputs, outputs, strict=False):
            if isinstance(node, fx.Node) and name in early.known:
                piece.storage_of[node] = (early.known[name],)
        self.ops.append(turn_of(piece, len(self.ops)))
        self.backward_ops()
        self.hold_outputs()
        # Without a plan the compiled step runs just so: there is no other baseline.
        piece.step = with_piece_facts(step_with(piece, self.ops), eager_extra_bytes=0)
        return piece

    # Storages.

    def input(self, node: fx.Node, kind: Kind, name: str = "") -> int:
        piece, number = self.piece, len(self.piece.storages)
        (tensor,) = tensors_of(node)
        nbytes = int(tensor.untyped_storage().nbytes())
        is_resident = node in piece.primals
        piece.storages.append(
            storage_record(tensor, number, name or node.name, nbytes, kind, is_resident)
        )
        piece.storage_of[node] = (number,)
        piece.value_of[node] = number
        return number

    def made(self, kernels: Sequence[Kernel], half: _Half) -> int:
        """Register what these kernels leave to others; what stays inside is scratch."""
        own = {k.name for k in kernels}
        scratch = 0
        for kernel, buffer in ((k, b) for k in kernels for b in k.writes):
            readers = half.read_by[buffer.name]
            if readers - own or buffer.name in half.lowered.outputs:
                if buffer.name not in half.known:
                    self.add_storage(half.buffers[buffer.name], half)
            elif readers - {kernel.name}:
                scratch += buffer.nbytes
        return scratch

    def add_storage(self, buffer: Buffer, half: _Half) -> None:
        number = half.known[buffer.name] = len(self.piece.storages)
        node, is_early = half.nodes.get(buffer.node), half.phase == "forward"
        kind: Kind = "activation" if is_early else "temporary"
        name, value = buffer.node or buffer.name, tensors_of(node) if node else []
        self.piece.storages.append(
            storage_record(value[0], number, name, buffer.nbytes, kind, False)
            if len(value) == 1
            else Storage(number, name, buffer.nbytes, kind)
        )
        if is_early and node is not None:
            self.piece.value_of[node] = number

    # Ops.

    def forward_ops(self) -> None:
        piece, early = self.piece, self.early
        groups = _grouped(early.lowered, split_reductions=True)
        scratch = [self.made(group, early) for group in groups]
        changed = {name for k in early.lowered.kernels for name in k.changes}
        for group, nbytes in zip(groups, scratch, strict=True):
            names = [b.node for k in group for b in k.writes]
            nodes = [early.nodes[name] for name in names if name in early.nodes]
            results = [
                n for n in nodes if n in piece.value_of and n.op != "placeholder"
            ]
            cone, sources = self.cone(results)
            op = self.op(group, early, nbytes)
            given = tuple(dict.fromkeys(piece.value_of[n] for n in sources))
            op = replace(op, reads=tuple(dict.fromkeys((*op.reads, *given))))
            draws = any(map(draws_numbers, cone))
            stale = changed.intersection(n.name for n in sources)
            mutates = any(k.changes for k in group)
            if draws or mutates or stale or not cone:
                once = DRAWS_SEEDS if draws else READS_CHANGED if stale else ""
                op = replace(op, once=once or CHANGES_STATE)
            self.add(op, Launch(tuple(group), cone), early)
            if mutates and cone and not draws and not stale:
                again = replace(
                    op,
                    id=len(self.ops),
                    name=op.name + " again",
                    reads=given,
                    writes=tuple(dict.fromkeys(piece.value_of[n] for n in results)),
                    once="",
                    standby=True,
                    signature=op.signature + "/again",
                )
                self.add(again, Launch(tuple(group), cone), early)

    def backward_ops(self) -> None:
        late = self.late
        for group in _grouped(late.lowered, split_reductions=False):
            op = self.op(group, late, self.made(group, late))
            # What they make that is no value of the graph comes with what reads it.
            made = (buffer.node for kernel in group for buffer in kernel.writes)
            cone = tuple(late.nodes[name] for name in made if name in late.nodes)
            op = replace(op, once=COMPILED_BACKWARD)
            self.add(op, Launch(tuple(group), cone), late)

    def add(self, op: Op, launch: Launch, half: _Half) -> None:
        self.ops.append(op)
        self.piece.launches[op.id] = launch
        if calls := list(self.calls_of(launch, op, half)):
            self.piece.calls[op.id] = calls

    def op(self, group: Sequence[Kernel], half: _Half, scratch: int) -> Op:
        nodes, known = half.nodes, half.known
        origins = [nodes[n] for k in group for n in k.nodes if n in nodes]
        writes = [b for k in group for b in k.writes if b.name in known]
        made = {known[b.name] for b in writes}
        reads = [known[n] for k in group for n in k.reads if n in known]
        library = next((nodes[k.library] for k in group if k.library in nodes), None)
        named = [b.node for b in writes if b.node] or [k.name for k in group]
        targets = [str(n.target) for n in origins if n.op == "call_function"]
        shapes = [str(self.piece.storages[known[b.name]].shape) for b in writes]
        return Op(
            id=len(self.ops),
            name=library.name if library else FOLDED.join(named[:3]),
            target=str(library.target) if library else "inductor::fused",
            reads=tuple(dict.fromkeys(s for s in reads if s not in made)),
            writes=tuple(dict.fromkeys(known[b.name] for b in writes)),
            phase=half.phase,
            module=next(filter(None, map(module_of, origins)), ""),
            source=next(filter(None, map(source_of, origins)), ""),
            signature=f"{FOLDED.join(targets)} {', '.join(shapes)}",
            scratch_bytes=scratch,
        )

    def cone(
        self, results: Sequence[fx.Node]
    ) -> tuple[tuple[fx.Node, ...], tuple[fx.Node, ...]]:
        """The nodes that compute these values, and the values these start from."""
        value_of, sources = self.piece.value_of, dict[fx.Node, None]()

        def makers(node: fx.Node) -> list[fx.Node]:
            if node in value_of and node not in results:
                sources[node] = None
                return []
            return node.all_input_nodes

        inside = reached(results, makers) - sources.keys()
        order = [n for n in self.piece.forward.graph.nodes if n in inside]
        return tuple(order), tuple(sources)

    def calls_of(self, launch: Launch, op: Op, half: _Half) -> Iterator[Call]:
        """What to measure for its cost.

        A library's kernel is called as it is. A loop takes about as long as copying the
        bytes that go in and out, and random numbers as long as drawing them does.
        """
        named = [half.nodes.get(kernel.library) for kernel in launch.kernels]
        libraries = [node for node in named if node is not None]
        for node in libraries:
            if not draws_numbers(node) and isinstance(node.target, OpOverload):
                yield call_of(node.target, node)
        if not libraries:
            storages = self.piece.storages
            moved = sum(storages[s].nbytes for s in {*op.reads, *op.writes})
            yield self.copy_of(moved // 2)
            for node in launch.cone:
                if node.target in _RANDOM:
                    yield self.copy_of(tensors_of(node)[0].numel(), draws=True)

    def copy_of(self, number: int, *, draws: bool = False) -> Call:
        """A call that copies this many bytes, or draws this many numbers."""
        # Sizes that are about the same are measured once.
        digits = max(0, len(str(number)) - 2)
        number = max(64, -(-number // 10**digits) * 10**digits)
        like = tensors_of(self.piece.primals[0])[0]
        with like.fake_mode:  # type: ignore[attr-defined]
            kind = torch.float32 if draws else torch.uint8
            value = torch.empty(number, dtype=kind, device=like.device)
            made = torch.empty_like(value)
        target = aten.bernoulli.p if draws else aten.clone.default
        args: tuple[Any, ...] = (value, 0.5) if draws else (value,)
        return Call(target, args, {}, made, f"{target} of {number}")

    def hold_outputs(self) -> None:
        piece, known = self.piece, self.late.known
        # Autograd holds what it hands to a compiled backward until that has run.
        held = [*piece.storages_in((*piece.tangents, *piece.forward_outputs))]
        for place, name in enumerate(self.late.lowered.outputs):
            if name not in known or piece.storages[known[name]].resident:
                continue
            old = piece.storages[known[name]]
            name = f"grad of {self.names.get(place, old.name)}"
            piece.storages[old.id] = replace(old, kind="gradient", name=name)
            held.append(old.id)
        resident = {s.id for s in piece.storages if s.resident}
        piece.held_outputs = tuple(s for s in dict.fromkeys(held) if s not in resident)


def _grouped(lowered: Lowered, *, split_reductions: bool) -> list[list[Kernel]]:
    """Kernels that can only run together, in an order in which all can run.

    These are the ones that write parts of one buffer, those that take the items out of
    a tuple, with the one that makes it, and, if asked, those that make what is no value
    of the fx graph, with their readers.
    """
    kernels = lowered.kernels
    together = networkx.utils.UnionFind(range(len(kernels)))
    written: dict[str, list[int]] = defaultdict(list)
    unnamed: set[str] = set()
    tuples: set[str] = set()
    for number, kernel in enumerate(kernels):
        for buffer in kernel.writes:
            written[buffer.name].append(number)
            if not buffer.node and buffer.nbytes:
                unnamed.add(buffer.name)
            if kernel.library and not buffer.nbytes:
                tuples.add(buffer.name)
    unnamed -= {*lowered.outputs}
    for numbers in written.values():
        together.union(*numbers)
    graph = networkx.DiGraph()
    for number, kernel in enumerate(kernels):
        for name in kernel.reads:
            if name in tuples or (split_reductions and name in unnamed):
                together.union(number, *written[name])
    graph.add_nodes_from(together[n] for n in range(len(kernels)))
    for number, kernel in enumerate(kernels):
        for name in kernel.reads:
            for other in written.get(name, ()):
                graph.add_edge(together[other], together[number])
    graph.remove_edges_from(list(networkx.selfloop_edges(graph)))
    whole = networkx.condensation(graph)
    members: list[list[int]] = []
    position: dict[int, int] = {}
    for number in whole.nodes:
        roots = whole.nodes[number]["members"]
        members.append([n for n in range(len(kernels)) if together[n] in roots])
        position[number] = max(members[-1])
    order = networkx.lexicographical_topological_sort(whole, key=position.__getitem__)
    return [[kernels[n] for n in members[number]] for number in order]

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
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import networkx
import torch
from torch import fx

from lowtide.engine.capture.call import Call, call_of, module_of, source_of
from lowtide.engine.capture.piece import Piece, tensors_of
from lowtide.engine.capture.step import ALIGNMENT_BYTES, turn_of
from lowtide.engine.capture.tensors import storage_record
from lowtide.engine.inductor.kernels import Kernel, Lowered, lower
from lowtide.step.graph import (
    FOLDED,
    Kind,
    Op,
    Phase,
    Region,
    StepGraph,
    Storage,
    check_graph,
)

aten = torch.ops.aten
DRAWS_SEEDS = "draws the seeds of random numbers"
CHANGES_STATE = "changes state"
READS_CHANGED = "reads state that the step changes"
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
    each op of the step, none for the turn. `saved` are the values of the forward that
    the unplanned backward takes, in the order of its inputs. `value_of` are the fx
    nodes whose values have a storage.
    """

    forward: fx.GraphModule
    backward: fx.GraphModule
    saved: list[fx.Node]
    launches: list[Launch | None]
    value_of: dict[fx.Node, int]


def read_compiled(
    forward: fx.GraphModule,
    backward: fx.GraphModule,
    *,
    num_outputs: int,
    kinds: dict[int, Kind],
    names: dict[int, str],
) -> CompiledPiece:
    """The piece of two graphs that Inductor would compile.

    Args:
        forward: Its first `num_outputs` outputs are the user's, the others are saved.
        backward: Takes what was saved, and then the tangents.
        num_outputs: See above.
        kinds: What each input of the forward is, by position.
        names: What to call it.
    """
    return _Reader(forward, backward, num_outputs, kinds, names).read()


class _Reader:
    def __init__(
        self,
        forward: fx.GraphModule,
        backward: fx.GraphModule,
        num_outputs: int,
        kinds: dict[int, Kind],
        names: dict[int, str],
    ) -> None:
        outputs, inputs = _outputs(forward), _inputs(backward)
        tangents = [n for n in inputs if n.name.startswith("tangents")]
        self.piece = CompiledPiece(
            forward,
            forward_outputs=outputs[:num_outputs],
            gradients=_outputs(backward),
            mutated_inputs={},
            absent_tangents=frozenset(),
            primals=_inputs(forward),
            tangents=tangents,
            forward=forward,
            backward=backward,
            saved=outputs[num_outputs:],
            launches=[],
            value_of={},
        )
        self.kinds, self.names = kinds, names
        self.first = lower(forward, is_backward=False)
        self.second = lower(backward, is_backward=True)
        # Names of buffers and inputs, each graph's own, to storages.
        self.early: dict[str, int] = {}
        self.late: dict[str, int] = {}
        self.ops: list[Op] = []

    def read(self) -> CompiledPiece:
        piece = self.piece
        for place, node in enumerate(piece.primals):
            kind = self.kinds.get(place, "input")
            self.early[node.name] = self.input(node, kind, self.names.get(place, ""))
        self.forward_ops()
        crossing = _inputs(piece.backward)[: len(piece.saved)]
        held = self.first.outputs[-len(piece.saved) :] if piece.saved else ()
        for node, name in zip(crossing, held, strict=True):
            if name in self.early:
                self.late[node.name] = self.early[name]
        for node in piece.tangents:
            self.late[node.name] = self.input(node, "temporary")
        for node, name in zip(piece.forward_outputs, self.first.outputs, strict=False):
            if isinstance(node, fx.Node) and name in self.early:
                piece.storage_of[node] = (self.early[name],)
        self.ops.append(turn_of(piece, len(self.ops)))
        piece.launches.append(None)
        self.backward_ops()
        self.hold_outputs()
        piece.step = self.step()
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

    def made(self, kernels: Sequence[Kernel], lowered: Lowered, phase: Phase) -> int:
        """Register what these kernels leave to others; what stays inside is scratch."""
        known = self.early if phase == "forward" else self.late
        graph = self.piece.forward if phase == "forward" else self.piece.backward
        nodes = {n.name: n for n in graph.graph.nodes}
        own = {k.name for k in kernels}
        read_by: dict[str, set[str]] = defaultdict(set)
        for kernel in lowered.kernels:
            for name in kernel.reads:
                read_by[name].add(kernel.name)
        scratch = 0
        for kernel in kernels:
            for buffer in kernel.writes:
                outside = read_by[buffer.name] - own
                if outside or buffer.name in lowered.outputs:
                    if buffer.name not in known:
                        known[buffer.name] = len(self.piece.storages)
                        self.piece.storages.append(
                            _storage(known[buffer.name], buffer, nodes, phase)
                        )
                        if phase == "forward" and buffer.node in nodes:
                            value = nodes[buffer.node]
                            self.piece.value_of[value] = known[buffer.name]
                elif read_by[buffer.name] - {kernel.name}:
                    scratch += buffer.nbytes
        return scratch

    # Ops.

    def forward_ops(self) -> None:
        piece = self.piece
        groups = _grouped(self.first, split_reductions=True)
        scratch = [self.made(group, self.first, "forward") for group in groups]
        changed = {name for k in self.first.kernels for name in k.changes}
        for group, nbytes in zip(groups, scratch, strict=True):
            results = [
                node
                for kernel in group
                for buffer in kernel.writes
                for node in piece.value_of
                if node.name == buffer.node and node.op != "placeholder"
            ]
            cone, sources = self.cone(results)
            op = self.op(group, self.early, "forward", nbytes)
            reads = dict.fromkeys((*op.reads, *(piece.value_of[n] for n in sources)))
            op = replace(op, reads=tuple(reads))
            draws = any(map(_draws, cone))
            stale = changed.intersection(n.name for n in sources)
            mutates = any(k.changes for k in group)
            if draws or mutates or stale or not cone:
                once = DRAWS_SEEDS if draws else READS_CHANGED if stale else ""
                op = replace(op, once=once or CHANGES_STATE)
            self.add(op, Launch(tuple(group), cone))
            if mutates and cone and not draws and not stale:
                again = replace(
                    op,
                    id=len(self.ops),
                    name=op.name + " again",
                    reads=tuple(dict.fromkeys(piece.value_of[n] for n in sources)),
                    writes=tuple(dict.fromkeys(piece.value_of[n] for n in results)),
                    once="",
                    standby=True,
                    signature=op.signature + "/again",
                )
                self.add(again, Launch(tuple(group), cone))

    def backward_ops(self) -> None:
        for group in _grouped(self.second, split_reductions=False):
            scratch = self.made(group, self.second, "backward")
            op = self.op(group, self.late, "backward", scratch)
            nodes = {n.name: n for n in self.piece.backward.graph.nodes}
            # What they make that is no value of the graph comes with what reads it.
            made = (buffer.node for kernel in group for buffer in kernel.writes)
            cone = tuple(nodes[name] for name in made if name in nodes)
            self.add(replace(op, once=COMPILED_BACKWARD), Launch(tuple(group), cone))

    def add(self, op: Op, launch: Launch) -> None:
        self.ops.append(op)
        self.piece.launches.append(launch)
        if calls := list(self.calls_of(launch, op)):
            self.piece.calls[op.id] = calls

    def op(
        self, group: Sequence[Kernel], known: dict[str, int], phase: Phase, scratch: int
    ) -> Op:
        graph = self.piece.forward if phase == "forward" else self.piece.backward
        nodes = {n.name: n for n in graph.graph.nodes}
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
            phase=phase,
            module=next(filter(None, map(module_of, origins)), ""),
            source=next(filter(None, map(source_of, origins)), ""),
            signature=f"{FOLDED.join(targets)} {', '.join(shapes)}",
            scratch_bytes=scratch,
        )

    def cone(
        self, results: Sequence[fx.Node]
    ) -> tuple[tuple[fx.Node, ...], tuple[fx.Node, ...]]:
        """The nodes that compute these values, and the values these start from."""
        inside: set[fx.Node] = set()
        sources: dict[fx.Node, None] = {}
        stack = list(results)
        while stack:
            node = stack.pop()
            if node in inside:
                continue
            if node in self.piece.value_of and node not in results:
                sources[node] = None
                continue
            inside.add(node)
            stack.extend(node.all_input_nodes)
        order = [n for n in self.piece.forward.graph.nodes if n in inside]
        return tuple(order), tuple(sources)

    def calls_of(self, launch: Launch, op: Op) -> Iterator[Call]:
        """What to measure for its cost.

        A library's kernel is called as it is. A loop takes about as long as copying the
        bytes that go in and out, and random numbers as long as drawing them does.
        """
        graph = self.piece.forward if op.phase == "forward" else self.piece.backward
        nodes = {n.name: n for n in graph.graph.nodes}
        sizes = {s.id: s.nbytes for s in self.piece.storages}
        has_library = False
        for kernel in launch.kernels:
            node = nodes.get(kernel.library)
            has_library = has_library or node is not None
            if node is None or _draws(node):
                continue
            if isinstance(node.target, torch._ops.OpOverload):
                yield call_of(node.target, node)
        if not has_library:
            moved = sum(sizes[s] for s in {*op.reads, *op.writes})
            yield self.copy_of(moved // 2)
            for node in launch.cone:
                if node.target in _RANDOM:
                    yield self.copy_of(tensors_of(node)[0].numel(), draws=True)

    def copy_of(self, number: int, *, draws: bool = False) -> Call:
        """A call that copies so many bytes, or draws so many numbers."""
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

    # The step.

    def hold_outputs(self) -> None:
        piece = self.piece
        ones = [n for n in piece.tangents if n.meta["val"].numel() == 1]
        held = [s for n in ones for s in piece.storage_of[n]]
        held += [s for n in piece.forward_outputs for s in piece.storage_of.get(n, ())]
        for place, name in enumerate(self.second.outputs):
            if name not in self.late:
                continue
            s = self.late[name]
            if not piece.storages[s].resident:
                given = self.names.get(place, piece.storages[s].name)
                piece.storages[s] = replace(
                    piece.storages[s], kind="gradient", name=f"grad of {given}"
                )
                held.append(s)
        resident = {s.id for s in piece.storages if s.resident}
        piece.held_outputs = tuple(s for s in dict.fromkeys(held) if s not in resident)

    def step(self) -> StepGraph:
        piece = self.piece
        device = tensors_of(piece.primals[0])[0].device.type
        step = StepGraph(
            ops=tuple(self.ops),
            storages=tuple(piece.storages),
            outputs=piece.held_outputs,
            regions=(Region(0, "forward"), Region(0, "backward")),
            alignment_bytes=ALIGNMENT_BYTES.get(device, 1),
            device=device,
        )
        check_graph(step)
        own = [step.fingerprint, 0, step.turn, step.turn + 1, len(step.ops)]
        return replace(step, facts={"pieces": [own], "eager_extra_bytes": 0})


def _storage(number: int, buffer: Any, nodes: dict[str, fx.Node], phase: Phase) -> Any:
    kind: Kind = "activation" if phase == "forward" else "temporary"
    value = tensors_of(nodes[buffer.node]) if buffer.node in nodes else []
    name = buffer.node or buffer.name
    if len(value) != 1:
        return Storage(number, name, buffer.nbytes, kind)
    return storage_record(value[0], number, name, buffer.nbytes, kind, False)


def _inputs(module: fx.GraphModule) -> list[fx.Node]:
    return module.graph.find_nodes(op="placeholder")


def _outputs(module: fx.GraphModule) -> list[Any]:
    (node,) = module.graph.find_nodes(op="output")
    return list(node.args[0])


def _draws(node: fx.Node) -> bool:
    tags: Iterable[Any] = getattr(node.target, "tags", ())
    return torch.Tag.nondeterministic_seeded in tags


def _grouped(lowered: Lowered, *, split_reductions: bool) -> list[list[Kernel]]:
    """Kernels that can only run together, in an order in which all can run.

    These are the ones that write parts of one buffer and, if asked, those that make
    what is no value of the fx graph, with their readers.
    """
    kernels = lowered.kernels
    together = networkx.utils.UnionFind(range(len(kernels)))
    written: dict[str, list[int]] = defaultdict(list)
    unnamed: set[str] = set()
    for number, kernel in enumerate(kernels):
        for buffer in kernel.writes:
            written[buffer.name].append(number)
            if not buffer.node and buffer.nbytes:
                unnamed.add(buffer.name)
    unnamed -= {*lowered.outputs}
    for numbers in written.values():
        together.union(*numbers)
    graph = networkx.DiGraph()
    for number, kernel in enumerate(kernels):
        for name in kernel.reads:
            if split_reductions and name in unnamed:
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

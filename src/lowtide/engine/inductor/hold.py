"""Hold Inductor to a plan: which kernels there are, in which order, in how many bytes.

Left to itself, Inductor fuses kernels that the plan has far apart, which keeps what
they read alive in between, and orders them anew. So it is first asked what it would
make of the planned graphs. Where that needs more than the plan says, only kernels of
one launch are fused, and they run in the plan's order.

NOTE(torch>=2.13,<2.16): the choices' handler and the pass behind fusion are Inductor's
own ways to say this; for the reuse of buffers there is none but to use it or not.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any
from unittest.mock import patch

import networkx
from torch import fx
from torch._inductor import config
from torch._inductor.choices import InductorChoices
from torch._inductor.codegen.wrapper import AllocateLine, FreeIfNotReusedLine
from torch._inductor.scheduler import BaseSchedulerNode, Scheduler
from torch._inductor.virtualized import V

from lowtide.engine.capture.nodes import inputs_of
from lowtide.engine.capture.piece import tensors_of
from lowtide.engine.capture.step import step_of
from lowtide.engine.graphs.rewrite import Halves, Orders
from lowtide.engine.inductor.kernels import lower, place_of
from lowtide.engine.inductor.piece import CompiledPiece
from lowtide.step.graph import StepGraph
from lowtide.step.schedule import with_frees
from lowtide.step.simulate import simulate


class _OneLaunch(InductorChoices):
    """Fuses what belongs to one launch of the plan, and nothing else."""

    @staticmethod
    def can_fuse(
        scheduler: Scheduler,
        node1: BaseSchedulerNode,
        node2: BaseSchedulerNode,
        shared_data_score: int,
    ) -> bool:
        return place_of(node1) == place_of(node2) and InductorChoices.can_fuse(
            scheduler, node1, node2, shared_data_score
        )


@contextmanager
def as_planned() -> Iterator[None]:
    """Let Inductor make the planned kernels, and launch them in the planned order."""
    handler: Any = V.set_choices_handler(_OneLaunch())
    patched = config.patch(
        _post_fusion_custom_pass=_in_order,
        reorder_for_peak_memory=False,
        # What it would find there was compiled in another order.
        fx_graph_cache=False,
    )
    with handler, patched:
        yield


def freeing_at_once() -> Any:
    """Let buffers be freed where nobody reads them any more.

    Inductor holds on to one to use it again later, as long as it believes that this
    does not raise the peak. It believes in a higher peak than there is.
    """

    def is_next(self: AllocateLine, free_line: FreeIfNotReusedLine, size: int) -> bool:
        del size
        return free_line.scheduler_node_index + 1 == self.scheduler_node_index

    return patch.object(AllocateLine, "should_reuse_buffer", is_next)


def _in_order(nodes: list[BaseSchedulerNode]) -> list[BaseSchedulerNode]:
    """The kernels by their places, as far as each finds what it reads."""
    makers = {
        name: place
        for place, node in enumerate(nodes)
        for name in node.get_buffer_names()
    }
    graph = networkx.DiGraph()
    graph.add_nodes_from(range(len(nodes)))
    for place, node in enumerate(nodes):
        for read in node.unmet_dependencies:
            if makers.get(read.name, place) != place:
                graph.add_edge(makers[read.name], place)
    keys = [(place_of(node), place) for place, node in enumerate(nodes)]
    order = networkx.lexicographical_topological_sort(graph, key=keys.__getitem__)
    return [nodes[place] for place in order]


def excess_bytes(piece: CompiledPiece, orders: Orders, halves: Halves) -> int:
    """By how much Inductor's kernels for these graphs exceed what the plan says.

    Both are counted for the graphs alone, without what else a step has in memory.
    """
    step = _with_scratch(piece)
    both = (*orders.forward, step.turn, *orders.backward)
    planned = simulate(step, with_frees(step, both)).peak_bytes
    resident = {node.name for node in piece.primals}
    names = {*halves.saved}
    saved = {s for node, s in piece.value_of.items() if node.name in names}
    kept = {*piece.storages_in(piece.forward_outputs)}.intersection(step.outputs)
    held = sum(step.sizes[s] for s in kept - saved)
    scratch = [[piece.scratch.get(n, 0) for n in order] for order in orders]
    first = _most_bytes(halves.forward, scratch[0], resident, is_backward=False)
    second = _most_bytes(halves.backward, scratch[1], resident, is_backward=True)
    return max(first, second + held) + step.resident_bytes - planned


def _with_scratch(piece: CompiledPiece) -> StepGraph:
    """The step of the piece, with what its library calls were seen to need inside."""
    step = step_of(piece)
    ops = [
        replace(op, scratch_bytes=op.scratch_bytes + piece.scratch.get(op.id, 0))
        for op in step.ops
    ]
    return replace(step, ops=tuple(ops))


def _most_bytes(
    module: fx.GraphModule,
    scratch: Sequence[int],
    resident: set[str],
    *,
    is_backward: bool,
) -> int:
    """The most bytes that a graph's kernels have at once, residents not among them.

    Each buffer lives from its first writer to its last reader, what is returned to the
    end, and what is given from the beginning. What only its own loop reads is never
    allocated.
    """
    lowered = lower(module, is_backward=is_backward)
    last: dict[str, int] = {}
    for number, kernel in enumerate(lowered.kernels):
        written = (buffer.name for buffer in kernel.writes)
        last |= dict.fromkeys((*kernel.reads, *written), number)
    last |= dict.fromkeys(lowered.outputs, len(lowered.kernels))
    sizes = {buffer.name: buffer.nbytes for buffer in lowered.buffers.values()}
    live = {
        node.name: sum(v.untyped_storage().nbytes() for v in tensors_of(node))
        for node in inputs_of(module)
        if node.name not in resident
    }
    most = sum(live.values())
    for number, kernel in enumerate(lowered.kernels):
        live = {name: n for name, n in live.items() if last.get(name, -1) >= number}
        for name in (buffer.name for buffer in kernel.writes):
            if kernel.library or last[name] > number:
                live[name] = sizes[name]
        inside = scratch[kernel.place] if kernel.library else 0
        most = max(most, sum(live.values()) + inside)
    return most

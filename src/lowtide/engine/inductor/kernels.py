"""What Inductor makes of a graph: its kernels and the buffers between them.

NOTE(torch>=2.13,<2.16): reads Inductor's scheduler, after fusion and reordering, just
before it would write code. Nothing is written and no C++ compiler is called, so this
costs a second or two.
"""

from __future__ import annotations

import copy
from contextlib import suppress
from dataclasses import dataclass
from typing import Any
from unittest.mock import patch

from torch import fx
from torch._inductor import config, ir
from torch._inductor.compile_fx import compile_fx_inner
from torch._inductor.scheduler import (
    BaseSchedulerNode,
    ExternKernelSchedulerNode,
    Scheduler,
)
from torch._inductor.virtualized import V

from lowtide.engine.capture.tensors import span_of

# Where nodes of the graphs that are written for a plan name their launch.
PLACE = "lowtide_place"


@dataclass(frozen=True)
class Buffer:
    """Memory that a kernel writes. `node` names the fx node whose value it holds."""

    name: str
    nbytes: int
    node: str


@dataclass(frozen=True)
class Kernel:
    """One launch: a fused loop, or a call of a library.

    `reads` are names of buffers and of the graph's inputs. `nodes` names the fx nodes
    that it computes, and `library` the one whose op is called, if it is such a call.
    `changes` names the graph's inputs that it changes in place. `place` is the launch
    of the plan that it belongs to, in a graph that was written for one, or else -1.
    """

    name: str
    reads: tuple[str, ...]
    writes: tuple[Buffer, ...]
    nodes: tuple[str, ...]
    library: str = ""
    changes: tuple[str, ...] = ()
    place: int = -1


@dataclass(frozen=True)
class Lowered:
    """The kernels of a graph in the order of their launches.

    `outputs` names for each of the graph's outputs the buffer or input that it lies in,
    or nothing where there is none.
    """

    kernels: tuple[Kernel, ...]
    outputs: tuple[str, ...]

    @property
    def buffers(self) -> dict[str, Buffer]:
        """The buffers by name. Those who write a part of one do not know its size."""
        found: dict[str, Buffer] = {}
        for buffer in (b for kernel in self.kernels for b in kernel.writes):
            if buffer.name not in found or buffer.nbytes:
                found[buffer.name] = buffer
        return found


class _Read(BaseException):
    """The scheduler has been read; the rest of the compilation is not wanted."""


def lower(module: fx.GraphModule, *, is_backward: bool) -> Lowered:
    """What Inductor would launch for a graph. It is not changed."""
    found: list[Lowered] = []

    def read(scheduler: Scheduler) -> None:
        found.append(_lowered(scheduler))
        raise _Read

    module = copy.deepcopy(module)
    inputs = [n.meta["val"] for n in module.graph.find_nodes(op="placeholder")]
    with (
        patch.object(Scheduler, "codegen", read),
        config.patch(fx_graph_cache=False, custom_partitioner_fn=None),
        suppress(_Read),
    ):
        compile_fx_inner(module, inputs, is_backward=is_backward)
    assert found, "Inductor did not come as far as its scheduler"
    return found[0]


def _lowered(scheduler: Scheduler) -> Lowered:
    owners: dict[str, str] = {}
    for node in scheduler.nodes:
        for buffer in node.get_outputs():
            layout, name = buffer.node.layout, buffer.get_name()
            if isinstance(layout, ir.NonOwningLayout):
                # It lies in the buffer of a concatenation.
                owners[name] = layout.view.get_name()
            for changed in buffer.get_mutations():
                # It is that other buffer, with another content.
                owners[name] = owners.get(changed, changed)
    graph: Any = V.graph.module.graph
    (output,) = graph.find_nodes(op="output")
    pairs = list(zip(output.args[0], V.graph.graph_outputs, strict=True))
    outputs = tuple(_name_of(node, value) for node, value in pairs)
    values = {
        name: node.name
        for name, (node, value) in zip(outputs, pairs, strict=True)
        if isinstance(node, fx.Node) and node.op == "call_function"
        if _is_whole(value)
    }
    kernels = tuple(_kernel(node, owners, values) for node in scheduler.nodes)
    return Lowered(kernels, tuple(owners.get(name, name) for name in outputs))


def _is_whole(value: Any) -> bool:
    """Whether an output is all of its buffer, not a view of a part."""
    while isinstance(value, ir.MutableBox):
        value = value.data
    if not isinstance(value, ir.BaseView):
        return True
    base = value.unwrap_view()
    buffer = V.graph.get_buffer(base.get_name())
    return value.get_numel() == buffer.get_numel()


def _name_of(node: Any, value: Any) -> str:
    """The buffer of an output. Of an input that is returned it may be a copy in another
    layout, but that is not what the other half asks for."""
    if isinstance(node, fx.Node) and node.op == "placeholder":
        return node.name
    is_tensor = isinstance(value, ir.IRNode) and value.has_tensor_output()
    return value.get_name() if is_tensor else ""


def _kernel(
    node: BaseSchedulerNode, owners: dict[str, str], values: dict[str, str]
) -> Kernel:
    parts = [part.node for part in node.get_nodes() if part.node is not None]
    writes: list[Buffer] = []
    for buffer in node.get_outputs():
        name, value = buffer.get_name(), buffer.node
        origin = value.get_origin_node()
        is_value = origin is not None and origin.op == "call_function"
        known = (origin.name if origin and is_value else "") or values.get(name, "")
        owner = owners.get(name)
        if owner is None:
            writes.append(Buffer(name, _bytes_of(value), known))
        elif owner not in V.graph.graph_input_names:
            writes.append(Buffer(owner, 0, ""))
    names = {origin.name for part in parts for origin in part.get_origins()}
    graph: Any = V.graph.module.graph
    reads = (d.name for d in sorted(node.read_writes.reads, key=lambda d: d.name))
    return Kernel(
        name=node.get_name(),
        reads=tuple(dict.fromkeys(owners.get(name, name) for name in reads)),
        writes=tuple(writes),
        nodes=tuple(n.name for n in graph.nodes if n.name in names),
        library=_library_of(node),
        changes=tuple(
            owner
            for buffer in node.get_outputs()
            if (owner := owners.get(buffer.get_name())) in V.graph.graph_input_names
        ),
        place=place_of(node),
    )


def place_of(node: BaseSchedulerNode) -> int:
    """The launch that a kernel belongs to: the last of those that its nodes name."""
    parts = [part.node for part in node.get_nodes() if part.node is not None]
    places = (o.meta.get(PLACE, -1) for part in parts for o in part.get_origins())
    return max(places, default=-1)


def _library_of(node: BaseSchedulerNode) -> str:
    """The fx node whose op is called as it is; of a tuple's item, the item's."""
    if not isinstance(node, ExternKernelSchedulerNode) or node.node is None:
        return ""
    origin = node.node.get_origin_node()
    called = getattr(node.node, "op_overload", None)
    same = [o for o in node.node.get_origins() if o.target is called]
    return origin.name if origin else same[0].name if same else ""


def _bytes_of(value: Any) -> int:
    """Bytes that are allocated for a buffer; for a tuple's own node there are none."""
    layout = value.layout
    if not isinstance(layout, ir.Layout) or isinstance(
        layout, ir.MutationLayoutSHOULDREMOVE
    ):
        return 0
    size, stride = [*map(int, layout.size)], [*map(int, layout.stride)]
    return span_of(size, stride) * layout.dtype.itemsize

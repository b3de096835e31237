"""The `torch.compile` backend, and the glue that every other way in uses.

NOTE(torch>=2.13,<2.14): AOTAutograd hands us the joint graph through `partition_fn`, and
calls what our compilers return with a list it gives up (`_boxed_call`), so that what is
dropped is really freed.

A piece is one graph that dynamo captured. Whoever compiles says, through a `Decide`
function, in which order the piece's ops run; this module turns the answer into callables
and keeps the promises that only hold at run time.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import fx
from torch._dynamo.backends.common import aot_autograd
from torch.fx.graph import _BoxedCodeGen

from lowtide._capture._joint import Piece, read_joint
from lowtide._capture._zeros import guess_absent, without_tangents
from lowtide._graph import Kind
from lowtide._rewrite import split
from lowtide.errors import CaptureError, UnsupportedTorchError

Halves = tuple[Sequence[int], Sequence[int]]
Decide = Callable[[Piece], Halves]


@dataclass
class Watch:
    """What happened at run time, for those who must know.

    `forwards` and `backwards` count the runs of planned graphs; `unplanned` counts
    graphs that have no backward. The hooks are called around each run.
    """

    forwards: int = 0
    backwards: int = 0
    unplanned: int = 0
    graphs: int = 0
    on_forward: list[Callable[[Piece, list[Any], Any], None]] = field(
        default_factory=list[Any]
    )
    on_backward: list[Callable[[Piece, list[Any], Any], None]] = field(
        default_factory=list[Any]
    )


def compile_with(decide: Decide, watch: Watch) -> Callable[..., Any]:
    """A dynamo backend that runs each captured piece as `decide` says."""

    def backend(
        gm: fx.GraphModule, example_inputs: Sequence[Any], **unused: Any
    ) -> Callable[..., Any]:
        del unused
        return _compile(gm, example_inputs, decide, watch)

    return backend


def _compile(
    gm: fx.GraphModule, example_inputs: Sequence[Any], decide: Decide, watch: Watch
) -> Callable[..., Any]:
    kinds, names = _roles(gm, example_inputs)
    pieces: list[Piece] = []

    def partition(
        joint: fx.GraphModule,
        joint_inputs: Any,
        *,
        num_fwd_outputs: int,
        static_lifetime_input_indices: Any = None,
        **new: Any,
    ) -> tuple[fx.GraphModule, fx.GraphModule]:
        del joint_inputs, static_lifetime_input_indices
        if new:
            raise UnsupportedTorchError(
                f"its partition function is given unknown arguments {sorted(new)}",
                torch.__version__,
            )
        piece = read_piece(joint, num_fwd_outputs, kinds=kinds, names=names)
        pieces.append(piece)
        watch.graphs += 1
        forward, backward = decide(piece)
        return split(piece, forward, backward)

    def forward_compiler(module: fx.GraphModule, inputs: Any) -> Callable[..., Any]:
        del inputs
        run = _boxed(module)

        def forward(args: list[Any]) -> Any:
            watch.forwards += 1
            seen = list(args) if watch.on_forward else []
            outputs = run(args)
            for hook in watch.on_forward:
                hook(pieces[0], seen, outputs)
            return outputs

        forward._boxed_call = True  # type: ignore[attr-defined]
        return forward

    def backward_compiler(module: fx.GraphModule, inputs: Any) -> Callable[..., Any]:
        del inputs
        run = _boxed(module)

        def backward(args: list[Any]) -> Any:
            watch.backwards += 1
            _complete_tangents(pieces[0], args)
            seen = list(args) if watch.on_backward else []
            outputs = run(args)
            for hook in watch.on_backward:
                hook(pieces[0], seen, outputs)
            return outputs

        backward._boxed_call = True  # type: ignore[attr-defined]
        return backward

    def inference_compiler(module: fx.GraphModule, inputs: Any) -> Callable[..., Any]:
        del inputs
        watch.unplanned += 1
        return _boxed(module)

    compiled = aot_autograd(
        fw_compiler=forward_compiler,
        bw_compiler=backward_compiler,
        inference_compiler=inference_compiler,
        partition_fn=partition,
    )(gm, list(example_inputs))

    def call(*args: Any) -> Any:
        outputs = compiled(*args)
        if pieces and pieces[0].absent_tangents:
            _leave_missing_gradients_out(outputs)
        return outputs

    return call


def read_piece(
    joint: fx.GraphModule,
    num_forward_outputs: int,
    *,
    kinds: dict[int, Kind] | None = None,
    names: dict[int, str] | None = None,
) -> Piece:
    """The piece of a joint graph, without the gradients that will not arrive."""
    absent = guess_absent(joint)
    reduced = without_tangents(joint, absent) if absent else None
    return read_joint(
        reduced if reduced is not None else joint,
        num_forward_outputs=num_forward_outputs,
        kinds=kinds,
        names=names,
        absent_tangents=absent if reduced is not None else frozenset(),
    )


def _boxed(module: fx.GraphModule) -> Callable[..., Any]:
    """The module as a function that takes a list and empties it."""
    module.graph.set_codegen(_BoxedCodeGen())
    module.recompile()
    forward = module.forward

    def run(args: list[Any]) -> Any:
        return forward(args)

    run._boxed_call = True  # type: ignore[attr-defined]
    return run


def _complete_tangents(piece: Piece, args: list[Any]) -> None:
    """Fill in zeros for gradients that were expected and did not come."""
    first = len(args) - len(piece.tangents)
    for place, node in enumerate(piece.tangents):
        value = args[first + place]
        if place in piece.absent_tangents:
            if value is not None:
                raise CaptureError(
                    f"a gradient arrived for {node.name}, an output returned beside "
                    "the loss that was taken for one nobody differentiates",
                    fix="Give lowtide.optimize a function that returns only the loss",
                )
        elif value is None:
            fake = node.meta["val"]
            args[first + place] = torch.zeros(
                fake.shape, dtype=fake.dtype, device=fake.device
            )


def _leave_missing_gradients_out(outputs: Any) -> None:
    """Tell autograd to pass on missing gradients instead of filling in zeros.

    An output's `grad_fn` is the context of the compiled function, or a view of it.
    """
    for value in outputs if isinstance(outputs, list | tuple) else (outputs,):
        node = getattr(value, "grad_fn", None)
        for _ in range(3):
            if node is None:
                break
            if hasattr(node, "set_materialize_grads"):
                node.set_materialize_grads(False)
                return
            node = node.next_functions[0][0] if node.next_functions else None


_SOURCE_PART = re.compile(r"_(?:modules|parameters|buffers)\['([^']+)'\]")


def _roles(
    gm: fx.GraphModule, example_inputs: Sequence[Any]
) -> tuple[dict[int, Kind], dict[int, str]]:
    """What each input of a dynamo graph is, and what the user calls it."""
    kinds: dict[int, Kind] = {}
    names: dict[int, str] = {}
    for place, node in enumerate(gm.graph.find_nodes(op="placeholder")):
        source = getattr(node, "_dynamo_source", None)
        text = getattr(source, "name", "")
        text = text() if callable(text) else str(text)
        value = example_inputs[place] if place < len(example_inputs) else None
        if isinstance(value, torch.nn.Parameter):
            kinds[place] = "parameter"
        elif "_buffers[" in text:
            kinds[place] = "buffer"
        else:
            kinds[place] = "input"
        parts = _SOURCE_PART.findall(text)
        names[place] = ".".join(parts) if parts else node.name
    return kinds, names

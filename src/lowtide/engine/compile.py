"""From a captured graph to callables, through AOTAutograd.

NOTE(torch>=2.13,<2.14): AOTAutograd hands us the joint graph through `partition_fn`,
and calls what our compilers return with a list it gives up (`_boxed_call`), so that
what is dropped is really freed.

A piece is one graph that dynamo captured. Whoever compiles says, through a `Decide`
function, in which order the piece's ops run; this module turns the answer into
callables and keeps the promises that only hold at run time.
"""

from __future__ import annotations

import itertools
import logging
import re
import types
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import Any

import torch
from torch import fx
from torch._dynamo.backends.common import aot_autograd
from torch.utils._python_dispatch import _disable_current_modes

from lowtide.engine.capture.arrival import (
    Tracer,
    arrival_of,
    as_expected,
    copied_as_expected,
)
from lowtide.engine.capture.eager import (
    AS_OUTPUTS,
    Arrival,
    compute_as_eager,
    tracing_as_eager,
)
from lowtide.engine.capture.joint import read_joint
from lowtide.engine.capture.piece import Piece
from lowtide.engine.capture.zeros import guess_absent, without_tangents
from lowtide.engine.notices import warn
from lowtide.engine.orders import Orders
from lowtide.engine.others import OtherBackwards, boxed
from lowtide.engine.rewrite import saved_name, split
from lowtide.engine.sums import SumWatch
from lowtide.engine.watch import Watch, compiled_node
from lowtide.errors import (
    CaptureError,
    LowtideError,
    UnsupportedTorchError,
)
from lowtide.step.graph import Kind

Decide = Callable[[Piece], Orders]
_NUMBERS = itertools.count()
log = logging.getLogger("lowtide.run")

_TESTED = ("2", "13")


def compiled(
    function: Callable[..., Any],
    decide: Decide,
    watch: Watch,
    *,
    fullgraph: bool,
    with_numbers: bool = False,
) -> Callable[..., Any]:
    """The function under `torch.compile`, each graph run as `decide` says.

    Every call gets a code object with a name and a compile cache of its own, so that
    the number of shapes and models in one process is not limited by dynamo's recompile
    limit, and no shape is taken to change because another model's does.

    Args:
        function: What is compiled.
        decide: The order of the ops of each graph.
        watch: Told of everything that happens at run time.
        fullgraph: Whether a graph break is an error, or just begins another graph. In
            the latter case a graph that cannot be planned runs as it is.
        with_numbers: Whether a Python number that changes from call to call becomes an
            input of the graph, instead of a constant of a new one.
    """

    def call(*args: Any, **kwargs: Any) -> Any:
        return function(*args, **kwargs)

    fresh = types.FunctionType(
        call.__code__.replace(co_name=f"call_{next(_NUMBERS)}"),
        call.__globals__,
        closure=call.__closure__,
    )
    planned = torch.compile(  # pyright: ignore[reportCallIssue]
        fresh,
        backend=compile_with(decide, watch, lenient=not fullgraph),
        dynamic=None if with_numbers else False,
        fullgraph=fullgraph,
        isolate_recompiles=True,
        recompile_limit=64,
    )

    settings = _capture_settings(fullgraph)

    def run(*args: Any, **kwargs: Any) -> Any:
        with settings:
            return planned(*args, **kwargs)

    return run


def _once_only() -> set[Any]:
    """Methods of loggers that say a thing once; they are no reason to cut a graph."""
    names = ("debug", "warning_once", "info_once", "warning_advice")
    return {m for n in names if (m := getattr(logging.Logger, n, None)) is not None}


def _capture_settings(fullgraph: bool) -> AbstractContextManager[None]:
    """How dynamo is to capture; torch never forgets one of these, so it is used again.

    Hooks that are added later count, and numbers in modules may change. DDP's buckets
    are no reason to cut a step into pieces. Where pieces are allowed, what dynamo
    cannot follow runs as it is.
    """
    return torch._dynamo.config.patch(
        skip_nnmodule_hook_guards=False,
        allow_unspec_int_on_nn_module=True,
        optimize_ddp=False,
        ignore_logging_functions=_once_only(),
        suppress_errors=not fullgraph,
    )


def explain_failure(error: BaseException) -> BaseException:
    """Our own error out of the layers that torch wraps around it."""
    seen: BaseException | None = error
    while seen is not None:
        if isinstance(seen, LowtideError):
            return seen
        inner = getattr(seen, "inner_exception", None)
        seen = inner or seen.__cause__ or seen.__context__
    return error


class Refusal(BaseException):
    """An error of ours on its way through dynamo, which goes on behind all others."""

    def __init__(self, error: LowtideError) -> None:
        super().__init__(str(error))
        self.error = error


def reason_of(error: BaseException) -> str:
    """Why a graph could not be captured, in one line."""
    found = explain_failure(error)
    while getattr(found, "inner_exception", None) is not None:
        found = found.inner_exception  # type: ignore[attr-defined]
    line = next((t for t in str(found).splitlines() if t.strip()), "")
    return (
        line if isinstance(found, LowtideError) else f"{type(found).__name__}: {line}"
    )


def compile_with(
    decide: Decide, watch: Watch, *, lenient: bool = False
) -> Callable[..., Any]:
    """A dynamo backend that runs each captured piece as `decide` says.

    If it is lenient, a piece that cannot be planned runs as it is.
    """
    if tuple(torch.__version__.split(".")[:2]) != _TESTED:
        raise UnsupportedTorchError("it was never tried", torch.__version__)

    def backend(
        gm: fx.GraphModule, example_inputs: Sequence[Any], **unused: Any
    ) -> Callable[..., Any]:
        del unused
        try:
            return _compile(gm, example_inputs, decide, watch)
        except Exception as error:
            found = explain_failure(error)
            if not lenient:
                raise
            if isinstance(found, LowtideError) and not isinstance(found, CaptureError):
                raise Refusal(found) from None
            watch.left.append(reason_of(error))
            log.info("a graph runs as it is: %s", watch.left[-1], exc_info=True)
            return gm.forward

    return backend


def _compile(
    gm: fx.GraphModule, example_inputs: Sequence[Any], decide: Decide, watch: Watch
) -> Callable[..., Any]:
    kinds, names = _roles(gm, example_inputs)
    pieces: list[Piece] = []
    others: list[OtherBackwards] = []
    sums: list[SumWatch] = []

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
        # Tracing runs under fake tensors; what follows computes with real ones.
        with _disable_current_modes(), torch.no_grad():
            compute_as_eager(joint)
        piece = read_piece(
            joint,
            num_fwd_outputs,
            kinds=kinds,
            names=names,
            absent=watch.expected_absent,
        )
        pieces.append(piece)
        watch.graphs += 1
        # To decide, ops may be timed.
        with _disable_current_modes(), torch.no_grad():
            forward, backward = decide(piece)
        # Another backward may need any input; those that change are not theirs again.
        inputs = [
            node.name
            for place, node in enumerate(piece.primals)
            if piece.absent_tangents and place not in piece.mutated_inputs
        ]
        halves = split(piece, forward, backward, also_save=inputs)
        saved = set(halves.saved)
        piece.kept_bytes = sum(
            storage.nbytes
            for number, storage in enumerate(piece.storages)
            if not storage.resident and saved_name(piece, number) in saved
        )
        others.append(
            OtherBackwards(joint, num_fwd_outputs, halves.saved, tracer, backward)
        )
        sums.append(SumWatch(piece, names, watch.told))
        return halves.forward, halves.backward

    def forward_compiler(module: fx.GraphModule, inputs: Any) -> Callable[..., Any]:
        del inputs
        run = boxed(module)

        def forward(args: list[Any]) -> Any:
            with torch._C._DisableAutocast():
                return watch.run(pieces[0], "forward", args, run)

        forward._boxed_call = True  # type: ignore[attr-defined]
        return forward

    def backward_compiler(module: fx.GraphModule, inputs: Any) -> Callable[..., Any]:
        del inputs
        run = boxed(module)

        def backward(args: list[Any]) -> Any:
            piece = pieces[0]
            absent = _absent(piece, args)
            arrival = _arrival(piece, args)
            if arrival != AS_OUTPUTS and not tracer.can_trace:
                _copy_as_expected(piece, args, watch.told)
                arrival = AS_OUTPUTS
            chosen = run
            if absent != piece.absent_tangents:
                watch.surprises += 1
                watch.seen_absent = absent
            if absent != piece.absent_tangents or arrival != AS_OUTPUTS:
                chosen = others[0].find(absent, arrival, piece, args)
            with torch._C._DisableAutocast():
                gradients = watch.run(piece, "backward", args, chosen)
            sums[0].note(gradients)
            return gradients

        backward._boxed_call = True  # type: ignore[attr-defined]
        return backward

    def inference_compiler(module: fx.GraphModule, inputs: Any) -> Callable[..., Any]:
        del inputs
        watch.unplanned += 1
        run = boxed(module)

        def inference(args: list[Any]) -> Any:
            with torch._C._DisableAutocast():
                return run(args)

        inference._boxed_call = True  # type: ignore[attr-defined]
        return inference

    tracer = Tracer(gm, example_inputs)
    with tracing_as_eager():
        run_compiled = aot_autograd(
            fw_compiler=forward_compiler,
            bw_compiler=backward_compiler,
            inference_compiler=inference_compiler,
            partition_fn=partition,
        )(gm, list(example_inputs))

    is_first = True

    def call(*args: Any) -> Any:
        nonlocal is_first
        if is_first and sums:
            sums[0].start(args)
        is_first = False
        outputs = run_compiled(*args)
        if pieces:
            watch.hold(pieces[0], outputs)
            if len(pieces[0].tangents) > 1:
                _leave_missing_gradients_out(outputs)
        return outputs

    return call


def read_piece(
    joint: fx.GraphModule,
    num_forward_outputs: int,
    *,
    kinds: dict[int, Kind] | None = None,
    names: dict[int, str] | None = None,
    absent: frozenset[int] | None = None,
) -> Piece:
    """The piece of a joint graph, without the gradients that will not arrive.

    Which these are is guessed where it is not given.
    """
    absent = guess_absent(joint) if absent is None else absent
    reduced = without_tangents(joint, absent) if absent else None
    return read_joint(
        reduced if reduced is not None else joint,
        num_forward_outputs=num_forward_outputs,
        kinds=kinds,
        names=names,
        absent_tangents=absent if reduced is not None else frozenset(),
    )


def _absent(piece: Piece, args: list[Any]) -> frozenset[int]:
    """Places of the gradients that did not come."""
    tangents = args[len(args) - len(piece.tangents) :]
    return frozenset(place for place, value in enumerate(tangents) if value is None)


def _arrival(piece: Piece, args: list[Any]) -> Arrival:
    """How the gradients came; in a dry run, as they were expected."""
    first = len(args) - len(piece.tangents)
    args[first:] = as_expected(piece.tangents, args[first:])
    return arrival_of(piece.tangents, args[first:])


def _copy_as_expected(piece: Piece, args: list[Any], told: set[str]) -> None:
    """Bring gradients into the layout that was captured, and say it once."""
    first = len(args) - len(piece.tangents)
    args[first:] = copied_as_expected(piece.tangents, args[first:])
    if "layout" not in told:
        told.add("layout")
        warn(
            "lowtide: a gradient arrives in another layout than its output has, at a "
            "graph with Python numbers among its inputs, and is copied. Sums over it "
            "may differ from eager's in the last bit. Pass the numbers as tensors."
        )


def _leave_missing_gradients_out(outputs: Any) -> None:
    """Tell autograd to pass on missing gradients instead of filling in zeros."""
    node = compiled_node(outputs)
    if node is not None:
        node.set_materialize_grads(False)


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
        text = str(text() if callable(text) else text)
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

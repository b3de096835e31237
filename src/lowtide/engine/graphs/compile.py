"""From a captured graph to callables, through AOTAutograd.

NOTE(torch>=2.13,<2.16): AOTAutograd hands us the joint graph through `partition_fn`,
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
from typing import Any, Literal

import torch
from torch import fx
from torch._dynamo.backends.common import aot_autograd
from torch._dynamo.exc import RestartAnalysis
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import _disable_current_modes

from lowtide.engine.capture.arrival import (
    Tracer,
    arrival_of,
    as_expected,
    copied_as_expected,
)
from lowtide.engine.capture.breaks import going_on
from lowtide.engine.capture.convolutions import set_gradients_apart
from lowtide.engine.capture.eager import (
    AS_OUTPUTS,
    Arrival,
    compute_as_eager,
    tracing_as_eager,
)
from lowtide.engine.capture.joint import read_joint
from lowtide.engine.capture.momentum import set_momentum
from lowtide.engine.capture.numbers import take_numbers
from lowtide.engine.capture.piece import Piece
from lowtide.engine.capture.questions import BREAKS
from lowtide.engine.capture.shapes import with_symbols
from lowtide.engine.capture.uses import with_an_input_for_each_use
from lowtide.engine.capture.zeros import guess_absent, without_tangents
from lowtide.engine.failures import Refusal, explain_failure, reason_of
from lowtide.engine.graphs.handover import Handover, cap_of_exchange
from lowtide.engine.graphs.orders import OrdersBySize
from lowtide.engine.graphs.others import OtherBackwards, callable_of
from lowtide.engine.graphs.rewrite import Orders
from lowtide.engine.graphs.sums import SumWatch
from lowtide.engine.graphs.watch import Watch, compiled_node
from lowtide.engine.notices import warn
from lowtide.engine.seam import check_torch, without_timing_guards
from lowtide.errors import CaptureError, LowtideError, UnsupportedTorchError
from lowtide.step.graph import Kind

Decide = Callable[[Piece], Orders]
# Whose kernels run the ops: PyTorch's own, or Inductor's.
Inner = Literal["eager", "inductor"]
_NUMBERS = itertools.count()
log = logging.getLogger("lowtide.run")


def compiled(
    function: Callable[..., Any],
    decide: Decide,
    watch: Watch,
    *,
    fullgraph: bool,
    with_numbers: bool = False,
    inner: Inner = "eager",
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
        inner: Whose kernels run the ops.
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
        backend=compile_with(decide, watch, lenient=not fullgraph, inner=inner),
        dynamic=None if with_numbers and inner == "eager" else False,
        fullgraph=fullgraph,
        isolate_recompiles=True,
        recompile_limit=64,
    )

    settings = _capture_settings(fullgraph)

    def run(*args: Any, **kwargs: Any) -> Any:
        def go() -> Any:
            return planned(*args, **kwargs)

        is_eager = inner == "eager"
        with settings, going_on(not fullgraph, is_eager), without_timing_guards():
            if not is_eager:  # eager is not what its numbers are compared with
                return go()
            given = pytree.tree_leaves((args, kwargs))
            with watch.answers.knowing(zip(given, given, strict=True)):
                return watch.answers.capture(go, BREAKS if fullgraph else ())

    return run


def _capture_settings(fullgraph: bool) -> AbstractContextManager[None]:
    """How dynamo is to capture; torch never forgets one of these, so it is used again.

    Hooks that are added later count, and numbers in modules may change. DDP's buckets
    are no reason to cut a step into pieces, nor are log lines, those of transformers
    that say a thing once included. Recurrent layers and gradients that the step itself
    asks for are captured. Where pieces are allowed, what dynamo cannot follow runs
    uncaptured.
    """
    names = ("debug", "warning_once", "info_once", "warning_advice")
    methods = {getattr(logging.Logger, name, None) for name in names}
    return torch._dynamo.config.patch(
        skip_nnmodule_hook_guards=False,
        allow_unspec_int_on_nn_module=True,
        optimize_ddp=False,
        allow_rnn=True,
        trace_autograd_ops=True,
        use_numpy_random_stream=True,
        ignore_logging_functions=methods - {None},
        # Whether something is traced is asked of the process; it may be another thread.
        force_compile_during_fx_trace=True,
        suppress_errors=not fullgraph,
    )


def compile_with(
    decide: Decide, watch: Watch, *, lenient: bool = False, inner: Inner = "eager"
) -> Callable[..., Any]:
    """A dynamo backend that runs each captured piece as `decide` says.

    If it is lenient, a piece that cannot be planned runs as it is.
    """
    compile_one = _compile if inner == "eager" else _compile_by_inductor
    check_torch(torch.__version__)

    def backend(
        gm: fx.GraphModule, example_inputs: Sequence[Any], **_: Any
    ) -> Callable[..., Any]:
        with_numbers = take_numbers(gm)
        if not lenient:
            return with_numbers(compile_one(gm, example_inputs, decide, watch))
        gm, example_inputs, spread = with_an_input_for_each_use(gm, example_inputs)
        try:
            run = compile_one(gm, example_inputs, decide, watch)
        except RestartAnalysis:
            raise  # torch asks for another trace
        except Exception as error:
            cause = explain_failure(error)
            if isinstance(cause, LowtideError) and not isinstance(cause, CaptureError):
                raise Refusal(cause) from None
            watch.left.append(reason_of(error))
            log.info("a graph runs as it is: %s", watch.left[-1], exc_info=True)
            run = gm.forward
        return with_numbers(lambda *args: run(*spread(args)))

    return backend


def _compile(
    gm: fx.GraphModule, example_inputs: Sequence[Any], decide: Decide, watch: Watch
) -> Callable[..., Any]:
    graph = _Graph(gm, example_inputs, decide, watch)
    with tracing_as_eager():
        run = aot_autograd(
            fw_compiler=graph.compile_forward,
            bw_compiler=graph.compile_backward,
            inference_compiler=graph.compile_inference,
            partition_fn=graph.partition,
        )(gm, list(example_inputs))

    def call(*args: Any) -> Any:
        if graph.piece is None:
            return run(*args)
        graph.sums.start(args)
        outputs = run(*graph.handing_over(args))
        watch.hold(graph.piece, outputs)
        watch.note_returned(graph.piece, outputs)
        node = compiled_node(outputs)
        if node is not None and len(graph.piece.tangents) > 1:
            # Missing gradients are passed on, instead of zeros in their place.
            node.set_materialize_grads(False)
        return outputs

    return call


def _compile_by_inductor(
    gm: fx.GraphModule, example_inputs: Sequence[Any], decide: Decide, watch: Watch
) -> Callable[..., Any]:
    # Not before it is asked for: importing Inductor takes seconds.
    from lowtide.engine.inductor.backend import Partitioner, compile_by_inductor

    kinds, names = _roles(gm, example_inputs)
    partitioner = Partitioner(decide, watch, kinds, names)
    return compile_by_inductor(gm, example_inputs, partitioner)


class _Graph:
    """What AOTAutograd asks about one captured graph. `piece` is set if it trains."""

    piece: Piece | None = None
    orders: OrdersBySize
    others: OtherBackwards
    sums: SumWatch
    handover: Handover | None = None

    def __init__(
        self,
        gm: fx.GraphModule,
        example_inputs: Sequence[Any],
        decide: Decide,
        watch: Watch,
    ) -> None:
        self.kinds, self.names = _roles(gm, example_inputs)
        self.inputs = example_inputs
        self.tracer = Tracer(gm, example_inputs)
        self.decide, self.watch = decide, watch

    def partition(
        self,
        joint: fx.GraphModule,
        joint_inputs: Any,
        *,
        num_fwd_outputs: int,
        static_lifetime_input_indices: Any = None,
        **new: Any,
    ) -> tuple[fx.GraphModule, fx.GraphModule]:
        """The forward and the backward graph, as they were decided on."""
        del joint_inputs, static_lifetime_input_indices
        if new:
            raise UnsupportedTorchError(
                f"its partition function is given unknown arguments {sorted(new)}",
                torch.__version__,
            )
        # Tracing runs under fake tensors; what follows computes with real ones.
        with _disable_current_modes(), torch.no_grad():
            self.as_planned(joint)
        self.watch.graphs += 1
        orders = self.orders = OrdersBySize(
            joint,
            lambda: self.read(joint, num_fwd_outputs),
            self.decide,
            self.watch.generation,
        )
        self.others = OtherBackwards(
            joint, num_fwd_outputs, self.tracer, self.as_planned
        )
        halves = orders.first.halves
        piece = self.piece = orders.piece
        self.sums = SumWatch(piece, self.names, self.watch.told)
        with_symbols(halves.forward.graph)
        with_symbols(halves.backward.graph)
        return halves.forward, halves.backward

    def as_planned(self, joint: fx.GraphModule) -> None:
        """Bring a joint graph into the form that is planned and run."""
        compute_as_eager(joint)
        set_gradients_apart(joint)
        if self.watch.updates is not None:
            self.watch.updates.insert(joint, self.inputs)

    def read(self, joint: fx.GraphModule, num_forward_outputs: int) -> Piece:
        """The piece of a joint graph, without the gradients that will not arrive.

        Which these are is guessed until a backward has shown it.
        """
        absent = self.watch.expected_absent
        absent = guess_absent(joint) if absent is None else absent
        reduced = without_tangents(joint, absent) if absent else joint
        if reduced is None:
            reduced, absent = joint, frozenset[int]()
        return read_joint(
            reduced,
            num_forward_outputs=num_forward_outputs,
            kinds=self.kinds,
            names=self.names,
            absent_tangents=absent,
        )

    def compile_forward(self, module: fx.GraphModule, _: Any) -> Callable[..., Any]:
        piece, orders = self.trained, self.orders
        orders.first.forward = callable_of(module)

        def forward(args: list[Any]) -> Any:
            way = orders.for_forward(args, self.watch.generation)
            piece.kept_bytes = way.kept_bytes
            outputs = self.watch.run(piece, "forward", args, way.variant.forward)
            return orders.marked(way, outputs)

        return _boxed(forward)

    def compile_backward(self, module: fx.GraphModule, _: Any) -> Callable[..., Any]:
        """The planned backward, or another one if gradients arrive otherwise."""
        piece, orders = self.trained, self.orders
        orders.first.backward = callable_of(module)

        def backward(args: list[Any]) -> Any:
            way = orders.for_backward(args)
            run = way.variant.backward
            if self.watch.observation is not None:
                self.watch.observation.turn(args[len(args) - len(piece.tangents) :])
            absent, arrival = self.receive(way.tangents, args)
            if absent != piece.absent_tangents:
                self.watch.surprises += 1
                self.watch.seen_absent = absent
            if absent != piece.absent_tangents or arrival != AS_OUTPUTS:
                run = self.others.find(way, absent, arrival)
            if self.handover is not None:
                run = self.handover.first_part(run)
            gradients = self.watch.run(piece, "backward", args, run)
            self.sums.note(gradients)
            return gradients

        return _boxed(backward)

    def handing_over(self, args: Sequence[Any]) -> Sequence[Any]:
        """The inputs of a forward whose backward hands over its gradients in parts.

        That is so inside of DDP. How they are divided is not changed in a step.
        """
        cap_bytes = cap_of_exchange(args)
        if cap_bytes is None:
            self.handover = None
            return args
        ways = self.orders.ways
        backward = (ways[-1].variant if ways else self.orders.first).halves.backward
        known = self.handover
        if known is None or (known.backward is not backward and not self.watch.held):
            known = self.handover = Handover(self.trained, backward, cap_bytes)
        return known.gated(args)

    def compile_inference(self, module: fx.GraphModule, _: Any) -> Callable[..., Any]:
        """A graph without a backward; there is nothing to plan in it."""
        self.watch.unplanned += 1
        set_momentum(module)
        return _boxed(callable_of(module))

    @property
    def trained(self) -> Piece:
        assert self.piece is not None, "AOTAutograd partitions before it compiles"
        return self.piece

    def receive(
        self, expected: Sequence[torch.Tensor], args: list[Any]
    ) -> tuple[frozenset[int], Arrival]:
        """Which gradients did not come, and how the others did, at the end of `args`.

        In a dry run they come as expected. Where no other graph can be traced for them,
        they are copied into the layout that was captured, and that is said once.
        """
        first = len(args) - len(expected)
        absent = frozenset(p for p, v in enumerate(args[first:]) if v is None)
        args[first:] = as_expected(expected, args[first:])
        arrival = arrival_of(expected, args[first:])
        if arrival == AS_OUTPUTS or self.tracer.can_trace:
            return absent, arrival
        args[first:] = copied_as_expected(expected, args[first:])
        if "layout" not in self.watch.told:
            self.watch.told.add("layout")
            warn(
                "lowtide: a gradient arrives in another layout than its output has, at "
                "a graph with Python numbers among its inputs, and is copied. Sums "
                "over it may differ from eager's in the last bit. Pass the numbers as "
                "tensors."
            )
        return absent, AS_OUTPUTS


def _boxed(run: Callable[[list[Any]], Any]) -> Callable[[list[Any]], Any]:
    """The function, marked as one that is called with a list it may empty."""
    run._boxed_call = True  # type: ignore[attr-defined]
    return run


_SOURCE_PART = re.compile(r"_(?:modules|parameters|buffers)\['([^']+)'\]")


def _roles(
    gm: fx.GraphModule, example_inputs: Sequence[Any]
) -> tuple[dict[int, Kind], dict[int, str]]:
    """What each input of a dynamo graph is, and what the user calls it."""
    kinds: dict[int, Kind] = {}
    names: dict[int, str] = {}
    for place, node in enumerate(gm.graph.find_nodes(op="placeholder")):
        text = getattr(getattr(node, "_dynamo_source", None), "name", "")
        text = str(text() if callable(text) else text)
        if isinstance(example_inputs[place], torch.nn.Parameter):
            kinds[place] = "parameter"
        elif "_buffers[" in text:
            kinds[place] = "buffer"
        else:
            kinds[place] = "input"
        parts = _SOURCE_PART.findall(text)
        names[place] = ".".join(parts) if parts else node.name
    return kinds, names

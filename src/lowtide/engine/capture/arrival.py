"""Gradients that reach a backward in another form than it was traced for.

Eager takes a gradient with the strides that it has: a transposed matrix, or one number
expanded to many. Kernels choose their order of summation by strides, so a backward for
each form is traced when it is first seen. The same holds for a backward that runs under
autocast.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, ExitStack
from typing import Any

import torch
from torch import fx
from torch._dynamo.backends.common import aot_autograd
from torch._guards import detect_fake_mode
from torch._subclasses import FakeTensor

from lowtide.engine.capture.eager import Arrival, tracing_as_eager
from lowtide.engine.capture.nodes import inputs_of
from lowtide.engine.capture.shapes import Shapes

_DEVICES = ("cpu", "cuda")


def arrival_of(
    expected: Sequence[torch.Tensor], gradients: Sequence[torch.Tensor | None]
) -> Arrival:
    """How these gradients arrive at a backward that was traced for others."""
    strides = tuple(
        None if given is None or _same_layout(given, fake) else given.stride()
        for given, fake in zip(gradients, expected, strict=True)
    )
    return Arrival(strides if any(strides) else (), _autocast())


def _same_layout(given: torch.Tensor, fake: torch.Tensor) -> bool:
    """Whether the strides are the same wherever they are ever used."""
    strides = zip(given.shape, given.stride(), fake.stride(), strict=True)
    return given.numel() == 0 or all(x == y for size, x, y in strides if size != 1)


def _autocast() -> tuple[tuple[str, torch.dtype], ...]:
    return tuple(
        (device, torch.get_autocast_dtype(device))
        for device in _DEVICES
        if torch.is_autocast_enabled(device)
    )


def as_expected(
    expected: Sequence[torch.Tensor], gradients: Sequence[torch.Tensor | None]
) -> list[torch.Tensor | None]:
    """Fake gradients with the strides that they were expected to have.

    In a dry run nothing is computed, so the backward that was traced will do.
    """
    return [
        _restrided(given, fake) if isinstance(given, FakeTensor) else given
        for given, fake in zip(gradients, expected, strict=True)
    ]


def copied_as_expected(
    expected: Sequence[torch.Tensor], gradients: Sequence[torch.Tensor | None]
) -> list[torch.Tensor | None]:
    """The gradients with the strides that they were expected to have."""
    return [
        given
        if given is None or _same_layout(given, fake)
        else _restrided(given, fake).copy_(given)
        for given, fake in zip(gradients, expected, strict=True)
    ]


def _restrided(given: torch.Tensor, fake: torch.Tensor) -> torch.Tensor:
    return given.new_empty_strided(given.shape, fake.stride())


class Tracer:
    """Traces a graph of dynamo again, for gradients that arrive in another form.

    It holds the graph and its inputs without their bytes. To be made while dynamo
    compiles. Where sizes are symbols it traces for given values of them. A graph with
    other numbers among its inputs cannot be traced again: they would become constants.
    """

    def __init__(self, gm: fx.GraphModule, example_inputs: Sequence[Any]) -> None:
        self.gm = gm
        nodes = inputs_of(gm)
        inputs = [*zip(nodes, example_inputs, strict=True)]
        self.can_trace = not any(_is_number(*each) for each in inputs)
        if self.can_trace:
            mode = self.mode = detect_fake_mode(example_inputs)
            assert mode is not None, "dynamo traces with fake tensors"
            self.shapes = Shapes(node.meta.get("example_value") for node in nodes)
            self.inputs = [_fake_input(*each, mode) for each in inputs]
        self.autocast = _autocast()
        self.caches = torch.is_autocast_cache_enabled()

    def joint(self, arrival: Arrival, values: Sequence[int]) -> fx.GraphModule:
        """The joint graph for these values of the symbols among its sizes.

        Its forward is the one that was traced before.
        """
        inputs = self.shapes.inputs_at(values, self.inputs, self.mode)

        def stop(joint: fx.GraphModule, *args: Any, **kwargs: Any) -> Any:
            del args, kwargs
            raise _Traced(joint)

        trace = aot_autograd(fw_compiler=_not_reached, partition_fn=stop)
        with ExitStack() as stack:
            for context in (torch.enable_grad(), *self.surroundings()):
                stack.enter_context(context)
            try:
                with tracing_as_eager(arrival):
                    trace(self.gm, inputs)
            except _Traced as traced:
                return traced.joint
        raise AssertionError("a graph with a backward is always partitioned")

    def surroundings(self) -> list[AbstractContextManager[Any]]:
        """Autocast as it was when the graph was traced first."""
        on = dict(self.autocast)
        return [
            torch.autocast(d, on.get(d), enabled=d in on, cache_enabled=self.caches)
            for d in _DEVICES
            if d in on or torch.is_autocast_enabled(d)
        ]


def _is_number(node: fx.Node, value: Any) -> bool:
    """Whether this input is a number of the user's; dynamo passes a float as a tensor.

    The symbol of a size comes in the shape of a tensor, too.
    """
    if isinstance(value, torch.Tensor):
        return value.dim() == 0 and all(user.target == "item" for user in node.users)
    return not _is_size(node)


def _is_size(node: fx.Node) -> bool:
    symbol = _expression(node.meta.get("example_value"))
    others = node.graph.find_nodes(op="placeholder")
    shapes = (getattr(n.meta.get("example_value"), "shape", ()) for n in others)
    return symbol is not None and any(
        _expression(size) == symbol for shape in shapes for size in shape
    )


def _expression(number: Any) -> Any:
    return number.node.expr if isinstance(number, torch.SymInt) else None


def _fake_input(node: fx.Node, value: Any, mode: Any) -> Any:
    """An input without its bytes, with symbols where it has some."""
    known = node.meta.get("example_value")
    if isinstance(value, FakeTensor) or not isinstance(value, torch.Tensor):
        return value
    if isinstance(known, FakeTensor) and any(map(_expression, known.shape)):
        return known
    return mode.from_tensor(value, static_shapes=True)


class _Traced(Exception):
    def __init__(self, joint: fx.GraphModule) -> None:
        super().__init__("traced")
        self.joint = joint


def _not_reached(module: fx.GraphModule, inputs: Any) -> Callable[..., Any]:
    raise AssertionError("only the joint graph is asked for")

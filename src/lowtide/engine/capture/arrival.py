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

_DEVICES = ("cpu", "cuda")


def arrival_of(
    expected: Sequence[fx.Node], gradients: Sequence[torch.Tensor | None]
) -> Arrival:
    """How these gradients arrive at a backward that was traced for others."""
    strides = tuple(
        None
        if given is None or _same_layout(given, node.meta["val"])
        else given.stride()
        for given, node in zip(gradients, expected, strict=True)
    )
    if all(s is None for s in strides):
        strides = ()
    return Arrival(strides, _autocast())


def _same_layout(a: torch.Tensor, b: torch.Tensor) -> bool:
    """Whether the strides are the same wherever they are ever used."""
    return a.numel() == 0 or all(
        x == y
        for size, x, y in zip(a.shape, a.stride(), b.stride(), strict=True)
        if size != 1
    )


def _autocast() -> tuple[tuple[str, torch.dtype], ...]:
    return tuple(
        (device, torch.get_autocast_dtype(device))
        for device in _DEVICES
        if torch.is_autocast_enabled(device)
    )


def as_expected(
    expected: Sequence[fx.Node], gradients: Sequence[torch.Tensor | None]
) -> list[torch.Tensor | None]:
    """Fake gradients with the strides that they were expected to have.

    In a dry run nothing is computed, so the backward that was traced will do.
    """
    return [
        torch.empty_strided(
            given.shape,
            node.meta["val"].stride(),
            dtype=given.dtype,
            device=given.device,
        )
        if isinstance(given, FakeTensor)
        else given
        for given, node in zip(gradients, expected, strict=True)
    ]


def copied_as_expected(
    expected: Sequence[fx.Node], gradients: Sequence[torch.Tensor | None]
) -> list[torch.Tensor | None]:
    """The gradients with the strides that they were expected to have."""
    found: list[torch.Tensor | None] = []
    for given, node in zip(gradients, expected, strict=True):
        if given is not None and not _same_layout(given, node.meta["val"]):
            strides = node.meta["val"].stride()
            given = torch.empty_strided(
                given.shape, strides, dtype=given.dtype, device=given.device
            ).copy_(given)
        found.append(given)
    return found


class Tracer:
    """Traces a graph of dynamo again, for gradients that arrive in another form.

    It holds the graph and its inputs without their bytes. To be made while dynamo
    compiles. A graph with numbers among its inputs cannot be traced again: the numbers
    would become constants.
    """

    def __init__(self, gm: fx.GraphModule, example_inputs: Sequence[Any]) -> None:
        self.gm = gm
        self.inputs: list[Any] = []
        inputs = gm.graph.find_nodes(op="placeholder")
        self.can_trace = not any(
            _is_number(node, value)
            for node, value in zip(inputs, example_inputs, strict=True)
        )
        if self.can_trace:
            mode = detect_fake_mode(example_inputs)
            assert mode is not None, "dynamo traces with fake tensors"
            self.inputs = [
                v
                if isinstance(v, FakeTensor)
                else mode.from_tensor(v, static_shapes=True)
                for v in example_inputs
            ]
        self.autocast = _autocast()
        self.caches = torch.is_autocast_cache_enabled()

    def joint(self, arrival: Arrival) -> fx.GraphModule:
        """The joint graph; its forward is the one that was traced before."""

        def stop(joint: fx.GraphModule, *args: Any, **kwargs: Any) -> Any:
            del args, kwargs
            raise _Traced(joint)

        with ExitStack() as stack:
            stack.enter_context(torch.enable_grad())
            for context in self.surroundings():
                stack.enter_context(context)
            stack.enter_context(tracing_as_eager(arrival))
            try:
                aot_autograd(fw_compiler=_not_reached, partition_fn=stop)(
                    self.gm, self.inputs
                )
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
    """Whether this input is a Python number; dynamo passes a float as a tensor."""
    return not isinstance(value, torch.Tensor) or (
        value.dim() == 0 and all(user.target == "item" for user in node.users)
    )


class _Traced(Exception):
    def __init__(self, joint: fx.GraphModule) -> None:
        super().__init__("traced")
        self.joint = joint


def _not_reached(module: fx.GraphModule, inputs: Any) -> Callable[..., Any]:
    raise AssertionError("only the joint graph is asked for")

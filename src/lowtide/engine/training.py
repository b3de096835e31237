"""The training step as this package runs it: a call, a loss, a backward."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import nn
from torch.utils import _pytree as pytree

Loss = Callable[[Any], torch.Tensor]


class Inputs(NamedTuple):
    """What a model or function is called with."""

    args: tuple[Any, ...]
    kwargs: dict[str, Any]

    def call(self, function: Callable[..., Any]) -> Any:
        return function(*self.args, **self.kwargs)


def arguments_of(batch: Any) -> Inputs:
    """A batch as positional and keyword arguments of the model."""
    if isinstance(batch, dict):
        return Inputs((), dict(batch))
    return Inputs(batch if isinstance(batch, tuple) else (batch,), {})


def default_loss(output: Any) -> torch.Tensor:
    """`output.loss`, the output if it is one number, or the sum of its floats."""
    loss = getattr(output, "loss", None)
    if loss is None and isinstance(output, dict):
        loss = output.get("loss")
    if isinstance(loss, torch.Tensor):
        return loss
    floats = [
        v
        for v in pytree.tree_leaves(output)
        if isinstance(v, torch.Tensor) and v.is_floating_point()
    ]
    if len(floats) == 1 and floats[0].numel() == 1:
        return floats[0].reshape(())
    with_gradients = [v for v in floats if v.requires_grad] or floats
    return sum((v.sum() for v in with_gradients), torch.zeros(()))


def training_step(
    function: Callable[..., Any], loss: Loss | None, inputs: Inputs
) -> Callable[[], torch.Tensor]:
    """`loss(function(...)).backward()`, returning the loss.

    The outputs are held to the end, as in most training loops and in every prediction.
    """

    def run() -> torch.Tensor:
        outputs = inputs.call(function)
        result = (loss or default_loss)(outputs)
        result.backward()
        return result.detach()

    return run


def kind_of(inputs: Inputs) -> tuple[Any, ...]:
    """What decides how a call with them runs: structure, shapes, types, flags."""
    leaves, structure = pytree.tree_flatten(inputs)
    kinds: list[Any] = [structure]
    for value in leaves:
        if isinstance(value, torch.Tensor):
            kinds.append((value.shape, value.stride(), value.dtype, value.device))
            kinds.append(value.requires_grad)
        elif isinstance(value, bool | None):
            kinds.append(value)
    return tuple(kinds)


def without_sizes(kind: tuple[Any, ...]) -> Any:
    """The kind of these inputs whatever their sizes; one call serves them all."""
    return tuple((len(p[0]), *p[2:]) if isinstance(p, tuple) else p for p in kind)


def name_of(function: Any) -> str:
    """What messages call the planned form of a function or model."""
    owner = getattr(function, "__self__", None)
    if isinstance(owner, nn.Module):
        return f"lowtide.optimize({type(owner).__name__})"
    name = getattr(function, "__qualname__", type(function).__name__)
    return f"lowtide.optimize({name})"


def is_lazy(module: nn.Module) -> bool:
    """Whether some of its parameters do not have their shapes yet."""
    return any(map(nn.parameter.is_lazy, (*module.parameters(), *module.buffers())))

"""The training step as this package runs it: a call, a loss, a backward."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch.utils import _pytree as pytree

Loss = Callable[[Any], torch.Tensor]


def default_loss(output: Any) -> torch.Tensor:
    """`output.loss`, the output if it is one number, or the sum of its floats."""
    found = getattr(output, "loss", None)
    if found is None and isinstance(output, dict):
        found = output.get("loss")
    if isinstance(found, torch.Tensor):
        return found
    floats = [
        v
        for v in pytree.tree_leaves(output)
        if isinstance(v, torch.Tensor) and v.is_floating_point()
    ]
    if len(floats) == 1 and floats[0].numel() == 1:
        return floats[0].reshape(())
    with_gradients = [v for v in floats if v.requires_grad] or floats
    total = torch.zeros(())
    for value in with_gradients:
        total = total + value.sum()
    return total


def training_step(
    function: Callable[..., Any],
    loss: Loss | None,
    args: Sequence[Any],
    kwargs: dict[str, Any],
) -> Callable[[], torch.Tensor]:
    """`loss(function(...)).backward()`, returning the loss.

    The outputs are held to the end, as in most training loops and in every prediction.
    """

    def run() -> torch.Tensor:
        outputs = function(*args, **kwargs)
        result = (loss or default_loss)(outputs)
        result.backward()
        return result.detach()

    return run

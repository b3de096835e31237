"""Functions in place on slices with gaps, as in the gates of a GRU.

Capture turns them into functions with dense results. Eager's kernels take such a slice
row by row, and the last elements of a row, which do not fill a vector, through another
form of the function, which may round otherwise. So here the function runs over rows
that do not lie next to each other, and so does its gradient.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch._dispatch.python import no_python_dispatcher

aten = torch.ops.aten

# For each function in place: the function, and its gradient by its result.
_FORMS = {
    aten.sigmoid_.default: (aten.sigmoid, aten.sigmoid_backward),
    aten.tanh_.default: (aten.tanh, aten.tanh_backward),
}


def kernels() -> dict[Any, Callable[..., Any]]:
    """What to run in place of autograd's kernels while a graph is traced."""
    return {op: _kernel_of(op) for op in _FORMS}


def _kernel_of(op: Any) -> Callable[..., Any]:
    function, gradient = _FORMS[op]

    def kernel(tensor: torch.Tensor) -> torch.Tensor:
        if not _has_gaps(tensor):
            with no_python_dispatcher():
                return op(tensor)
        return tensor.copy_(_OverGaps.apply(tensor, function, gradient))  # type: ignore

    return kernel


def _has_gaps(tensor: torch.Tensor) -> bool:
    """Whether its rows are dense, but do not lie next to each other."""
    if tensor.dim() < 2 or tensor.stride(-1) != 1 or tensor.device.type != "cpu":
        return False
    return tensor.stride(-2) > tensor.shape[-1] and tensor.shape[-2] > 1


def _spread(tensor: torch.Tensor) -> torch.Tensor:
    """The same values, with a gap behind each row."""
    return aten.constant_pad_nd(tensor, [0, 1]).narrow(-1, 0, tensor.shape[-1])


class _OverGaps(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, tensor: Any, function: Any, gradient: Any) -> Any:
        with torch._C._AutoDispatchBelowAutograd():
            result = function(_spread(tensor))
        ctx.save_for_backward(result)
        ctx.gradient = gradient
        return result

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        (result,) = ctx.saved_tensors
        return ctx.gradient(gradients[0], _spread(result)), None, None

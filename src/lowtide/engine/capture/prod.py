"""The gradient of a product, whose formula eager chooses by looking for zeros.

NOTE(torch>=2.13,<2.16): tracing cannot look at values, so torch traces the formula that
is right with zeros, too, and rounds otherwise than the one that eager takes without.
Here the whole gradient is one op, which asks eager's autograd when it runs.
"""

from __future__ import annotations

from typing import Any

import torch
from torch._C import DispatchKey
from torch._dispatch.python import no_python_dispatcher


def product(
    tensor: torch.Tensor,
    dim: int | None = None,
    keepdim: bool = False,
    *,
    dtype: torch.dtype | None = None,
) -> Any:
    """What to run in place of autograd's kernel for `prod` while a graph is traced."""
    return _Product.apply(tensor, dim, keepdim, dtype)


def _eager(
    tensor: torch.Tensor, dim: int | None, keepdim: bool, dtype: torch.dtype | None
) -> torch.Tensor:
    if dim is None:
        return torch.prod(tensor, dtype=dtype)
    return torch.prod(tensor, dim, keepdim, dtype=dtype)


class _Product(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, tensor: Any, *how: Any) -> Any:
        ctx.save_for_backward(tensor)
        ctx.how = how
        with torch._C._AutoDispatchBelowAutograd():
            return _eager(tensor, *how)

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        (tensor,) = ctx.saved_tensors
        return product_gradient(gradients[0], tensor, *ctx.how), None, None, None


@torch.library.custom_op("lowtide::product_gradient", mutates_args=())
def product_gradient(
    gradient: torch.Tensor,
    tensor: torch.Tensor,
    dim: int | None,
    keepdim: bool,
    dtype: torch.dtype | None,
) -> torch.Tensor:
    # Where ops are timed, a graph is still being traced.
    with _autograd(), no_python_dispatcher(), torch.enable_grad():
        leaf = tensor.detach().requires_grad_()
        result = _eager(leaf, dim, keepdim, dtype)
        (found,) = torch.autograd.grad(result, leaf, gradient)
    return found if found is not gradient else found.clone()


@product_gradient.register_fake
def _(gradient: Any, tensor: Any, dim: Any, keepdim: Any, dtype: Any) -> torch.Tensor:
    return torch.empty_like(tensor)


def _autograd() -> Any:
    """Let ops be differentiated inside a kernel, below autograd."""
    excluded = torch._C._dispatch_tls_local_exclude_set()
    for key in (DispatchKey.AutogradFunctionality, DispatchKey.ADInplaceOrView):
        excluded = excluded.remove(key)
    return torch._C._ForceDispatchKeyGuard(
        torch._C._dispatch_tls_local_include_set(), excluded
    )

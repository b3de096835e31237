"""Real arguments for one op, made from the fake ones of its call.

Every tensor gets its shape, strides and dtype over a buffer no larger than they span,
so an expanded tensor costs the bytes it really has. Values are positive and of
order one: no kernel meets a denormal, a NaN or the logarithm of a negative number.
Whole numbers that point into another argument (tokens, labels, places) stay within it.
"""

from __future__ import annotations

from typing import Any

import torch
from torch.utils import _pytree as pytree

from lowtide.engine.capture.call import Call

_BLOCK = 1 << 16


def span_bytes(tensor: torch.Tensor) -> int:
    """Bytes from the first to the last element of a (fake) tensor, both included."""
    if tensor.numel() == 0:
        return 0
    reach = sum((d - 1) * s for d, s in zip(tensor.shape, tensor.stride(), strict=True))
    return (reach + 1) * tensor.element_size()


def input_tensors(call: Call) -> list[torch.Tensor]:
    """The distinct (fake) tensors among a call's arguments."""
    leaves = pytree.tree_leaves((call.args, call.kwargs))
    found = {id(v): v for v in leaves if isinstance(v, torch.Tensor)}
    return list(found.values())


def output_tensors(call: Call) -> list[torch.Tensor]:
    """The (fake) tensors among a call's results."""
    leaves = pytree.tree_leaves(call.outputs)
    return [v for v in leaves if isinstance(v, torch.Tensor)]


def input_bytes(call: Call) -> int:
    """Bytes of the arguments of a call, each counted once."""
    return sum(span_bytes(t) for t in input_tensors(call))


def output_bytes(call: Call) -> int:
    """Bytes of the results of a call."""
    return sum(span_bytes(t) for t in output_tensors(call))


def real_arguments(
    call: Call, device: torch.device, *, whole_number: int = 1
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Arguments like those of the call, with bytes behind them.

    `whole_number` is the value of integers that point nowhere we know of.
    """
    bounds = index_bounds(call)
    made: dict[int, torch.Tensor] = {}

    def real(value: Any) -> Any:
        if isinstance(value, torch.Tensor):
            if id(value) not in made:
                bound = bounds.get(id(value))
                made[id(value)] = _tensor(value, device, bound, whole_number)
            return made[id(value)]
        if isinstance(value, torch.device):
            return device
        return value

    args, kwargs = pytree.tree_map(real, (call.args, call.kwargs))
    return tuple(args), dict(kwargs)


def _tensor(
    fake: torch.Tensor, device: torch.device, bound: int | None, whole_number: int
) -> torch.Tensor:
    length = span_bytes(fake) // max(1, fake.element_size())
    flat = torch.empty(length, dtype=fake.dtype, device=device)
    if length:
        _fill(flat, bound, whole_number)
    return flat.as_strided(fake.shape, fake.stride())


def _fill(flat: torch.Tensor, bound: int | None, whole_number: int) -> None:
    """Fill a flat buffer by repeating one random block: as fast as memory."""
    dtype = flat.dtype
    if not (dtype.is_floating_point or dtype.is_complex or dtype == torch.bool):
        if bound is None:
            flat.fill_(whole_number)
            return
        block = (_unit_block(flat.device) * bound).to(dtype).clamp_(0, bound - 1)
    elif dtype == torch.bool:
        block = _unit_block(flat.device) > 0.5
    else:
        block = (_unit_block(flat.device) + 0.5).to(dtype)
    whole = flat.numel() // _BLOCK
    if whole:
        flat[: whole * _BLOCK].view(whole, _BLOCK).copy_(block)
    flat[whole * _BLOCK :].copy_(block[: flat.numel() - whole * _BLOCK])


_blocks: dict[torch.device, torch.Tensor] = {}


def _unit_block(device: torch.device) -> torch.Tensor:
    """Numbers in [0, 1) from a generator of our own: the process's stays as it is."""
    if device not in _blocks:
        generator = torch.Generator().manual_seed(20)
        block = torch.rand(_BLOCK, generator=generator, dtype=torch.float64)
        _blocks[device] = block.to(device)
    return _blocks[device]


def index_bounds(call: Call) -> dict[int, int]:
    """For the id of each integer argument that points into another, the valid range."""
    name = getattr(call.target, "__name__", "").split(".")[0]
    args = call.args
    found: dict[int, int] = {}

    def point(value: Any, size: Any) -> None:
        if isinstance(value, torch.Tensor) and not value.dtype.is_floating_point:
            found[id(value)] = max(1, int(size))

    match name:
        case "embedding":
            point(args[1], args[0].shape[0])
        case "embedding_dense_backward":
            point(args[1], args[2])
        case "_embedding_bag" | "_embedding_bag_forward_only":
            point(args[1], args[0].shape[0])
        case "gather" | "scatter" | "scatter_add" | "scatter_reduce" | "index_select":
            point(args[2], _size(args[0], args[1]))
        case "index_add" | "index_copy" | "index_fill":
            point(args[2], _size(args[0], args[1]))
        case "gather_backward":
            point(args[3], _size(args[1], args[2]))
        case "index" | "_unsafe_index" | "index_put" | "_unsafe_index_put":
            for axis, index in enumerate(args[1]):
                if index is not None:
                    point(index, args[0].shape[axis])
        case "index_put_" | "_index_put_impl":
            for axis, index in enumerate(args[1]):
                if index is not None:
                    point(index, args[0].shape[axis])
        case "nll_loss_forward" | "nll_loss2d_forward" | "nll_loss_nd":
            point(args[1], args[0].shape[min(1, args[0].dim() - 1)])
        case "nll_loss_backward" | "nll_loss2d_backward":
            point(args[2], args[1].shape[min(1, args[1].dim() - 1)])
        case "max_pool2d_with_indices_backward":
            point(args[7], args[1].shape[-1] * args[1].shape[-2])
        case "max_pool3d_with_indices_backward":
            point(args[7], args[1].shape[-1] * args[1].shape[-2] * args[1].shape[-3])
        case "adaptive_max_pool2d_backward":
            point(args[2], args[1].shape[-1] * args[1].shape[-2])
        case _:
            pass
    return found


def _size(tensor: torch.Tensor, axis: int) -> int:
    return tensor.shape[axis] if tensor.dim() else 1

"""Real arguments for one op, made from the fake ones of its call.

Every tensor gets its shape, strides and dtype over a buffer no larger than they span,
so an expanded tensor costs the bytes it really has. Values are positive and of
order one: no kernel meets a denormal, a NaN or the logarithm of a negative number.
Whole numbers that point into another argument (tokens, labels, places) stay within it.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import cache
from typing import Any

import torch
from torch._ops import OpOverload
from torch.utils import _pytree as pytree

from lowtide.engine.capture.call import Call
from lowtide.engine.capture.tensors import (
    result_bytes,
    span_of,
    storage_key,
    tensors_in,
)

_BLOCK = 1 << 13  # it stays in memory, and what is made of it counts with no budget
_BYTE_OF_A_NUMBER = 0x3F  # four of them are 0.75 in 32 bits
_ALONG_AN_AXIS = frozenset(
    "gather scatter scatter_add scatter_reduce index_select index_add index_copy "
    "index_fill".split()
)
_BY_SEVERAL_INDICES = frozenset(
    "index _unsafe_index index_put _unsafe_index_put _index_put_impl".split()
)


def span_bytes(tensor: torch.Tensor) -> int:
    """Bytes from the first to the last element of a (fake) tensor, both included."""
    return span_of(tensor.shape, tensor.stride()) * tensor.element_size()


def input_tensors(call: Call) -> list[torch.Tensor]:
    """The distinct (fake) tensors among a call's arguments."""
    found = {id(v): v for v in tensors_in((call.args, call.kwargs))}
    return list(found.values())


def output_tensors(call: Call) -> list[torch.Tensor]:
    """The (fake) tensors among a call's results."""
    return tensors_in(call.outputs)


def size_bytes(call: Call) -> int:
    """Bytes of the arguments of a call, each counted once, and of its results."""
    return sum(span_bytes(t) for t in (*input_tensors(call), *output_tensors(call)))


def fresh_bytes(call: Call) -> int:
    """Bytes of the results that are not written over an argument."""
    given = set(map(storage_key, input_tensors(call)))
    results = {storage_key(t): t for t in output_tensors(call)}
    return sum(
        result_bytes(call.target, input_tensors(call), tensor)
        for key, tensor in results.items()
        if key not in given
    )


def real_arguments(
    call: Call,
    device: torch.device,
    *,
    whole_number: int = 1,
    lent: Sequence[torch.Tensor] = (),
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Arguments like those of the call, with bytes behind them.

    `whole_number` is the value of integers that point nowhere we know of. `lent` are
    tensors whose bytes may stand for arguments that the op does not write to.
    """
    bounds = index_bounds(call)
    made: dict[int, torch.Tensor] = {}
    for fake in _only_read(call) if lent else ():
        borrowed = _among(lent, fake, device)
        if borrowed is not None:
            made[id(fake)] = borrowed

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
    if "native_batch_norm_backward" in str(call.target):
        # NOTE(torch>=2.13): what a batch norm saves is of its weights' type, which
        # under autocast is not its images', though the fake says so.
        like = args[1] if args[2] is None else args[2]
        saved = [t if t is None else t.to(like.dtype) for t in args[5:7]]
        args = (*args[:5], *saved, *args[7:])
    return tuple(args), dict(kwargs)


def _only_read(call: Call) -> list[torch.Tensor]:
    """The (fake) arguments that an op of torch's says it does not write to."""
    target = call.target
    if not isinstance(target, OpOverload) or target.namespace != "aten":
        return []
    named = [(argument, argument.name) for argument in target._schema.arguments]
    given = dict(zip([name for _, name in named], call.args, strict=False))
    given |= call.kwargs
    written = [given.get(name) for argument, name in named if argument.is_write]
    kept = {id(t) for t in tensors_in(written)}
    return [t for t in input_tensors(call) if id(t) not in kept]


def _among(
    lent: Sequence[torch.Tensor], fake: torch.Tensor, device: torch.device
) -> torch.Tensor | None:
    """An argument in the bytes of a lent tensor, if one is large enough.

    Statistics that an op writes to without saying so have one axis.
    """
    if fake.dim() < 2 or not fake.dtype.is_floating_point:
        return None
    for tensor in lent:
        is_alike = tensor.dtype == fake.dtype and tensor.device == device
        if is_alike and tensor.untyped_storage().nbytes() >= span_bytes(fake):
            return tensor.as_strided(fake.shape, fake.stride(), 0)
    return None


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
    dtype, block = flat.dtype, _unit_block(flat.device)
    if dtype == torch.bool:
        block = block > 0.5
    elif dtype.is_floating_point or dtype.is_complex:
        block = (block + 0.5).to(dtype)
    elif bound is None:
        # Bytes may be numbers that a kernel left for another: of order one, too.
        flat.fill_(_BYTE_OF_A_NUMBER if dtype == torch.uint8 else whole_number)
        return
    else:
        block = (block * bound).to(dtype).clamp_(0, bound - 1)
    whole = flat.numel() // _BLOCK
    if whole:
        flat[: whole * _BLOCK].view(whole, _BLOCK).copy_(block)
    flat[whole * _BLOCK :].copy_(block[: flat.numel() - whole * _BLOCK])


@cache
def _unit_block(device: torch.device) -> torch.Tensor:
    """Numbers in [0, 1) from a generator of our own: the process's stays as it is."""
    generator = torch.Generator().manual_seed(20)
    return torch.rand(_BLOCK, generator=generator, dtype=torch.float64).to(device)


def index_bounds(call: Call) -> dict[int, int]:
    """For the id of each integer argument that points into another, the valid range."""
    name = getattr(call.target, "__name__", "").split(".")[0].rstrip("_")
    args = call.args
    found: dict[int, int] = {}

    def point(value: Any, size: Any) -> None:
        if isinstance(value, torch.Tensor) and not value.dtype.is_floating_point:
            found[id(value)] = max(1, int(size))

    match name:
        case "embedding" | "_embedding_bag" | "_embedding_bag_forward_only":
            point(args[1], args[0].shape[0])
        case "embedding_dense_backward":
            point(args[1], args[2])
        case _ if name in _ALONG_AN_AXIS:
            point(args[2], _size(args[0], args[1]))
        case "gather_backward":
            point(args[3], _size(args[1], args[2]))
        case _ if name in _BY_SEVERAL_INDICES:
            for axis, index in enumerate(args[1]):
                point(index, args[0].shape[axis])
        case "nll_loss_forward" | "nll_loss2d_forward" | "nll_loss_nd":
            point(args[1], args[0].shape[min(1, args[0].dim() - 1)])
        case "nll_loss_backward" | "nll_loss2d_backward":
            point(args[2], args[1].shape[min(1, args[1].dim() - 1)])
        case "max_pool2d_with_indices_backward":
            point(args[7], math.prod(args[1].shape[-2:]))
        case "max_pool3d_with_indices_backward":
            point(args[7], math.prod(args[1].shape[-3:]))
        case "adaptive_max_pool2d_backward":
            point(args[2], math.prod(args[1].shape[-2:]))
        case "unpack_offsets":
            point(args[0], math.prod(args[4]))
    return found


def _size(tensor: torch.Tensor, axis: int) -> int:
    return tensor.shape[axis] if tensor.dim() else 1

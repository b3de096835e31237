"""Masks and indices in fewer bytes, between their two uses.

A bool takes a byte and holds a bit. The index of a maximum takes eight bytes, but lies
within its window, or within the dimension that was searched. What the forward makes and
the backward reads can be packed in between: the op that makes it leaves a packed copy,
and a stand-in makes the original again from that. Packing is exact and its size is
known beforehand, so a plan can count on it.

Everything works block by block, so that nothing of the size of the original is needed
beside it.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache
from typing import Any, cast

import numpy as np
import torch
from torch import fx

from lowtide.engine.capture.tensors import span_of

aten = torch.ops.aten

# Less is not worth an op of its own.
LEAST_BYTES = 4096
_BLOCK = 1 << 17


@dataclass(frozen=True, slots=True)
class Packing:
    """How one value is packed: `pack(value, *given)`, `unpack(packed, *layout)`."""

    nbytes: int
    pack: Callable[..., torch.Tensor]
    given: tuple[Any, ...]
    unpack: Callable[..., torch.Tensor]
    layout: tuple[Any, ...]


def packing_of(maker: fx.Node, node: fx.Node) -> Packing | None:
    """How to pack a value that an op makes, if it can be made smaller."""
    value = node.meta["val"]
    if not _is_dense(value) or value.numel() * value.element_size() < LEAST_BYTES:
        return None
    layout = (tuple(value.shape), tuple(value.stride()))
    if value.dtype == torch.bool:
        nbytes = -(-value.numel() // 8)
        return Packing(nbytes, pack_bits, (), unpack_bits, layout)
    if value.dtype != torch.int64:
        return None
    window = _window(maker)
    if window is not None:
        nbytes = value.numel()
        return Packing(nbytes, pack_offsets, window, unpack_offsets, layout + window)
    dtype = _dtype_for(_largest_index(maker))
    if dtype is None:
        return None
    nbytes = value.numel() * dtype.itemsize
    return Packing(nbytes, pack_integers, (dtype,), unpack_integers, (*layout, dtype))


def _is_dense(value: Any) -> bool:
    """Whether its elements fill its storage, each place once."""
    if not isinstance(value, torch.Tensor) or value.numel() == 0:
        return False
    whole = value.untyped_storage().nbytes() == value.numel() * value.element_size()
    return whole and span_of(value.shape, value.stride()) == value.numel()


# Bits.


def pack_bits(mask: torch.Tensor) -> torch.Tensor:
    """Eight bools to a byte, in the order in which they lie in memory."""
    flat = mask.as_strided((mask.numel(),), (1,)).view(torch.uint8)
    packed = torch.empty(-(-len(flat) // 8), dtype=torch.uint8, device=mask.device)
    for start in range(0, len(packed), _BLOCK):
        part = flat[8 * start : 8 * (start + _BLOCK)]
        packed[start : start + _BLOCK] = _packed(part)
    return packed


def unpack_bits(
    packed: torch.Tensor, shape: tuple[int, ...], stride: tuple[int, ...]
) -> torch.Tensor:
    mask = torch.empty_strided(shape, stride, dtype=torch.bool, device=packed.device)
    flat = mask.as_strided((mask.numel(),), (1,)).view(torch.uint8)
    for start in range(0, len(packed), _BLOCK):
        part = flat[8 * start : 8 * (start + _BLOCK)]
        part.copy_(_unpacked(packed[start : start + _BLOCK], len(part)))
    return mask


def _packed(flat: torch.Tensor) -> torch.Tensor:
    if flat.device.type == "cpu":
        return torch.from_numpy(np.packbits(flat.numpy(), bitorder="little"))
    padded = torch.nn.functional.pad(flat, (0, -len(flat) % 8)).view(-1, 8)
    return (padded << _places(flat.device)).sum(1, dtype=torch.uint8)


def _unpacked(packed: torch.Tensor, count: int) -> torch.Tensor:
    if packed.device.type == "cpu":
        bits = np.unpackbits(packed.numpy(), count=count, bitorder="little")
        return torch.from_numpy(bits)
    return (packed[:, None] >> _places(packed.device)).bitwise_and_(1).view(-1)[:count]


def _places(device: torch.device) -> torch.Tensor:
    return torch.arange(8, dtype=torch.uint8, device=device)


# Indices of a pooling's maxima.


def _window(maker: fx.Node) -> tuple[Any, ...] | None:
    """What a max pool's indices depend on: input size and where its windows lie."""
    if maker.target is not aten.max_pool2d_with_indices.default:
        return None
    image, kernel, *more = maker.args
    stride, padding, dilation = (*more, (), (), ())[:3]
    kernel = _pair(kernel)
    stride = _pair(stride or kernel)
    padding, dilation = _pair(padding or (0,)), _pair(dilation or (1,))
    width = int(cast(fx.Node, image).meta["val"].shape[-1])
    fits = math.prod(kernel) <= 256 and (kernel[1] - 1) * dilation[1] < width
    return (width, kernel, stride, padding, dilation) if fits else None


def _pair(value: Any) -> tuple[int, int]:
    return int(value[0]), int(value[-1])


def pack_offsets(indices: torch.Tensor, *window: Any) -> torch.Tensor:
    """The place of each maximum in its window, a byte each."""
    packed = torch.empty(indices.shape, dtype=torch.uint8, device=indices.device)
    corners = _corners(indices, *window)
    known = _places_in_row(*window)
    places = torch.tensor(known, dtype=torch.uint8).to(indices.device)
    for part, into in zip(_planes(indices), _planes(packed), strict=True):
        distance = (part - corners).clamp_(0, len(places) - 1)
        into.view(-1).copy_(places[distance.reshape(-1)])
    return packed.view(-1)


def unpack_offsets(
    packed: torch.Tensor, shape: tuple[int, ...], stride: tuple[int, ...], *window: Any
) -> torch.Tensor:
    device = packed.device
    indices = torch.empty_strided(shape, stride, dtype=torch.int64, device=device)
    corners = _corners(indices, *window)
    distances = torch.tensor(_distances(*window)).to(device)
    for part, into in zip(_planes(packed.view(shape)), _planes(indices), strict=True):
        found = distances.index_select(0, part.reshape(-1).to(torch.int32))
        torch.add(found.view(into.shape), corners, out=into)
    return indices


def _planes(tensor: torch.Tensor) -> Iterator[torch.Tensor]:
    """A tensor of images in parts of whole channels, none of them large."""
    images = tensor if tensor.dim() == 4 else tensor[None]
    step = max(1, _BLOCK // max(1, images[0, 0].numel()))
    for image, first in itertools.product(images, range(0, images.shape[1], step)):
        yield image[first : first + step]


def _corners(indices: torch.Tensor, width: int, *window: Any) -> torch.Tensor:
    """The index at which each window begins; outside the image where it is padded."""
    _, stride, padding, _ = window
    rows, columns = (
        torch.arange(n, device=indices.device) * step - before
        for n, step, before in zip(indices.shape[-2:], stride, padding, strict=True)
    )
    return rows[:, None] * width + columns


# As plain numbers: a tensor that is made in a dry run has no values.
@cache
def _distances(width: int, *window: Any) -> tuple[int, ...]:
    """How far each place of a window lies behind its beginning."""
    kernel, _, _, dilation = window
    places = itertools.product(range(kernel[0]), range(kernel[1]))
    return tuple(row * dilation[0] * width + col * dilation[1] for row, col in places)


@cache
def _places_in_row(width: int, *window: Any) -> tuple[int, ...]:
    """For each distance, the place of a window at which it is."""
    distances = _distances(width, *window)
    places = {distance: place for place, distance in enumerate(distances)}
    return tuple(places.get(distance, 0) for distance in range(distances[-1] + 1))


# Other indices.

# Ops that return the index of something along a dimension, and where that is given.
_DIMENSION_OF = {
    aten.max.dim: 1,
    aten.min.dim: 1,
    aten.argmax.default: 1,
    aten.argmin.default: 1,
    aten.median.dim: 1,
    aten.kthvalue.default: 2,
    aten.topk.default: 2,
    aten.sort.default: 1,
    aten.cummax.default: 1,
    aten.cummin.default: 1,
}
# Ops that return indices into their last dimensions taken together, and how many.
_PLANE_OF = {
    aten.max_pool3d_with_indices.default: 3,
    aten.max_pool2d_with_indices.default: 2,
    aten.adaptive_max_pool2d.default: 2,
    aten.adaptive_max_pool3d.default: 3,
}


def _largest_index(maker: fx.Node) -> int:
    """An index that an op never returns, or 0 if that is not known."""
    target: Any = maker.target
    given = maker.args[0] if maker.args else None
    if not isinstance(given, fx.Node) or not isinstance(
        given.meta.get("val"), torch.Tensor
    ):
        return 0
    shape = given.meta["val"].shape
    if target in _PLANE_OF:
        return math.prod(shape[-_PLANE_OF[target] :])
    if target not in _DIMENSION_OF or not shape:
        return 0
    place = _DIMENSION_OF[target]
    dim: Any = maker.args[place] if len(maker.args) > place else None
    if dim is None and target in (aten.argmax.default, aten.argmin.default):
        return math.prod(shape)
    return shape[-1 if dim is None else dim]


def _dtype_for(largest: int) -> torch.dtype | None:
    for bits, dtype in ((8, torch.uint8), (15, torch.int16), (31, torch.int32)):
        if 0 < largest <= 1 << bits:
            return dtype
    return None


def pack_integers(values: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """Whole numbers in a smaller type, in the order in which they lie in memory."""
    flat = values.as_strided((values.numel(),), (1,))
    return flat.to(dtype).view(torch.uint8)


def unpack_integers(
    packed: torch.Tensor,
    shape: tuple[int, ...],
    stride: tuple[int, ...],
    dtype: torch.dtype,
) -> torch.Tensor:
    return packed.view(dtype).to(torch.int64).as_strided(shape, stride)

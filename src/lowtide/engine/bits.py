"""Tensors as bits: what "the same numbers" means here."""

from __future__ import annotations

import zlib
from collections.abc import Iterable

import torch


def bits_of(value: torch.Tensor) -> torch.Tensor:
    """The bytes of a tensor's elements in order, whatever its layout."""
    value = value.detach()
    if value.layout is not torch.strided:
        value = value.to_dense()
    if value.is_conj() or value.is_neg():
        value = value.resolve_conj().resolve_neg()
    return value.contiguous().flatten().view(torch.uint8)


def same_bits(a: torch.Tensor, b: torch.Tensor) -> bool:
    """Bitwise equality: the sign of a zero counts, and so does every bit of a NaN."""
    if (a.shape, a.dtype) != (b.shape, b.dtype):
        return False
    return torch.equal(bits_of(a), bits_of(b))


def first_difference(a: torch.Tensor, b: torch.Tensor) -> str:
    """Where two tensors that differ do so first, and in how many places."""
    if (a.shape, a.dtype) != (b.shape, b.dtype):
        return f"{a.dtype} {tuple(a.shape)} against {b.dtype} {tuple(b.shape)}"
    size = a.element_size()
    wrong = (bits_of(a) != bits_of(b)).view(-1, size).any(1)
    place = int(wrong.nonzero()[0])
    x, y = a.flatten()[place].item(), b.flatten()[place].item()
    return f"{x!r} against {y!r} at element {place} ({int(wrong.sum())} differ)"


class Unchanged:
    """Remembers tensors by checksums, to tell later which of them have changed.

    Autograd notices changes through its own functions. It does not see what numpy,
    another process or `.data` writes into the same memory.
    """

    def __init__(self, tensors: Iterable[tuple[str, torch.Tensor]]) -> None:
        self.tensors = [(name, value, checksum(value)) for name, value in tensors]

    def first_changed(self) -> str | None:
        """The name of the first tensor that is not what it was."""
        for name, value, before in self.tensors:
            if checksum(value) != before:
                return name
        return None


def checksum(value: torch.Tensor) -> int:
    """A number that differs, almost surely, if any bit does."""
    return zlib.crc32(bits_of(value).cpu().numpy().data)

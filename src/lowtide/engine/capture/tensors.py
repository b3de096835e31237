"""Tensors among any values, and the storages they lie in."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode

from lowtide.step.graph import Kind, Storage


class Seeing(TorchDispatchMode):
    """Lets each op of a step run, and sees what it took and made."""

    @classmethod
    def ignore_compile_internals(cls) -> bool:
        """What torch.compile does to itself under this mode is not the step's."""
        return True

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        outputs = func(*args, **(kwargs or {}))
        self.see(func, args, kwargs or {}, outputs)
        return outputs

    def see(self, op: Any, args: Any, kwargs: Any, outputs: Any) -> None:
        """Told after each op."""
        raise NotImplementedError


def tensors_in(tree: Any) -> list[torch.Tensor]:
    """The (fake) tensors among values of any nesting; of a sparse one its two parts."""
    found = [v for v in pytree.tree_leaves(tree) if isinstance(v, torch.Tensor)]
    if not any(v.layout is torch.sparse_coo for v in found):
        return found
    return [part for v in found for part in _parts_of(v)]


def _parts_of(tensor: torch.Tensor) -> tuple[torch.Tensor, ...]:
    is_sparse = tensor.layout is torch.sparse_coo
    return (tensor._indices(), tensor._values()) if is_sparse else (tensor,)


def storage_key(tensor: torch.Tensor) -> int:
    """What names a tensor's storage, for as long as that is alive."""
    return int(tensor.untyped_storage()._cdata)


def own_part(tensor: torch.Tensor) -> torch.Tensor:
    """What this process holds of a tensor that is spread over several."""
    return getattr(tensor, "_local_tensor", tensor)


def bytes_in(tree: Any) -> int:
    """Bytes of the tensors among values of any nesting, shared storages once."""
    tensors = {storage_key(t): t for t in map(own_part, tensors_in(tree))}
    return sum(t.untyped_storage().nbytes() for t in tensors.values())


def span_of(shape: Sequence[int], strides: Sequence[int]) -> int:
    """How many elements lie from the first to the last of these, both included."""
    if 0 in shape:
        return 0
    return 1 + sum((d - 1) * s for d, s in zip(shape, strides, strict=True))


def short_dtype(tensor: torch.Tensor) -> str:
    """Its number type without "torch."."""
    return str(tensor.dtype).removeprefix("torch.")


# Ops whose kernels compute over a buffer of the size of their argument and shrink it to
# the result, which then holds all of it.
_KEEPS_ITS_BUFFER = frozenset(
    "mse_loss smooth_l1_loss binary_cross_entropy soft_margin_loss col2im".split()
)


def result_bytes(
    target: Any,
    inputs: Sequence[torch.Tensor],
    tensor: torch.Tensor,
    largest: Callable[[Iterable[Any]], Any] = max,
) -> Any:
    """Bytes of the storage in which an op leaves this (fake) result of it.

    `largest` is asked of numbers, which may be formulas.
    """
    nbytes = tensor.untyped_storage().nbytes()
    name = getattr(target, "__name__", "").split(".")[0]
    if name not in _KEEPS_ITS_BUFFER:
        return nbytes
    return largest([nbytes, *(tensor.element_size() * t.numel() for t in inputs)])


def storage_record(
    tensor: torch.Tensor, id: int, name: str, nbytes: int, kind: Kind, resident: bool
) -> Storage:
    shape = tuple(int(d) for d in tensor.shape)
    return Storage(id, name, nbytes, kind, resident, shape, short_dtype(tensor))

"""What a layer of an LSTM leaves for its backward on the CPU.

NOTE(torch>=2.13,<2.16): torch says of the kernel's last result, a workspace that the
backward reads, that it has no elements. Only the kernel knows how many it has. And it
makes one only where gradients are on, which they are not while a captured graph runs.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any

import torch
from torch._C import DispatchKey
from torch.utils._python_dispatch import _disable_current_modes

LAYER = torch.ops.aten.mkldnn_rnn_layer.default

_Like = tuple[tuple[int, ...], torch.dtype]


@contextmanager
def with_workspaces() -> Iterator[None]:
    """Let the kernel leave a workspace, though autograd records nothing."""
    with torch.enable_grad(), torch._C._AutoDispatchBelowAutograd():
        yield


def layer_like(*args: Any) -> tuple[torch.Tensor, ...]:
    """The results of a layer, as tensors without bytes but of the right size."""
    described = tuple(
        (tuple(a.shape), a.dtype)
        if isinstance(a, torch.Tensor)
        else tuple(a)
        if isinstance(a, list)
        else a
        for a in args
    )
    tensors = sum(isinstance(a, torch.Tensor) for a in args)
    return tuple(
        torch.empty(shape, dtype=dtype, device="meta")
        for shape, dtype in _results(described[:tensors], described[tensors:])
    )


@cache
def _results(tensors: tuple[_Like, ...], others: tuple[Any, ...]) -> tuple[_Like, ...]:
    """What the results are like, found by running the kernel on zeros."""
    with _disable_current_modes(), with_workspaces():
        zeros = [torch.zeros(shape, dtype=dtype) for shape, dtype in tensors]
        results = LAYER._op_dk(DispatchKey.CPU, *zeros, *others)
    # Where no backward will follow, there is no workspace.
    missing = torch.empty(0, dtype=torch.uint8)
    found = (missing if r is None else r for r in results)
    return tuple((tuple(r.shape), r.dtype) for r in found)

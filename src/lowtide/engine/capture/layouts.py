"""Results whose layout torch describes otherwise than its kernels make it.

NOTE(torch>=2.13): changes the tables by which fake tensors describe ops (`fake_impls`,
`decomposition_table`), and empties their cache of descriptions.

A graph is captured from descriptions: fake tensors with sizes and strides. For some ops
these say that the result lies like the argument, where eager's kernel on the CPU makes
it contiguous. It shows for transposed arguments, as in `bn(x.transpose(1, 2))`:
what is captured behind it is then something else than eager runs, a view where there is
a copy, or one product where there is a product and a sum.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import wraps
from typing import Any
from unittest.mock import patch

import torch
from torch._decomp import decomposition_table
from torch._prims_common import suggest_memory_format
from torch._subclasses import FakeTensorMode, fake_impls
from torch._subclasses.fake_tensor import FakeTensor, in_kernel_invocation_manager
from torch.utils import _pytree as pytree

aten = torch.ops.aten

# The place of the argument whose channels may be last in the result, too.
_LIKE_IMAGES = {
    aten.native_batch_norm.default: 0,
    aten._native_batch_norm_legit.default: 0,
    aten._native_batch_norm_legit.no_stats: 0,
    aten._native_batch_norm_legit_functional.default: 0,
    aten.native_batch_norm_backward.default: 1,
}
_CONTIGUOUS = (
    aten.log_sigmoid_forward.default,
    aten.native_layer_norm_backward.default,
    aten.mse_loss_backward.default,
    aten.smooth_l1_loss_backward.default,
    aten.huber_loss_backward.default,
    aten._log_softmax_backward_data.default,
)


@contextmanager
def layouts_of_eager() -> Iterator[None]:
    """Describe the results of these ops as eager's kernels make them.

    Torch describes an op by a decomposition in Python, if there is one.
    """
    ops = (*_CONTIGUOUS, *_LIKE_IMAGES)
    decomposed = {op: _in_layout(op) for op in ops if op in decomposition_table}
    FakeTensorMode.cache_clear()
    with (
        patch.dict(decomposition_table, decomposed),
        patch.dict(fake_impls.op_implementations_dict, dict.fromkeys(ops, _described)),
    ):
        try:
            yield
        finally:
            FakeTensorMode.cache_clear()


def _in_layout(op: Any) -> Callable[..., Any]:
    decomposition = decomposition_table[op]

    @wraps(decomposition)
    def described(*args: Any, **kwargs: Any) -> Any:
        return _laid_out(op, args, decomposition(*args, **kwargs))

    return described


def _described(mode: FakeTensorMode, op: Any, *args: Any, **kwargs: Any) -> Any:
    with in_kernel_invocation_manager(mode):
        made = op(*args, **kwargs)
    (device,) = {a.fake_device for a in args if isinstance(a, FakeTensor)}
    fake = pytree.tree_map_only(
        torch.Tensor, lambda value: FakeTensor(mode, value, device), made
    )
    with mode:
        return _laid_out(op, args, fake)


def _laid_out(op: Any, args: Any, made: Any) -> Any:
    """What was made, with all of the size of the first as the kernel lays it out."""
    several = made if isinstance(made, tuple | list) else [made]
    if several[0] is None or several[0].device.type != "cpu":
        return made
    layout = torch.contiguous_format
    if op in _LIKE_IMAGES:
        layout = suggest_memory_format(args[_LIKE_IMAGES[op]])
    found = tuple(
        torch.empty_like(value, memory_format=layout)
        if value is not None and value.shape == several[0].shape
        else value
        for value in several
    )
    return found if isinstance(made, tuple | list) else found[0]

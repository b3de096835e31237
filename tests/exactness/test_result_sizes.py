"""Bytes of results: some kernels leave a small result in a much larger buffer."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

import lowtide
from lowtide.engine.capture.tensors import result_bytes, storage_key, tensors_in
from lowtide.engine.costs.ledger import ledger
from tests.exactness.ops import differentiable, samples_of

KEEP_THEIR_BUFFER = {
    "mse": lambda x, y: F.mse_loss(x, y),
    "mse, of rows": lambda x, y: F.mse_loss(x, y[:1].expand_as(x)),
    "mse, not reduced": lambda x, y: F.mse_loss(x, y, reduction="none").mean(),
    "smooth l1": lambda x, y: F.smooth_l1_loss(x, y, reduction="sum"),
    "cross entropy": lambda x, y: F.binary_cross_entropy(x, y),
    "soft margin": lambda x, y: F.soft_margin_loss(x, y),
    "unfold": lambda x, y: F.unfold(x.view(2, 4, 32, 32), 3, padding=1),
    "fold": lambda x, y: F.fold(x.view(2, 64, 64), (9, 9), 2),
}


class Sizes(TorchDispatchMode):
    """Compares the real bytes of every new result with what a step counts for it."""

    def __init__(self) -> None:
        super().__init__()
        self.wrong: dict[str, tuple[int, int]] = {}
        self.larger = 0

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        result = func(*args, **(kwargs or {}))
        given = tensors_in((args, kwargs))
        known = set(map(storage_key, given))
        for tensor in tensors_in(result):
            if storage_key(tensor) in known or tensor.layout != torch.strided:
                continue
            alike = torch.empty_strided(
                tensor.shape, tensor.stride(), dtype=tensor.dtype
            )
            plain = alike.untyped_storage().nbytes()
            before = tensor.storage_offset() * tensor.element_size()
            counted = result_bytes(func, given, alike)
            real = tensor.untyped_storage().nbytes() - before
            self.larger += real > plain + 64
            if real > counted + 64 or (real < counted and counted > plain):
                self.wrong[str(func)] = (real, counted)
        return result


def sizes_of(function: Callable[..., Any], *args: Any, **kwargs: Any) -> Sizes:
    """Of all results of a function, and of its gradient."""
    with Sizes() as sizes:
        results = tensors_in(function(*args, **kwargs))
        sums = [r.sum() for r in results if r.requires_grad]
        wanted = [t for t in tensors_in((args, kwargs)) if t.requires_grad]
        torch.autograd.grad(sums, wanted, allow_unused=True)
    return sizes


@pytest.mark.parametrize("name", KEEP_THEIR_BUFFER)
def test_a_buffer_that_a_result_keeps_is_counted(name: str) -> None:
    x, y = torch.rand(64, 128).requires_grad_(), torch.rand(64, 128)
    sizes = sizes_of(KEEP_THEIR_BUFFER[name], x, y)
    assert not sizes.wrong
    assert (sizes.larger > 0) == (name != "mse, not reduced")


@pytest.mark.slow
def test_no_op_of_torch_keeps_a_buffer_unseen() -> None:
    wrong: dict[str, tuple[int, int]] = {}
    num_seen = 0
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for op in differentiable(torch.float32):
            for sample in samples_of(op, torch.float32, 3):
                with suppress(RuntimeError, NotImplementedError):
                    sizes = sizes_of(op, sample.input, *sample.args, **sample.kwargs)
                    wrong |= sizes.wrong
                    num_seen += 1
    assert not wrong
    assert num_seen > 1000


class Autoencoder(nn.Module):
    """Its loss is inside, so that a step holds it to the end."""

    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Sequential(nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, 64))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return F.mse_loss(self.net(x), x)


@pytest.mark.parametrize("is_inside", [True, False])
def test_the_buffer_of_a_loss_is_part_of_the_peak(is_inside: bool) -> None:
    model, x = Autoencoder(), torch.randn(2048, 64)
    module: nn.Module = model if is_inside else model.net
    loss = None if is_inside else lambda y: F.mse_loss(y, x)

    def run() -> None:
        (model(x) if is_inside else F.mse_loss(model.net(x), x)).backward()

    run()
    model.zero_grad(set_to_none=True)
    real = ledger(run, modules=[model], batch=x).peak_bytes
    step = lowtide.profile(module, x, loss=loss, how="estimate")
    # The loss holds as much as the output does, 512 KiB.
    assert step.eager_peak_bytes == pytest.approx(real, abs=128 << 10)

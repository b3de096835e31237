"""A training run with and without a budget: the same bits, and a lower peak."""

from __future__ import annotations

import contextlib
import gc
import weakref
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import pytest
import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensor
from torch.optim.optimizer import register_optimizer_step_post_hook
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode

from lowtide.engine.bits import same_bits

# Other libraries warn of each other; only what lowtide has to say is an error.
LOWTIDE_WARNINGS_ONLY = [
    pytest.mark.filterwarnings("default"),
    pytest.mark.filterwarnings("error::lowtide.errors.LowtideWarning"),
]


@dataclass
class Trained:
    """What a run leaves behind."""

    model: nn.Module
    losses: list[float] = field(default_factory=list)
    peak_bytes: int = 0


def assert_same_with_less(
    train: Callable[[str | None], Trained], budget: str = "65%", share: float = 0.85
) -> Trained:
    """Train without a budget and with one; returns what the latter left behind.

    `share` is what the bytes a step adds to what was there must come down to.
    """
    plain, planned = (measured(train, asked) for asked in (None, budget))
    assert len(plain.losses) >= 4
    assert planned.losses == plain.losses
    theirs = plain.model.state_dict()
    for name, value in planned.model.state_dict().items():
        assert same_bits(value, theirs[name]), name
    assert planned.peak_bytes <= share * plain.peak_bytes
    return planned


def measured(train: Callable[[str | None], Trained], budget: str | None) -> Trained:
    """Train once, from a seed, and measure what its third step allocates."""
    torch.manual_seed(0)
    with third_step() as meter:
        trained = train(budget)
    trained.peak_bytes = meter.peak
    return trained


@contextlib.contextmanager
def third_step() -> Iterator[Meter]:
    """A meter that runs from the end of the second update to that of the third."""
    meter, updates = Meter(), 0

    def updated(optimizer: torch.optim.Optimizer, *_: Any) -> None:
        nonlocal updates
        first = optimizer.param_groups[0]["params"][0]
        updates += not isinstance(first, FakeTensor)  # lowtide tries it on fake ones
        if updates == 2 and not meter.is_on:
            gc.collect()
            meter.is_on = True
            meter.__enter__()
        elif updates == 3 and meter.is_on:
            meter.is_on = False
            meter.__exit__(None, None, None)

    handle = register_optimizer_step_post_hook(updated)
    try:
        yield meter
    finally:
        handle.remove()
    assert updates >= 3


class Meter(TorchDispatchMode):
    """Counts the bytes of the storages that ops bring forth and that still live."""

    supports_higher_order_operators = True

    def __init__(self) -> None:
        super().__init__()
        self.live = self.peak = 0
        self.is_on = False
        self.known: set[int] = set()

    @classmethod
    def ignore_compile_internals(cls) -> bool:
        return True

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        before = {_key(v) for v in pytree.tree_leaves((args, kwargs)) if _is_real(v)}
        result = func(*args, **(kwargs or {}))
        for value in pytree.tree_leaves(result):
            if _is_real(value) and _key(value) not in self.known | before:
                self.add(value.untyped_storage())
        return result

    def add(self, storage: torch.UntypedStorage) -> None:
        key, nbytes = storage._cdata, storage.nbytes()
        self.known.add(key)
        self.live += nbytes
        self.peak = max(self.peak, self.live)
        weakref.finalize(storage, self.remove, key, nbytes)

    def remove(self, key: int, nbytes: int) -> None:
        self.known.discard(key)
        self.live -= nbytes


def _is_real(value: Any) -> bool:
    return isinstance(value, torch.Tensor) and value.device.type != "meta"


def _key(value: torch.Tensor) -> int:
    return value.untyped_storage()._cdata

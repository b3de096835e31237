"""Finding objects of this process: the optimizer that nobody named."""

from __future__ import annotations

import gc
from collections.abc import Iterable
from itertools import compress
from typing import TypeVar

import torch

T = TypeVar("T")


def optimizer_of(modules: Iterable[torch.nn.Module]) -> torch.optim.Optimizer | None:
    """The optimizer in this process that updates parameters of these modules.

    Of several, the one with the most of them.
    """
    own = {id(p) for module in modules for p in module.parameters()}

    def num_own(optimizer: torch.optim.Optimizer) -> int:
        groups = optimizer.__dict__.get("param_groups", ())
        return sum(id(p) in own for group in groups for p in group["params"])

    best = max(living(torch.optim.Optimizer), key=num_own, default=None)
    return best if best is not None and num_own(best) else None


def living(kind: type[T]) -> list[T]:
    """The objects of this kind in the process.

    There may be millions of others, so nothing here is done in Python for each of them.
    `isinstance` would also ask lazy objects for a class that they would have to load.
    """
    kinds: set[type] = {kind}
    waiting: list[type] = [kind]
    while waiting:
        waiting += (new := set(waiting.pop().__subclasses__()) - kinds)
        kinds |= new
    objects = gc.get_objects()
    return list(compress(objects, map(kinds.__contains__, map(type, objects))))

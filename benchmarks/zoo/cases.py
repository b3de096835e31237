"""What a model of the corpus is, and the list of them.

A model is a function that builds an `Example`. It is registered under a name such as
`timm/resnet10t`: the library, or `odd` for what is written here, and the model.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from typing import Any

import torch
from torch import nn

ROOMS = ("vision", "language", "diffusion", "adapters", "oddities", "odd_code")
Loss = Callable[[Any], torch.Tensor]
MakeOptimizer = Callable[[list[nn.Parameter]], torch.optim.Optimizer]


@dataclass
class Example:
    """A model and how it is trained.

    Attributes:
        model: In training mode, with random weights.
        batches: What it is called with in the first and in the second step: a tuple of
            arguments or a dictionary of keywords.
        loss: The loss of what it returns; the default is its own, `output.loss`.
        optimizer: Makes the optimizer of its parameters.
    """

    model: nn.Module
    batches: list[Any]
    loss: Loss | None = None
    optimizer: MakeOptimizer = torch.optim.AdamW


Build = Callable[[], Example]
_FOUND: dict[str, Build] = {}


def add(name: str, build: Build) -> None:
    """Register a model."""
    if name in _FOUND:
        raise ValueError(f"two models are called {name}")
    _FOUND[name] = build


@cache
def all_models() -> dict[str, Build]:
    """Every model by its name."""
    for room in ROOMS:
        import_module(f"benchmarks.zoo.{room}")
    return _FOUND

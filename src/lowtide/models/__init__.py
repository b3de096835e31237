"""Ready-made training steps: a model, a batch and a loss, at any size.

The models come from torchvision and transformers where those have them and are written
here where they do not. Weights are random, nothing is downloaded, and the same seed
gives the same weights and the same data. Importing this package imports neither torch
nor those libraries; `build` does.

Under `torch.device("meta")` or inside a fake tensor mode nothing is allocated, so a
model far larger than the machine can be built, profiled and planned.
"""

from dataclasses import dataclass
from importlib import import_module
from typing import TYPE_CHECKING, Any

from lowtide.models._catalog import ALIASES, Description, Option, available, describe

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch import Tensor, nn

__all__ = [
    "ALIASES",
    "Description",
    "Example",
    "Option",
    "available",
    "build",
    "build_fake",
    "describe",
]


@dataclass(frozen=True, slots=True, eq=False)
class Example:
    """One training step, ready to run: `loss(model(batch)).backward()`.

    `batch` is a tensor, a tuple of positional or a dict of keyword arguments to the
    model. `loss` maps the model's output to a scalar; None means that the model has its
    own, as `output.loss`.
    """

    model: "nn.Module"
    batch: "Tensor | tuple[Tensor, ...] | dict[str, Tensor]"
    loss: "Callable[[Any], Tensor] | None"


def build(name: str, *, batch: int | None = None, **options: Any) -> Example:
    """The named model with random weights, a batch for it, and its loss.

    Args:
        name: One of `available()`, or an alias of one.
        batch: Number of samples; each model has a moderate default.
        **options: Sizes and settings, flat primitives; `describe(name).options` lists
            them. All models take `dtype`, `device` and `seed`; without `device` they
            are built on torch's default device.

    Raises:
        InvalidArgumentError: There is no such model or option (the message names those
            there are), or the value cannot be used.
        MissingPackageError: The model comes from a library that is not installed.

    Example:
        >>> example = build("mlp", batch=4, width=16)
        >>> tuple(example.batch.shape)
        (4, 16)
        >>> example.loss(example.model(example.batch)).backward()
    """
    return _example(name, {"batch": batch, **options}, fake=False)


def build_fake(name: str, *, batch: int | None = None, **options: Any) -> Example:
    """The same on fake tensors, which have shapes but neither values nor memory."""
    return _example(name, {"batch": batch, **options}, fake=True)


def _example(name: str, options: dict[str, Any], *, fake: bool) -> Example:
    description = describe(name)
    # Imported here so that listing and describing models stay free of torch.
    make = import_module("lowtide.models._build").make_example
    return Example(*make(description, description.resolve(options), fake=fake))

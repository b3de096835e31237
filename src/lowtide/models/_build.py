"""Runs a model's maker with its seed, number type and device in force."""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from importlib import import_module
from typing import Any

import torch
from torch._subclasses import FakeTensorMode
from torch.overrides import TorchFunctionMode

from lowtide.errors import InvalidArgumentError
from lowtide.models._options import Description


def make_example(description: Description, values: dict[str, Any]) -> tuple[Any, ...]:
    """The model (in training mode), a batch and the loss."""
    values = dict(values)
    dtype = getattr(torch, values.pop("dtype"))
    device = _device(values.pop("device"))
    module, function = description.maker.split(":")
    make = getattr(import_module(f"lowtide.models.{module}"), function)
    with ExitStack() as stack:
        stack.enter_context(_seeded(values.pop("seed"), device))
        stack.enter_context(_default_dtype(dtype))
        stack.enter_context(device)
        # Inside a fake tensor mode even this is no ordinary tensor.
        if type(torch.empty(0)) is not torch.Tensor:
            stack.enter_context(_WithoutValues())
        model, batch, loss = make(description.name, **values)
    return model.train(), batch, loss


def make_fake_example(
    description: Description, values: dict[str, Any]
) -> tuple[Any, ...]:
    """The same on fake tensors, which take no memory."""
    with FakeTensorMode():
        return make_example(description, values)


def _device(text: str | None) -> torch.device:
    if text is None:
        return torch.get_default_device()
    try:
        return torch.device(text)
    except RuntimeError as error:
        raise InvalidArgumentError(
            f"device={text!r}", "torch knows no such device", "Use cpu, cuda or meta"
        ) from error


@contextmanager
def _seeded(seed: int, device: torch.device) -> Iterator[None]:
    """Draw from `seed` inside, and leave the caller's random numbers as they were."""
    # A fake tensor may claim to be on a GPU that is not there: only fork real ones.
    on_gpu = device.type == "cuda" and torch.cuda.is_available()
    with torch.random.fork_rng(devices=[device] if on_gpu else []):
        torch.manual_seed(seed)
        yield


@contextmanager
def _default_dtype(dtype: torch.dtype) -> Iterator[None]:
    """Create floating point tensors as `dtype`.

    Unlike `model.to(dtype)` afterwards, this never holds the weights twice, and it
    spares the few buffers that a library makes float32 on purpose (rotary frequencies).
    """
    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        yield
    finally:
        torch.set_default_dtype(before)


class _WithoutValues(TorchFunctionMode):
    """Answers "no" to questions about values that fake tensors do not have.

    NOTE(torch>=2.13): a truncated normal is drawn again until no value lies outside,
    which no fake tensor can tell.
    """

    def __torch_function__(self, func, types, args=(), kwargs=None):
        if func is torch.Tensor.__bool__:
            return False
        return func(*args, **(kwargs or {}))

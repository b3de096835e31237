"""Runs a model's maker with its seed, number type and device in force."""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from importlib import import_module
from typing import Any

import torch
from torch._subclasses import FakeTensorMode
from torch.overrides import TorchFunctionMode

from lowtide.errors import InvalidArgumentError
from lowtide.models._catalog import Description


def make_example(
    description: Description, values: dict[str, Any], *, fake: bool
) -> tuple[Any, ...]:
    """The model (in training mode), a batch and the loss."""
    values = dict(values)
    module, function = description.maker.split(":")
    make = getattr(import_module(f"lowtide.models.{module}"), function)
    with ExitStack() as stack:
        if fake:
            stack.enter_context(FakeTensorMode())
        device = _device(values.pop("device"))
        dtype = getattr(torch, values.pop("dtype"))
        stack.enter_context(_drawing(values.pop("seed"), dtype, device))
        # Inside a fake tensor mode even this is no ordinary tensor.
        if type(torch.empty(0)) is not torch.Tensor:
            stack.enter_context(_WithoutValues())
        model, batch, loss = make(description.name, **values)
    return model.train(), batch, loss


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
def _drawing(seed: int, dtype: torch.dtype, device: torch.device) -> Iterator[None]:
    """Draw from `seed`, as `dtype`, and leave the caller's settings as they were.

    Unlike `model.to(dtype)` afterwards, this never holds the weights twice, and it
    spares the few buffers that a library makes float32 on purpose (rotary frequencies).
    """
    # A fake tensor may claim to be on a GPU that is not there: only fork real ones.
    on_gpu = device.type == "cuda" and torch.cuda.is_available()
    before = torch.get_default_dtype()
    with torch.random.fork_rng(devices=[device] if on_gpu else []), device:
        torch.manual_seed(seed)
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

"""Random ops that can be drawn again.

An op whose draw may be repeated takes its numbers from a generator of its own, set to
where the process's stood. So a repetition touches nothing that another thread could be
drawing from, and cannot be disturbed by it. The first draw then moves the process's
generator on, to where it would stand without lowtide.
"""

from __future__ import annotations

import random
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import fx

aten = torch.ops.aten


def can_draw_again(node: fx.Node) -> bool:
    """Whether it draws from the process's generator, in a form that takes another."""
    given = node.kwargs.get("generator")
    return given is None and _with_generator(node.target) is not None


def generator_state(device: str) -> torch.Tensor:
    return _default_generator(device).get_state()


def draw(state: torch.Tensor, target: Any, /, *args: Any, **kwargs: Any) -> Any:
    """Draw from this state, which the process's generator is in, and move that on."""
    device = _device_of(args, kwargs)
    result, after = _draw(state, device, target, *args, **kwargs)
    _default_generator(device).set_state(after)
    return result


def draw_again(state: torch.Tensor, target: Any, /, *args: Any, **kwargs: Any) -> Any:
    """Draw what was drawn from this state; no other generator is touched."""
    return _draw(state, _device_of(args, kwargs), target, *args, **kwargs)[0]


@contextmanager
def streams_put_back() -> Iterator[None]:
    """All random streams of the process are afterwards what they were before."""
    numpy = sys.modules.get("numpy")
    states = random.getstate(), torch.get_rng_state()
    drawn = numpy.random.get_state() if numpy else None
    devices = torch.cuda.get_rng_state_all() if torch.cuda.is_initialized() else []
    try:
        yield
    finally:
        random.setstate(states[0])
        torch.set_rng_state(states[1])
        torch.cuda.set_rng_state_all(devices)
        if numpy:
            numpy.random.set_state(drawn)


def _device_of(args: tuple[Any, ...], kwargs: dict[str, Any]) -> str:
    tensors = (a for a in args if isinstance(a, torch.Tensor))
    return str(kwargs.get("device") or next((t.device for t in tensors), "cpu"))


def _draw(
    state: torch.Tensor, device: str, target: Any, /, *args: Any, **kwargs: Any
) -> tuple[Any, torch.Tensor]:
    """What is drawn from this state, and the state behind it."""
    if target is aten.native_dropout.default and device != "cpu":
        return _draw_from_process(state, device, target, *args, **kwargs)
    own = torch.Generator(device=device)
    own.set_state(state)
    form = _with_generator(target)
    assert form is not None, f"{target} is not drawn twice"
    return form(*args, **{**kwargs, "generator": own}), own.get_state()


def _draw_from_process(
    state: torch.Tensor, device: str, target: Any, /, *args: Any, **kwargs: Any
) -> tuple[Any, torch.Tensor]:
    """Draw with an op that takes no generator: the process's is lent this state.

    A GPU's dropout is one kernel, which draws in an order of its own.
    """
    lent = _default_generator(device)
    before = lent.get_state()
    lent.set_state(state)
    try:
        return target(*args, **kwargs), lent.get_state()
    finally:
        lent.set_state(before)


def _default_generator(device: str) -> torch.Generator:
    if device.startswith("cuda"):
        index = torch.device(device).index
        number = torch.cuda.current_device() if index is None else index
        return torch.cuda.default_generators[number]
    return torch.default_generator


def _with_generator(target: Any) -> Callable[..., Any] | None:
    """The form of a random op that takes a generator, if there is one."""
    if target is aten.native_dropout.default:
        return _native_dropout
    if not isinstance(target, torch._ops.OpOverload):
        return None
    names = _argument_names(target)
    if "generator" in names:
        return target
    packet = target.overloadpacket
    forms = (getattr(packet, overload) for overload in packet.overloads())
    return next((f for f in forms if _argument_names(f) == {*names, "generator"}), None)


def _argument_names(op: Any) -> set[str]:
    return {a.name for a in op._schema.arguments}


def _native_dropout(
    tensor: torch.Tensor, p: float, train: bool | None, *, generator: torch.Generator
) -> tuple[torch.Tensor, torch.Tensor]:
    """What `native_dropout` computes on the CPU, from a given generator."""
    if train is False or tensor.numel() == 0:
        return tensor.clone(), torch.ones_like(tensor, dtype=torch.bool)
    mask = torch.empty_like(tensor, dtype=torch.bool)
    mask.bernoulli_(1.0 - p, generator=generator)
    return drop_by_mask(tensor, mask, masking_scale(tensor, p)), mask


def drop_by_mask(
    tensor: torch.Tensor, mask: torch.Tensor, scale: float
) -> torch.Tensor:
    """What dropout makes of a tensor once its mask is drawn."""
    return tensor.mul(mask).mul_(scale)


def masking_scale(tensor: torch.Tensor, p: float) -> float:
    """What stays is multiplied by this: a number of the tensor's type, so rounded."""
    keep = 1.0 - p
    return torch.tensor(1.0 / keep if keep else 0.0, dtype=tensor.dtype).item()

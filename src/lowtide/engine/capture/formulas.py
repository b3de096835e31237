"""Backwards of custom ops that look at values, as ops of their own.

Whoever registers a custom op gives its gradient as a function in Python, which tracing
looks into. Some look at values, as that of a mixture of experts which asks how many
tokens each expert has, and cannot be traced. Such a function becomes one op here: it
takes the gradients and all that the forward has left for it, and its results are shaped
like the inputs of the forward.

NOTE(torch>=2.13,<2.16): replaces functions of torch's definitions of custom ops while a
graph is traced.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import torch
from torch._library import utils
from torch._library.custom_ops import OPDEFS
from torch._subclasses import FakeTensorMode
from torch._subclasses.fake_tensor import (
    DataDependentOutputException,
    DynamicOutputShapeException,
)
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import _disable_current_modes

# What is raised where tracing would have to look at values.
VALUES_DECIDE = (DataDependentOutputException, DynamicOutputShapeException)
_INPUTS = "lowtide_inputs"
_Like = tuple[tuple[int, ...], tuple[int, ...], torch.dtype, torch.device]


@dataclass(frozen=True)
class _Formula:
    """The gradient of a custom op, and what it is called with besides tensors.

    `results` says what each gradient is like, or that none is asked for.
    """

    function: Callable[..., Any]
    results: tuple[_Like | None, ...]
    rest: tuple[Any, ...]
    spec: Any

    def run(self, tensors: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        given = iter(tensors)
        leaves = [next(given) if v is torch.Tensor else v for v in self.rest]
        saved, left, gradients = pytree.tree_unflatten(leaves, self.spec)
        needed = tuple(like is not None for like in self.results)
        ctx = SimpleNamespace(**left, saved_tensors=saved, needs_input_grad=needed)
        found = self.function(ctx, *gradients)
        found = found if isinstance(found, tuple) else (found,)
        pairs = zip(found, self.results, strict=True)
        return [_in_layout(value, like) for value, like in pairs if like is not None]


def _in_layout(value: torch.Tensor | None, like: _Like) -> torch.Tensor:
    """The gradient with the strides that were promised, zeros where there is none."""
    if value is not None and value.stride() == like[1]:
        return value
    made = _empty(like)
    return made.zero_() if value is None else made.copy_(value)


def _empty(like: _Like) -> torch.Tensor:
    shape, strides, dtype, device = like
    return torch.empty_strided(shape, strides, dtype=dtype, device=device)


# The graphs name formulas by texts that say all of them, as plans are kept.
_FORMULAS: dict[str, _Formula] = {}
_library = torch.library.Library("lowtide", "FRAGMENT")
_library.define("formula(Tensor[] given, str name) -> Tensor[]")
_library.impl(
    "formula",
    lambda given, name: _FORMULAS[name].run(given),
    "CompositeExplicitAutograd",
)


@torch.library.register_fake("lowtide::formula", lib=_library)
def _results(given: list[torch.Tensor], name: str) -> list[torch.Tensor]:
    return [_empty(like) for like in _FORMULAS[name].results if like is not None]


@contextmanager
def opaque_where_values_decide() -> Iterator[None]:
    """Let tracing take a custom op's gradient for one op if it looks at values."""
    known = [
        (op, op._backward_fn, op._setup_context_fn)
        for op in list(OPDEFS.values())
        if op._backward_fn is not None and not _takes_lists(op)
    ]
    try:
        for op, gradient, setup in known:
            op._backward_fn = _gradient_of(op._qualname, gradient)
            op._setup_context_fn = _setup_of(setup)
        yield
    finally:
        for op, gradient, setup in known:
            op._backward_fn, op._setup_context_fn = gradient, setup


def _takes_lists(op: Any) -> bool:
    schema = op._opoverload._schema
    values = (*schema.arguments, *schema.returns)
    return any(utils.is_tensorlist_like_type(value.type) for value in values)


def _setup_of(setup: Callable[..., None] | None) -> Callable[..., None]:
    def remember(*, ctx: Any, inputs: Any, output: Any, **named: Any) -> None:
        if setup is not None:
            setup(ctx=ctx, inputs=inputs, output=output, **named)
        setattr(ctx, _INPUTS, [_like(value) for value in inputs])

    return remember


def _like(value: Any) -> _Like | None:
    """What an input's gradient is like: `None` if it has none, or sizes are symbols."""
    if not isinstance(value, torch.Tensor):
        return None
    layout = (*value.shape, *value.stride())
    if not value.requires_grad or not all(type(number) is int for number in layout):
        return None
    return tuple(value.shape), tuple(value.stride()), value.dtype, value.device


def _gradient_of(name: str, function: Callable[..., Any]) -> Callable[..., Any]:
    def gradient(ctx: Any, *gradients: Any) -> Any:
        left = {k: v for k, v in vars(ctx).items() if k != "needs_input_grad"}
        likes = left.pop(_INPUTS)
        needed = zip(likes, ctx.needs_input_grad, strict=True)
        results = tuple(like if is_needed else None for like, is_needed in needed)
        leaves, spec = pytree.tree_flatten((list(ctx.saved_tensors), left, gradients))
        tensors = [v for v in leaves if isinstance(v, torch.Tensor)]
        rest = tuple(torch.Tensor if isinstance(v, torch.Tensor) else v for v in leaves)
        formula = _Formula(function, results, rest, spec)
        if not _looks_at_values(formula, tensors):
            return function(ctx, *gradients)
        text = f"{name} {results} {rest} {spec}"
        _FORMULAS[text] = formula
        found = iter(torch.ops.lowtide.formula(tensors, text))
        return tuple(None if like is None else next(found) for like in results)

    return gradient


def _looks_at_values(formula: _Formula, tensors: Sequence[torch.Tensor]) -> bool:
    """Whether it cannot run on tensors without bytes."""
    if not all(type(n) is int for t in tensors for n in (*t.shape, *t.stride())):
        return False
    with _disable_current_modes(), FakeTensorMode(), torch.no_grad():
        fakes = [
            _empty((tuple(t.shape), tuple(t.stride()), t.dtype, t.device))
            for t in tensors
        ]
        try:
            formula.run(fakes)
        except VALUES_DECIDE:
            return True
        except Exception:
            return False  # it will be raised again where it is told better
    return False

"""Every differentiable op of torch in a training step of its own, against eager.

The ops and their sample inputs are those of torch's own tests (`op_db`). The tensors
that a sample differentiates become parameters of a module, which applies the op; the
loss outside weighs the results, so that every element has a gradient of its own.
"""

from __future__ import annotations

import copy
import itertools
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.testing._internal.common_methods_invocations import op_db
from torch.utils import _pytree as pytree

import lowtide

EQUAL, NOT_CAPTURED = "equal", "not captured"
EAGER_DIFFERS, EAGER_REFUSES = "eager differs from itself", "eager refuses"
MOST_SAMPLES = 60  # to choose from


class OneOp(nn.Module):
    """An op as a module: what it differentiates are parameters, the rest inputs."""

    def __init__(self, op: Callable[..., Any], arguments: Any) -> None:
        super().__init__()
        self.op = op
        leaves, self.structure = pytree.tree_flatten(arguments)
        self.plain = [None if isinstance(v, torch.Tensor) else v for v in leaves]
        self.places: list[int] = []
        self.inputs: list[torch.Tensor] = []
        for place, value in enumerate(leaves):
            if not isinstance(value, torch.Tensor):
                continue
            if value.requires_grad:
                parameter = nn.Parameter(value.detach())
                self.register_parameter(f"of_{place}", parameter)
            else:
                self.places.append(place)
                self.inputs.append(value)

    def forward(self, *inputs: torch.Tensor) -> list[torch.Tensor]:
        leaves = list(self.plain)
        for place, value in zip(self.places, inputs, strict=True):
            leaves[place] = value
        for place in range(len(leaves)):
            if hasattr(self, f"of_{place}"):
                # Times one, because capture leaves views of parameters out.
                leaves[place] = getattr(self, f"of_{place}") * 1
        args, kwargs = pytree.tree_unflatten(leaves, self.structure)
        results = pytree.tree_leaves(self.op(*args, **kwargs))
        return [r for r in results if isinstance(r, torch.Tensor)]


@dataclass
class Outcome:
    """What became of an op: `verdict` is one of the words above, or what differs."""

    verdict: str
    reason: str = ""


def find(name: str, variant: str = "") -> Any:
    """The entry of torch's table for an op."""
    (found,) = [o for o in op_db if (o.name, o.variant_test_name) == (name, variant)]
    return found


def differentiable(dtype: torch.dtype) -> list[Any]:
    """All entries that can be differentiated on the CPU in this type."""
    return [
        op
        for op in op_db
        if op.supports_autograd and dtype in op.supported_backward_dtypes("cpu")
    ]


def samples_of(op: Any, dtype: torch.dtype, number: int) -> list[Any]:
    """Some of an op's sample inputs, spread over all of them."""
    torch.manual_seed(0)
    found = op.sample_inputs("cpu", dtype, requires_grad=True)
    samples = list(itertools.islice(found, MOST_SAMPLES))
    samples = [s for s in samples if _differentiates(s)]
    chosen = range(0, len(samples), max(1, -(-len(samples) // number)))
    return [samples[place] for place in chosen]


def _differentiates(sample: Any) -> bool:
    leaves = pytree.tree_leaves((sample.input, sample.args, sample.kwargs))
    return any(isinstance(v, torch.Tensor) and v.requires_grad for v in leaves)


def compare(op: Any, dtype: torch.dtype, number: int) -> Outcome:
    """Train one step of each sample with and without lowtide; the worst outcome."""
    outcomes = [Outcome(EQUAL)]
    for place, sample in enumerate(samples_of(op, dtype, number)):
        outcome = _compare(op.op, sample)
        outcome.reason = outcome.reason and f"sample {place}: {outcome.reason}"
        outcomes.append(outcome)
    order = [EQUAL, EAGER_REFUSES, EAGER_DIFFERS, NOT_CAPTURED]
    return max(
        outcomes,
        key=lambda o: order.index(o.verdict) if o.verdict in order else len(order),
    )


def _compare(op: Callable[..., Any], sample: Any) -> Outcome:
    model = OneOp(op, ((sample.input, *sample.args), sample.kwargs))
    inputs = model.inputs
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            expected = train(copy.deepcopy(model), inputs)
        except Exception as error:
            return Outcome(EAGER_REFUSES, _first_line(error))
        if not any(name.startswith("grad") for name in expected):
            return Outcome(EQUAL)
        again = difference(train(copy.deepcopy(model), inputs), expected)
        if again:
            return Outcome(EAGER_DIFFERS, again)
        torch._dynamo.reset()
        lowtide.optimize(model, budget="1 TiB", planner="recompute_all", cache=False)
        try:
            actual = train(model, inputs)
        except Exception as error:
            return Outcome(NOT_CAPTURED, _first_line(error))
    found = difference(actual, expected)
    return Outcome(found.split(":")[0], found) if found else Outcome(EQUAL)


def _first_line(error: Exception) -> str:
    inner = getattr(error, "inner_exception", error)
    lines = str(inner).strip().splitlines() or [""]
    return f"{type(inner).__name__}: {lines[0]}"


def train(
    model: nn.Module, inputs: list[torch.Tensor]
) -> dict[str, torch.Tensor | None]:
    """One forward and backward; results, gradients and generator."""
    torch.manual_seed(1)
    outputs = model(*(i.clone() for i in inputs))
    seen: dict[str, torch.Tensor | None] = {
        f"output {n}": out.detach().clone() for n, out in enumerate(outputs)
    }
    weights = torch.Generator().manual_seed(2)
    loss = torch.zeros(())
    for out in outputs:
        if out.requires_grad:
            dense = out.to_dense() if out.layout != torch.strided else out
            if dense.is_complex():
                dense = torch.view_as_real(dense.resolve_conj())
            weight = torch.randn(dense.shape, generator=weights, dtype=torch.float32)
            loss = loss + (dense * weight.to(dense.dtype)).sum()
    if loss.requires_grad:
        loss.backward()
        for name, parameter in model.named_parameters():
            seen[f"grad of {name}"] = parameter.grad
    seen["generator"] = torch.get_rng_state()
    return seen


def difference(
    actual: dict[str, torch.Tensor | None], expected: dict[str, torch.Tensor | None]
) -> str:
    """Where two steps differ in a bit, or nothing."""
    if actual.keys() != expected.keys():
        return f"keys: {sorted(actual)} against {sorted(expected)}"
    for name, value in actual.items():
        other = expected[name]
        if value is None or other is None:
            if value is not other:
                return f"{name}: {value} against {other}"
        elif not same_bits(value, other):
            return f"{name}: {_largest(value, other)}"
    return ""


def same_bits(a: torch.Tensor, b: torch.Tensor) -> bool:
    """Equal bit for bit, the sign of zero included; a NaN equals any NaN in place."""
    if (a.shape, a.dtype) != (b.shape, b.dtype):
        return False
    if a.layout != torch.strided:
        a, b = a.to_dense(), b.to_dense()
    if a.is_complex():
        a, b = (
            torch.view_as_real(a.resolve_conj()),
            torch.view_as_real(b.resolve_conj()),
        )
    if a.is_floating_point():
        a, b = a.clone(), b.clone()
        if not torch.equal(a.isnan(), b.isnan()):
            return False
        a[a.isnan()], b[b.isnan()] = 0, 0
    dense = torch.contiguous_format
    a, b = (v.resolve_neg().flatten().clone(memory_format=dense) for v in (a, b))
    return torch.equal(a.view(torch.uint8), b.view(torch.uint8))


def _largest(a: torch.Tensor, b: torch.Tensor) -> str:
    if (a.shape, a.dtype) != (b.shape, b.dtype):
        return f"{a.dtype} {tuple(a.shape)} against {b.dtype} {tuple(b.shape)}"
    if not (a.is_floating_point() or a.is_complex()):
        return "other values"
    error = (a - b).abs().max().item()
    return f"off by up to {error:.1e} of {b.abs().max().item():.1e}"

"""Ops folded into the one before write over its result, and over nothing else."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

import lowtide
from lowtide.reporting.export import policies
from lowtide.step.graph import FOLDED, StepGraph
from tests.exactness.test_exactness import (
    MODES,
    assert_same,
    train,
)

slow = pytest.mark.slow

ACTIVATIONS: dict[str, Callable[[], nn.Module]] = {
    "relu": nn.ReLU,
    "relu6": nn.ReLU6,
    "leaky_relu": nn.LeakyReLU,
    "elu": nn.ELU,
    "gelu": nn.GELU,
    "gelu_tanh": lambda: nn.GELU(approximate="tanh"),
    "silu": nn.SiLU,
    "sigmoid": nn.Sigmoid,
    "tanh": nn.Tanh,
    "hardswish": nn.Hardswish,
    "hardsigmoid": nn.Hardsigmoid,
    "hardtanh": nn.Hardtanh,
    "softplus": nn.Softplus,
    "mish": nn.Mish,
}


class Residual(nn.Module):
    """Convolution, normalisation, activation, and the sum with what came in."""

    def __init__(self, *activations: Callable[[], nn.Module]) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 7, 3, padding=1)
        self.blocks = nn.ModuleList(
            nn.Sequential(nn.Conv2d(7, 7, 3, padding=1), nn.BatchNorm2d(7))
            for _ in activations
        )
        self.activations = nn.ModuleList(make() for make in activations)
        self.drop = nn.Dropout(0.1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.activations[0](self.stem(x))
        for block, activation in zip(self.blocks, self.activations, strict=True):
            x = activation(block(x) * 0.5 + x)
        return self.drop(x).flatten(1)


def folded(step: StepGraph) -> list[str]:
    """The ops that are several in one, each as its parts."""
    return [op.target for op in step.ops if FOLDED in op.target]


LAYOUTS = ["plain", "channels_last", "float64", "bfloat16"]


@pytest.mark.parametrize(
    "layout",
    [
        pytest.param(x, marks=[slow] * (x in ("channels_last", "float64")))
        for x in LAYOUTS
    ],
)
def test_every_activation_is_exact_in_place(layout: str) -> None:
    torch._dynamo.reset()
    torch.manual_seed(3)
    model = Residual(*ACTIVATIONS.values())
    # Odd sizes: what is left over at the end of a vector takes another path.
    batches = [torch.randn(3, 3, 9, 7) for _ in range(3)]
    if layout == "channels_last":
        model = model.to(memory_format=torch.channels_last)
        batches = [b.to(memory_format=torch.channels_last) for b in batches]
    elif layout != "plain":
        model = model.to(getattr(torch, layout))
        batches = [b.to(getattr(torch, layout)) for b in batches]
    plain, planned = copy.deepcopy(model), copy.deepcopy(model)

    def loss(y: torch.Tensor) -> torch.Tensor:
        return y.square().mean()

    step = lowtide.profile(model, batches[0], loss=loss, how="estimate")
    assert len(folded(step)) > len(ACTIVATIONS), folded(step)
    planned._compiled_call_impl = MODES["everything_again"](planned)  # type: ignore[assignment]
    assert_same(train(planned, batches, loss), train(plain, batches, loss))


def step_of(function: Callable[..., Any], *shape: int) -> StepGraph:
    """The step of a function of `x`, with a product before so that `x` has a maker."""
    torch._dynamo.reset()
    torch.manual_seed(0)

    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(shape[-1], shape[-1])

        def forward(self, x: torch.Tensor) -> Any:
            return function(self.layer(x))

    return lowtide.profile(
        Model(), torch.randn(*shape), loss=lambda y: y.sum(), how="estimate"
    )


def test_the_sum_of_two_gradients_is_made_in_place() -> None:
    step = step_of(lambda x: x.cos() + x.sin().relu(), 8, 16)
    assert any(t.endswith("aten.add.Tensor") for t in folded(step)), folded(step)


def test_what_the_backward_reads_is_not_overwritten() -> None:
    # The backward of sin reads its argument.
    step = step_of(torch.sin, 8, 16)
    assert not any("sin" in t for t in folded(step)), folded(step)


def test_what_is_read_twice_is_not_overwritten() -> None:
    step = step_of(lambda x: x.relu() + x.neg(), 8, 16)
    assert not any("addmm.default + aten.relu" in t for t in folded(step))
    assert not any("addmm.default + aten.neg" in t for t in folded(step))


def test_another_type_is_not_written_over() -> None:
    step = step_of(lambda x: (x > 0).double().mean() + x.sum(), 8, 16)
    assert not any("aten.gt" in t for t in folded(step)), folded(step)


def test_another_layout_is_not_written_over() -> None:
    # A sum over a broadcast is larger than what it overwrites would be.
    step = step_of(lambda x: x.sum(0, keepdim=True) + torch.ones(8, 16), 8, 16)
    assert not any("sum" in t and "add" in t for t in folded(step)), folded(step)


def test_what_is_returned_is_not_overwritten() -> None:
    torch._dynamo.reset()

    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(16, 16)

        def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
            before = self.layer(x)
            return before, before.relu()

    torch.manual_seed(0)
    model, batch = Model(), torch.randn(8, 16)
    expected = copy.deepcopy(model)(batch)
    optimized = lowtide.optimize(model, budget="1 GiB")
    found = optimized(batch)
    assert all(torch.equal(f, e) for f, e in zip(found, expected, strict=True))
    assert (found[0] < 0).any()


def test_a_folded_step_takes_less_and_the_ledger_agrees() -> None:
    """Without folding, ReLU and its backward need a third large tensor."""
    torch._dynamo.reset()
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Conv2d(3, 16, 3, padding=1), nn.ReLU(), nn.Conv2d(16, 1, 3, padding=1)
    )
    batch = torch.randn(8, 3, 64, 64)
    step = lowtide.profile(model, batch, loss=lambda y: y.mean(), how="estimate")
    large = 8 * 16 * 64 * 64 * 4
    taken = step.baseline_peak_bytes - step.resident_bytes
    assert 2 * large <= taken < 2.5 * large


def test_a_policy_names_each_folded_op() -> None:
    """torch's selective checkpoint sees the ops of the model, one by one."""
    torch._dynamo.reset()
    torch.manual_seed(0)
    model = Residual(*[nn.ReLU] * 3)
    step = lowtide.profile(
        model, torch.randn(3, 3, 9, 7), loss=lambda y: y.mean(), how="estimate"
    )
    plan = lowtide.plan(step, budget="100%", planner="keep_all")
    rows = policies(step, plan)
    assert not any(FOLDED in row["op"] or FOLDED in row["target"] for row in rows)
    by_target = {
        short: [r["policy"] for r in rows if short in r["target"]]
        for short in ("relu", "batch_norm", "mul", "add")
    }
    # A ReLU's result and a normalisation's statistics are kept, what is between is not.
    assert by_target["relu"] == ["MUST_SAVE"] * 4
    assert by_target["batch_norm"] == ["MUST_SAVE"] * 3
    assert by_target["mul"] == ["MUST_RECOMPUTE"] * 3
    assert set(by_target["add"]) == {"MUST_RECOMPUTE"}


@pytest.mark.parametrize("name", ["_softmax", "_log_softmax"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_softmax_over_its_argument_has_the_same_bits(
    name: str, dtype: torch.dtype
) -> None:
    torch.manual_seed(0)
    forward = getattr(torch.ops.aten, name)
    backward = getattr(torch.ops.aten, f"{name}_backward_data")
    into = backward.out._schema.arguments[-1].name
    for shape in ((3, 5), (7, 1000), (64, 50257), (2, 3, 17, 33)):
        x, gradient = (5 * torch.randn(2, *shape)).to(dtype)
        x.view(-1)[0], x.view(-1)[-1] = -torch.inf, torch.nan
        dim, over = len(shape) - 1, x.clone()
        made = forward(x, dim, False)
        forward.out(over, dim, False, out=over)
        assert torch.equal(over.view(torch.int16), made.view(torch.int16))
        wanted = backward(gradient, made, dim, dtype)
        backward.out(gradient, made, dim, dtype, **{into: gradient})
        assert torch.equal(gradient.view(torch.int16), wanted.view(torch.int16))


def test_a_head_and_its_loss_need_one_copy_of_the_logits() -> None:
    """Eager has three: the logarithms, their gradient and that of the logits."""
    torch._dynamo.reset()
    torch.manual_seed(0)
    head, hidden = nn.Linear(8, 5000, bias=False), torch.randn(64, 8)
    labels = torch.randint(0, 5000, (64,))

    def loss(x: torch.Tensor) -> torch.Tensor:
        return nn.functional.cross_entropy(x, labels)

    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.head = head

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return loss(self.head(x))

    step = lowtide.profile(Model(), hidden, how="estimate")
    logits = 64 * 5000 * 4
    taken = step.baseline_peak_bytes - step.resident_bytes
    assert logits <= taken < 1.5 * logits
    assert 3 * logits <= step.eager_peak_bytes - step.resident_bytes
    assert lowtide.verify(Model(), hidden, budget=step.baseline_peak_bytes).ok


def test_a_softmax_along_columns_is_not_written_over() -> None:
    step = step_of(lambda x: x.softmax(0) * 2, 8, 16)
    assert not any("addmm.default + aten._softmax" in t for t in folded(step))
    step = step_of(lambda x: x.softmax(1) * 2, 8, 16)
    assert any("addmm.default + aten._softmax" in t for t in folded(step))

"""Three optimizer steps with and without lowtide: every number must be the same.

Equality is `torch.equal` on the loss, every gradient, every buffer, every parameter and
the state of the generator, after each step.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

from lowtide import planners
from lowtide.engine.bits import same_bits
from lowtide.engine.call.runtime import PlannedCall
from lowtide.engine.planning.decide import Planning
from lowtide.engine.planning.settings import Settings
from lowtide.engine.training import arguments_of, default_loss
from lowtide.step.graph import StepGraph
from lowtide.step.plan import Plan
from tests.exactness.models import CASES, Case


class BetweenFloorAndBaseline(Planning):
    """Plans each step for a budget at a share of the way from its floor up."""

    share = 0.0

    def plan(self, step: StepGraph, *, limit_bytes: int | None = None) -> Plan:
        del limit_bytes
        lowest = planners.load("auto").plan(step, None, time_limit=1.0)
        floor, baseline = lowest.peak_bytes, step.baseline_peak_bytes
        limit = floor + int(self.share * (baseline - floor))
        return super().plan(step, limit_bytes=limit)


def loose(model: nn.Module) -> PlannedCall:
    """Plenty of room: everything is kept."""
    return PlannedCall(model._call_impl, Settings(budget="1 TiB", cache=False), [model])


def between(share: float) -> Callable[[nn.Module], PlannedCall]:
    """A budget that forces recomputation; at share 0, the lowest there is."""

    def make(model: nn.Module) -> PlannedCall:
        settings = Settings(budget=1, time_limit=1.0, cache=False)
        call = PlannedCall(model._call_impl, settings, [model])
        planning = BetweenFloorAndBaseline("it", settings, [model], call.watch)
        planning.share = share
        call.planning = planning
        return call

    return make


def everything_again(model: nn.Module) -> PlannedCall:
    """Whatever may run twice does."""
    settings = Settings(budget="1 TiB", planner="recompute_all", cache=False)
    return PlannedCall(model._call_impl, settings, [model])


MODES: dict[str, Callable[[nn.Module], PlannedCall]] = {
    "loose": loose,
    "middle": between(0.4),
    "floor": between(0.0),
    "everything_again": everything_again,
}


def train(
    model: nn.Module, batches: list[Any], loss: Any, *, accumulate: bool = False
) -> list[dict[str, Any]]:
    """Three steps of momentum SGD, with all that can be seen after each."""
    torch.manual_seed(7)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    seen: list[dict[str, Any]] = []
    for number, batch in enumerate(batches):
        if not accumulate or number == 0:
            optimizer.zero_grad()
        args, kwargs = arguments_of(batch)
        value = (loss or default_loss)(model(*args, **kwargs))
        value.backward()
        inputs = {
            f"input {i}": a.grad.clone()
            for i, a in enumerate(args)
            if isinstance(a, torch.Tensor) and a.grad is not None
        }
        for a in args:
            if isinstance(a, torch.Tensor):
                a.grad = None
        seen.append(
            {
                "loss": value.detach().clone(),
                **inputs,
                **{
                    f"grad {n}": None if p.grad is None else p.grad.clone()
                    for n, p in model.named_parameters()
                },
                **{f"buffer {n}": b.clone() for n, b in model.named_buffers()},
                "generator": torch.get_rng_state(),
            }
        )
        optimizer.step()
        seen[-1].update({n: p.detach().clone() for n, p in model.named_parameters()})
    return seen


def assert_same(actual: list[dict[str, Any]], expected: list[dict[str, Any]]) -> None:
    """Every value of every step is equal, bit for bit."""
    assert len(actual) == len(expected) == 3
    for number, (a, e) in enumerate(zip(actual, expected, strict=True)):
        assert a.keys() == e.keys()
        for name, value in e.items():
            if value is None:
                assert a[name] is None, f"step {number}: {name}"
            else:
                assert same_bits(a[name], value), f"step {number}: {name}"


# Their backward reads only what they return, or what may not be made again.
NOTHING_TO_REPEAT = (
    "embeddings",
    "several_outputs",
    "outputs_of_which_one_is_used",
    "mutated_buffers",
)


def build(case: Case) -> tuple[nn.Module, list[Any], Any]:
    """The case, the same each time."""
    torch.manual_seed(3)
    return case.build()


# Like others here, and larger.
LARGE = (
    "t5 bert llama llama_with_grouped_heads vit inception_branches dense_concatenation "
    "attention_with_dropout"
).split()


# The floor runs everywhere, on large networks and for all else with `make test-slow`.
@pytest.mark.parametrize(
    ("case", "mode"),
    [
        pytest.param(
            case,
            mode,
            marks=[pytest.mark.slow] * (mode != "floor" or case.name in LARGE),
            id=f"{case.name}-{mode}",
        )
        for case in CASES
        for mode in MODES
    ],
)
def test_training_is_bitwise_the_same(case: Case, mode: str) -> None:
    torch._dynamo.reset()
    model, batches, loss = build(case)
    expected = train(copy.deepcopy(model), batches, loss)
    call = MODES[mode](model)
    model._compiled_call_impl = call  # type: ignore[assignment]
    actual = train(model, batches, loss)
    assert_same(actual, expected)
    assert call.watch.forwards >= 3
    assert call.watch.backwards == call.watch.forwards
    if mode == "everything_again" and case.name not in NOTHING_TO_REPEAT:
        assert any(plan.recomputed for plan in call.plans)


@pytest.mark.parametrize(
    "name",
    [
        "dropout_everywhere",
        pytest.param("resnet", marks=pytest.mark.slow),
        pytest.param("gpt2", marks=pytest.mark.slow),
    ],
)
def test_accumulated_gradients_are_the_same(name: str) -> None:
    torch._dynamo.reset()
    (case,) = [c for c in CASES if c.name == name]
    model, batches, loss = build(case)
    expected = train(copy.deepcopy(model), batches, loss, accumulate=True)
    call = MODES["middle"](model)
    model._compiled_call_impl = call  # type: ignore[assignment]
    actual = train(model, batches, loss, accumulate=True)
    assert_same(actual, expected)
    # Gradients that are there already are planned for.
    assert len(call.plans) == 2
    assert call.steps[1].resident_bytes > call.steps[0].resident_bytes

"""Every planner's plan runs on real models, and trains to the same bits."""

from __future__ import annotations

import copy
from functools import cache
from typing import Any

import pytest
import torch

import lowtide
from lowtide import StepGraph, planners
from lowtide.engine.training import arguments_of, default_loss
from tests.exactness.models import CASES

NAMES = ("gpt2", "unet_skips", "resnet")


@cache
def captured(name: str) -> tuple[Any, Any, Any, StepGraph]:
    """A model, a batch, its loss, and the step, captured once for all planners."""
    torch._dynamo.reset()
    torch.manual_seed(3)
    (case,) = [c for c in CASES if c.name == name]
    model, batches, loss = case.build()
    step = lowtide.profile(model, batches[0], loss=loss, how="estimate", name=name)
    return model, batches[0], loss, step


def train(model: Any, batch: Any, loss: Any) -> dict[str, torch.Tensor]:
    """One step, and everything that it leaves behind."""
    torch.manual_seed(5)
    args, kwargs = arguments_of(batch)
    value = (loss or default_loss)(model(*args, **kwargs))
    value.backward()
    return {
        "loss": value.detach(),
        "generator": torch.get_rng_state(),
        **{n: p.grad for n, p in model.named_parameters() if p.grad is not None},
        **{f"buffer {n}": b for n, b in model.named_buffers()},
    }


# Each planner on one model everywhere, on all of them with `make test-slow`.
@pytest.mark.parametrize("planner", planners.available())
@pytest.mark.parametrize(
    "name",
    [pytest.param(n, marks=[pytest.mark.slow] * (n != NAMES[-1])) for n in NAMES],
)
def test_a_plan_runs_to_the_same_bits(name: str, planner: str) -> None:
    original, batch, loss, step = captured(name)
    plain, model = copy.deepcopy(original), copy.deepcopy(original)
    # Its lowest peak is where a planner recomputes the most.
    plan = planners.load(planner).plan(step, None, time_limit=2.0)
    lowtide.apply(model, plan)
    expected, actual = train(plain, batch, loss), train(model, batch, loss)
    assert actual.keys() == expected.keys()
    for key, value in expected.items():
        assert torch.equal(actual[key], value), key
    assert lowtide.planned(model).watch.backwards == 1
    if (name, planner) != ("resnet", "auto"):  # which gets there by order alone
        assert bool(plan.recomputed) == (planner != "keep_all")

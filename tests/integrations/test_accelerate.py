"""accelerate in a loop of one's own, and its list of backends."""

from __future__ import annotations

import torch
from accelerate import Accelerator
from accelerate.state import AcceleratorState
from accelerate.utils import DynamoBackend, TorchDynamoPlugin
from torch import nn

import lowtide
from lowtide.integrations import register
from lowtide.integrations.roots import plan_what_is_trained
from tests.integrations.comparing import (
    LOWTIDE_WARNINGS_ONLY,
    Trained,
    assert_same_with_less,
)
from tests.integrations.networks import WIDTH, network

pytestmark = LOWTIDE_WARNINGS_ONLY


def loop(plugin: TorchDynamoPlugin | None = None) -> Trained:
    AcceleratorState._reset_state(reset_partial_state=True)
    accelerator = Accelerator(cpu=True, dynamo_plugin=plugin)
    own = network()
    made = torch.optim.AdamW(own.parameters(), lr=1e-3)
    model, optimizer = accelerator.prepare(own, made)
    losses = []
    for _ in range(4):
        x = torch.randn(1024, WIDTH)
        loss = (model(x) - x).square().mean()
        accelerator.backward(loss)
        accelerator.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    return Trained(own, losses)


def test_the_backend_takes_its_budget_as_an_option():
    register()
    assert DynamoBackend("LOWTIDE") in list(DynamoBackend)
    assert DynamoBackend("INDUCTOR") is DynamoBackend.INDUCTOR

    def run(budget):
        options = {"budget": budget}
        plugin = TorchDynamoPlugin(backend="lowtide", options=options)
        return loop(plugin if budget else None)

    assert_same_with_less(run)


def test_registering_twice_adds_one_backend():
    register()
    register()
    assert [b.value for b in DynamoBackend].count("LOWTIDE") == 1


def test_what_an_optimizer_has_is_planned_without_an_edit():
    def run(budget):
        if budget:
            plan_what_is_trained(budget=budget)
        return loop()

    planned = assert_same_with_less(run)
    assert len(lowtide.planned(planned.model).plans) == 1


def test_only_what_is_trained_is_planned():
    plan_what_is_trained(budget="65%")
    teacher, student = network(), network()
    optimizer = torch.optim.SGD(student.parameters(), lr=0.1)
    x = torch.randn(64, WIDTH)
    loss = nn.MSELoss()(student.eval()(x), teacher(x).detach())
    loss.backward()
    optimizer.step()
    assert lowtide.planned(teacher) is None
    assert lowtide.planned(student) is None  # it was called in evaluation mode

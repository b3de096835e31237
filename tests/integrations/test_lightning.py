"""Lightning's Trainer and Fabric."""

from __future__ import annotations

import copy
import os
import pickle

import lightning
import pytest
import torch
from torch.utils.data import DataLoader, TensorDataset

import lowtide
from lowtide.errors import LowtideWarning, NoTrainingGraphError
from lowtide.integrations.lightning import LowtideCallback
from lowtide.integrations.roots import plan_what_is_trained
from tests.integrations.comparing import (
    LOWTIDE_WARNINGS_ONLY,
    Trained,
    assert_same_with_less,
)
from tests.integrations.networks import WIDTH, network

pytestmark = LOWTIDE_WARNINGS_ONLY


class Net(lightning.LightningModule):
    """Logs in its step, as most do."""

    def __init__(self) -> None:
        super().__init__()
        self.net = network()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.net(x)

    def training_step(self, batch, batch_idx):
        loss = (self(batch[0]) - batch[0]).square().mean()
        self.log("loss", loss, on_step=True, on_epoch=True)
        self.log_dict({"twice": 2 * loss, "three": 3.0})
        return loss

    def validation_step(self, batch, batch_idx):
        self.log("error", (self(batch[0]) - batch[0]).abs().mean())

    def configure_optimizers(self):
        return torch.optim.AdamW(self.parameters(), lr=1e-3)


def batches() -> DataLoader:
    return DataLoader(TensorDataset(torch.randn(2048, WIDTH)), batch_size=1024)


class Losses(lightning.Callback):
    def __init__(self) -> None:
        self.seen: list[float] = []

    def on_train_batch_end(self, trainer, pl_module, outputs, batch, batch_idx):
        self.seen.append(outputs["loss"].item())


def fit(model, *callbacks, **options) -> tuple[Trained, dict[str, float]]:
    losses = Losses()
    trainer = lightning.Trainer(
        accelerator="cpu",
        max_epochs=2,
        log_every_n_steps=1,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        callbacks=[losses, *callbacks],
        **options,
    )
    trainer.fit(model, batches(), batches())
    return Trained(model, losses.seen), {
        name: float(value) for name, value in trainer.callback_metrics.items()
    }


@pytest.mark.parametrize("way", ["callback", "environment", "optimize"])
def test_training_step_is_planned_and_logs_as_ever(way, monkeypatch):
    logged = []

    def run(budget):
        model, callbacks = Net(), []
        if budget and way == "callback":
            callbacks = [LowtideCallback(budget=budget)]
        elif budget and way == "environment":
            monkeypatch.setenv("LOWTIDE_BUDGET", budget)
        elif budget:
            lowtide.optimize(model, budget=budget)
        trained, metrics = fit(model, *callbacks)
        logged.append(metrics)
        return trained

    planned = assert_same_with_less(run)
    assert logged[0] == logged[1]
    assert set(logged[0]) >= {"loss_step", "loss_epoch", "twice", "three", "error"}
    # Lightning clears gradients after the forward: the first step has none before it.
    plans = lowtide.planned(planned.model).plans
    assert [bool(plan.recomputed) for plan in plans] == [True, True]


def test_without_a_budget_lightning_is_left_alone():
    assert "LOWTIDE_BUDGET" not in os.environ
    model = Net()
    fit(model)
    assert lowtide.planned(model) is None


def test_a_copy_of_the_model_is_not_planned():
    model = lowtide.optimize(Net(), budget="65%")
    for twin in (copy.deepcopy(model), pickle.loads(pickle.dumps(model))):
        assert lowtide.planned(twin) is None
        assert twin.training_step.__self__ is twin
    assert lowtide.planned(lowtide.restore(model)) is None
    assert model.training_step.__self__ is model


def test_optimizing_again_plans_the_same_method():
    model = lowtide.optimize(lowtide.optimize(Net(), budget="65%"), budget="70%")
    assert lowtide.planned(model).__wrapped__ == Net.training_step.__get__(model)


class Manual(Net):
    def __init__(self) -> None:
        super().__init__()
        self.automatic_optimization = False

    def training_step(self, batch, batch_idx):
        loss = self.net(batch[0]).square().mean()
        self.optimizers().zero_grad()
        self.manual_backward(loss)
        self.optimizers().step()
        return {"loss": loss.detach()}


def test_a_backward_inside_the_step_is_refused():
    with pytest.raises(NoTrainingGraphError, match="automatic_optimization"):
        lowtide.optimize(Manual(), budget="65%")


def test_what_such_a_step_calls_is_planned_all_the_same(monkeypatch):
    monkeypatch.setenv("LOWTIDE_BUDGET", "100%")
    plan_what_is_trained()
    model = Manual()
    with pytest.warns(LowtideWarning, match="automatic_optimization"):
        fit(model)
    assert lowtide.planned(model) is None
    assert lowtide.planned(model.net).plans


def test_a_step_that_goes_around_training_step_is_told():
    model = lowtide.optimize(Net(), budget="65%")
    with pytest.raises(NoTrainingGraphError, match="training_step was never called"):
        model(torch.randn(4, WIDTH)).sum().backward()


@pytest.mark.parametrize("through", ["call", "training_step"])
def test_fabric(through, monkeypatch):
    class Plain(Net):
        def training_step(self, batch, batch_idx):
            return (self(batch[0]) - batch[0]).square().mean()

    def run(budget):
        if budget:
            monkeypatch.setenv("LOWTIDE_BUDGET", budget)
        fabric = lightning.Fabric(accelerator="cpu")
        own = Plain().net if through == "call" else Plain()
        made = torch.optim.AdamW(own.parameters(), lr=1e-3)
        model, optimizer = fabric.setup(own, made)
        losses = []
        for _ in range(4):
            x = torch.randn(1024, WIDTH)
            if through == "call":
                loss = (model(x) - x).square().mean()
            else:
                loss = model.training_step((x,), 0)
            fabric.backward(loss)
            optimizer.step()
            optimizer.zero_grad()
            losses.append(loss.item())
        return Trained(own, losses)

    planned = assert_same_with_less(run, share=0.95)
    assert lowtide.planned(planned.model).plans

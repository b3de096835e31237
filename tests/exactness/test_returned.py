"""What a model returns beside its loss: held as long as the caller holds it."""

from __future__ import annotations

import copy
import logging
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import lowtide
from lowtide.engine.bits import same_bits

WORDS, WIDTH = 2048, 16


class LossAndLogits(nn.Module):
    """A language model as Hugging Face writes them."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(WORDS, WIDTH)
        self.inner = nn.Sequential(
            *(
                nn.Sequential(
                    nn.Linear(WIDTH, 32 * WIDTH),
                    nn.GELU(),
                    nn.Linear(32 * WIDTH, WIDTH),
                )
                for _ in range(4)
            )
        )
        self.head = nn.Linear(WIDTH, WORDS, bias=False)

    def forward(self, tokens: torch.Tensor, targets: torch.Tensor) -> dict[str, Any]:
        logits = self.head(self.inner(self.embed(tokens)))
        loss = F.cross_entropy(logits.flatten(0, 1), targets.flatten())
        return {"loss": loss, "logits": logits}


def batch() -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    tokens, targets = torch.randint(0, WORDS, (2, 8, 32), generator=generator)
    return tokens, targets


def train(model: nn.Module, *holds: bool) -> None:
    """Steps in whose backward the caller holds the logits, or does not."""
    for hold in holds:
        model.zero_grad()
        output = model(*batch())
        loss = output["loss"]
        if not hold:
            del output
        loss.backward()


def num_outputs(model: nn.Module) -> int:
    """How many storages the last plan takes to be there at the end."""
    return len(lowtide.planned(model).steps[-1].outputs)


@pytest.fixture
def models() -> tuple[nn.Module, nn.Module]:
    torch.manual_seed(0)
    plain = LossAndLogits()
    step = lowtide.profile(plain, batch())
    budget = (step.floor_bytes + step.baseline_peak_bytes) // 2
    return plain, lowtide.optimize(copy.deepcopy(plain), budget=budget)


def test_a_view_of_the_gradient_of_returned_logits_takes_no_memory() -> None:
    # Without the gradient of the logits, the sum that a view was of is no more.
    step = lowtide.profile(LossAndLogits(), batch(), how="estimate")
    assert not [op.name for op in step.ops if op.target.startswith("aten.view")]


def test_logits_that_are_let_go_need_not_live(models: Any, caplog: Any) -> None:
    plain, model = models
    train(model, False)
    before = num_outputs(model)
    with caplog.at_level(logging.INFO, "lowtide"):
        train(model, False, False, False)
    train(plain, False)
    assert sum("let go" in r.message for r in caplog.records) == 1
    assert num_outputs(model) == before - 1
    for ours, eager in zip(model.parameters(), plain.parameters(), strict=True):
        assert same_bits(ours.grad, eager.grad)


def test_logits_that_are_held_stay_in_the_plan(models: Any, caplog: Any) -> None:
    _, model = models
    with caplog.at_level(logging.INFO, "lowtide"):
        train(model, True, True, True)
    assert not any("let go" in r.message for r in caplog.records)


def test_a_caller_who_changes_his_mind_is_believed_once(
    models: Any, caplog: Any
) -> None:
    plain, model = models
    train(model, False)
    before = num_outputs(model)
    with caplog.at_level(logging.INFO, "lowtide"):
        train(model, False, True, False, True, False, False)
    train(plain, True)
    assert sum("let go" in r.message for r in caplog.records) == 2
    assert num_outputs(model) == before
    for ours, eager in zip(model.parameters(), plain.parameters(), strict=True):
        assert same_bits(ours.grad, eager.grad)


def test_an_output_may_be_changed_in_place_as_eagers_may():
    class Residual(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = nn.Linear(8, 8)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x + self.linear(x)

    torch.manual_seed(0)
    plain, x = Residual(), torch.randn(2, 3, 8)
    planned = lowtide.optimize(copy.deepcopy(plain), budget="1 GiB", planner="keep_all")
    for model in (plain, planned):
        output = model(x)
        output += 1
        output.square().sum().backward()
    for p, q in zip(plain.parameters(), planned.parameters(), strict=True):
        assert same_bits(p.grad, q.grad)

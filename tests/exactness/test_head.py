"""The head of a language model and its loss in parts: no tensor of all logits."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import lowtide
from lowtide.engine.bits import same_bits
from lowtide.engine.forms.embedding import add_gradient
from lowtide.engine.forms.head import (
    Head,
    Layout,
    Loss,
    Parts,
    Read,
    head_gradients,
    head_loss,
)
from lowtide.engine.planning import prepare
from lowtide.step.forms import forms

aten = torch.ops.aten
WORDS, WIDTH, TOKENS = 4999, 24, 640


class Words(nn.Module):
    """A language model of two layers, with its loss."""

    def __init__(self, *, bias: bool = False, tied: bool = False, cast: bool = False):
        super().__init__()
        self.embed = nn.Embedding(WORDS, WIDTH)
        self.inner = nn.Linear(WIDTH, WIDTH)
        self.head = nn.Linear(WIDTH, WORDS, bias=bias)
        if tied:
            self.head.weight = self.embed.weight
        self.cast = cast

    def forward(self, tokens: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        logits = self.head(torch.tanh(self.inner(self.embed(tokens))))
        if self.cast:
            logits = logits.float()
        return F.cross_entropy(logits.view(-1, WORDS), targets.flatten())


def batch() -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    shape = (2, 5, TOKENS // 5)
    tokens, targets = torch.randint(0, WORDS, shape, generator=generator)
    targets[0, :3] = -100
    return tokens, targets


@pytest.mark.parametrize(
    ("how", "dtype"),
    [
        ({"tied": True}, torch.float32),
        ({"bias": True}, torch.float32),
        ({"cast": True}, torch.bfloat16),
    ],
    ids=["tied", "bias", "cast"],
)
def test_the_floor_holds_no_tensor_of_logits(how: dict[str, Any], dtype: Any) -> None:
    torch.manual_seed(0)
    model = Words(**how).to(dtype)
    step = lowtide.profile(model, batch())
    # Of loss and gradients; without a bias also of both at once.
    assert len(forms(step)) == (2 if "bias" in how else 4)
    logits_bytes = TOKENS * WORDS * dtype.itemsize
    floor = step.floor_bytes
    assert floor - step.resident_bytes < logits_bytes
    plan = lowtide.plan(step, budget=floor, time_limit=1)
    assert max(step.sizes[s] for i in plan.ops for s in step.ops[i].writes) < (
        logits_bytes
    )
    result = lowtide.verify(model, batch(), budget=floor)
    assert result.ok, result.differences
    assert result.measured_peak_bytes <= result.predicted_peak_bytes


def test_a_tied_gradient_is_there_once() -> None:
    torch.manual_seed(0)
    step = lowtide.profile(Words(tied=True), batch(), how="estimate")
    (over,) = [op for op in step.ops if op.over >= 0 and "embedding" in op.target]
    assert step.storages[over.over].nbytes == WORDS * WIDTH * 4


def test_where_bits_differ_the_head_stays_whole(monkeypatch: Any) -> None:
    monkeypatch.setattr(prepare, "exact_parts", lambda head: None)
    torch.manual_seed(0)
    model = Words()
    step = lowtide.profile(model, batch())
    assert not forms(step)
    assert step.floor_bytes - step.resident_bytes > TOKENS * WORDS * 4
    assert lowtide.verify(model, batch(), budget=step.floor_bytes).ok


def test_training_in_parts_is_training(tmp_path: Any) -> None:
    torch.manual_seed(0)
    plain = Words(tied=True)
    planned = copy.deepcopy(plain)
    budget = lowtide.profile(plain, batch()).floor_bytes * 11 // 10
    lowtide.optimize(planned, budget=budget, optimizer=None)
    for model in (plain, planned):
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for _ in range(3):
            model(*batch()).backward()
            optimizer.step()
            optimizer.zero_grad()
    call: Any = lowtide.planned(planned)
    plan, step = call.plans[-1], call.steps[-1]
    assert {step.ops[i].target for i in plan.ops} > {"lowtide::head_loss"}
    for ours, eager in zip(planned.parameters(), plain.parameters(), strict=True):
        assert same_bits(ours, eager)


def test_gradients_are_made_with_the_loss_and_wait_for_theirs() -> None:
    """Whatever arrives: the same twice, another one, and both of a kept graph."""
    torch.manual_seed(0)
    plain = Words(tied=True)
    planned = copy.deepcopy(plain)
    step = lowtide.profile(plain, batch())
    (ahead,) = [op for op in step.ops if op.target == "lowtide::head_ahead"]
    passing = ahead.scratch_bytes + 2 * WORDS * WIDTH * 4 + TOKENS * WORDS
    lowtide.optimize(planned, budget=step.resident_bytes + passing)
    seen: list[list[torch.Tensor]] = []
    for model in (plain, planned):
        for factors in ([1.0], [1.0], [0.3], [0.3], [3.0, 1.0], [0.7, 0.7]):
            model.zero_grad()
            loss = model(*batch())
            for factor in factors:
                loss.backward(torch.tensor(factor), retain_graph=len(factors) > 1)
            del loss
            seen.append([p.grad.clone() for p in model.parameters()])  # type: ignore
    for ours, eager in zip(seen[6:], seen[:6], strict=True):
        assert all(map(same_bits, ours, eager))
    call: Any = lowtide.planned(planned)
    ran = {call.steps[-1].ops[i].target for i in call.plans[-1].ops}
    assert ran > {"lowtide::head_ahead", "lowtide::head_arrived"}


@pytest.mark.parametrize("is_transposed", [False, True])
@pytest.mark.parametrize("reduction", [0, 1, 2])
def test_parts_give_the_bits_of_the_whole(reduction: int, is_transposed: bool) -> None:
    # Whole numbers, so that no order of adding changes the products.
    torch.manual_seed(0)
    hidden = torch.randint(-3, 4, (70, 8)).float()
    matrix = torch.randint(-3, 4, (300, 8)).float().t()
    target = torch.randint(0, 300, (70,))
    target[5] = 0  # which is not to count
    logs = (hidden @ matrix).log_softmax(1)
    whole = aten.nll_loss_forward(logs, target, None, reduction, 0)
    loss, parts = Loss(reduction, 0, torch.float32), Parts(32, 64)
    read = Read(hidden, matrix, None, target)
    found = head_loss(read, loss, parts)
    assert all(map(same_bits, found, whole))
    sent = torch.rand_like(whole[0])
    dense = aten.nll_loss_backward(sent, logs, target, None, reduction, 0, whole[1])
    of_logits = aten._log_softmax_backward_data(dense, logs, 1, torch.float32)
    of_matrix = of_logits.t() @ hidden
    given = (sent, read, whole[1], loss, is_transposed)
    made = head_gradients(*given, Parts(70, 300))
    assert same_bits(made[0], of_logits @ matrix.t())
    assert same_bits(made[1].t() if is_transposed else made[1], of_matrix)


def test_what_is_needed_is_known_beforehand() -> None:
    layout = Layout((1024, 768), (768, 1), torch.float32)
    head = Head(
        layout,
        Layout((768, 50257), (1, 768), torch.float32),
        None,
        Loss(1, -100, torch.float32),
    )
    # 256 rows of logits, and little beside.
    least = 256 * 50257 * 4
    parts = Parts(256, 2048, 384)
    assert least < head.scratch_bytes("head_loss", parts) < 1.25 * least
    # 384 where the gradients are made as well.
    assert 1.5 * least < head.scratch_bytes("head_ahead", parts) < 1.75 * least
    # 2048 words, and as many rows of the gradient.
    least = (1024 + 768) * 2048 * 4
    assert least < head.scratch_bytes("head_gradients", parts) < 1.4 * least


@pytest.mark.parametrize("padding", [-1, 0, 700])
def test_an_embedding_is_added_as_if_it_were_whole(padding: int) -> None:
    torch.manual_seed(0)
    words, width = 3000, 300
    places = torch.randint(0, words, (4, 50))
    places[0, :9] = 700
    sent, total = torch.randn(4, 50, width), torch.randn(words, width)
    given = (sent, places, words, padding, False)
    whole = total + aten.embedding_dense_backward(*given)
    assert same_bits(add_gradient(total.clone(), *given), whole)

"""What people do to a model around, before and between its planned steps."""

from __future__ import annotations

import copy
from dataclasses import dataclass

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import lowtide
from lowtide.errors import NoTrainingGraphError
from tests.exactness.models import assert_same_bits

EASY = {"budget": "1 GiB", "planner": "recompute_all"}


@pytest.fixture(autouse=True)
def _seeded():
    torch._dynamo.reset()
    torch.manual_seed(0)


def agree(model, run, *, steps=2, **options):
    """Train a copy plainly and the model planned; both must end with the same bits."""
    plain = copy.deepcopy(model)
    lowtide.optimize(model, **(options or EASY))
    for _ in range(steps):
        states = []
        for each in (plain, model):
            torch.manual_seed(1)
            run(each)
            states.append(torch.get_rng_state())
        assert torch.equal(*states)
        assert_same_bits(model, plain)
    return lowtide.planned(model)


class Gated(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(16, 16)

    def forward(self, a, b):
        return (torch.tanh(self.linear(a)) * b).sum()


def test_inputs_that_share_their_storage():
    a, b = torch.randn(8, 16).chunk(2)
    agree(Gated(), lambda m: m(a, b).backward())


def test_inputs_of_other_shapes_that_share_their_storage():
    tokens = torch.randn(4, 17)
    agree(Gated(), lambda m: m(tokens[:, :-1], tokens[:, 1:]).backward())


def test_parameters_that_share_their_storage():
    model = nn.Sequential(nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 8))
    flat = nn.utils.parameters_to_vector(model.parameters()).detach()
    nn.utils.vector_to_parameters(flat, model.parameters())
    x = torch.randn(4, 8)
    plain = copy.deepcopy(model)
    lowtide.optimize(model, **EASY)
    for each in (plain, model):
        each(x).square().sum().backward()
    for p, q in zip(model.parameters(), plain.parameters(), strict=True):
        assert torch.equal(p.grad, q.grad)


class LossAndLogits(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear, self.norm = nn.Linear(8, 8), nn.BatchNorm1d(8)

    def forward(self, x):
        y = self.norm(self.linear(x))
        return {"loss": y.square().mean(), "logits": y}


def test_a_loss_beside_logits_with_buffers_that_change():
    x = torch.randn(4, 8)
    agree(LossAndLogits(), lambda m: m(x)["loss"].backward())


class ChangedProbability(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(8, 8)
        self.register_buffer("p", torch.full((1,), 0.5))

    def forward(self, x):
        mask = torch.bernoulli(self.p.expand_as(x))
        y = torch.tanh(self.linear(x)) * mask
        self.p.mul_(0.9)
        return y.sin().sum()


def test_a_draw_from_what_changes_afterwards():
    x = torch.randn(4, 8)
    agree(ChangedProbability(), lambda m: m(x).backward())


class Reconstruction(nn.Module):
    """An output that no loss is computed from, beside a number."""

    def __init__(self):
        super().__init__()
        self.encode, self.decode, self.out = (nn.Linear(8, 8) for _ in range(3))

    def forward(self, x):
        h = torch.tanh(self.encode(x))
        y = self.out(F.dropout(torch.tanh(self.decode(h)), 0.3))
        return y, h.square().mean()


def test_a_number_beside_an_output_that_is_differentiated_too():
    x = torch.randn(4, 8)

    def run(model):
        y, penalty = model(x)
        (y.square().mean() + penalty).backward()

    agree(Reconstruction(), run)


class Hidden(nn.Module):
    def __init__(self):
        super().__init__()
        self.body, self.head = nn.Linear(8, 8), nn.Linear(8, 4)

    def forward(self, x):
        hidden = torch.tanh(self.body(x))
        return torch.tanh(self.head(hidden)), hidden


def test_after_the_first_step_the_outputs_that_count_are_known():
    x = torch.randn(4, 8)
    call = agree(Hidden(), lambda m: m(x)[0].square().sum().backward(), steps=3)
    assert call.watch.surprises == 1


def test_a_frozen_teacher_does_not_hide_the_student():
    teacher = nn.Linear(8, 8).eval().requires_grad_(False)
    student = nn.Sequential(nn.Linear(8, 8), nn.Tanh())

    def loss(x):
        return (student(x) - teacher(x)).square().mean()

    planned = lowtide.optimize(loss, **EASY)
    planned(torch.randn(4, 8)).backward()
    assert planned.plans


class Lazy(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(8, 8)
        self.table = None
        self.register_buffer("mean", None)

    def forward(self, x):
        if self.table is None:
            self.table = torch.arange(8).float().cos()
            self.mean = torch.zeros(8)
        return (self.linear(x) * self.table + self.mean).sum()


def test_a_profile_leaves_nothing_in_the_model():
    model = Lazy()
    lowtide.profile(model, torch.randn(4, 8), how="estimate")
    assert model.table is None
    assert model.mean is None
    model(torch.randn(4, 8)).item()


def model_and_loss():
    model = nn.Sequential(nn.Linear(8, 8), nn.BatchNorm1d(8), nn.Linear(8, 1))
    return model, lambda x: model(x).square().mean()


def test_an_optimized_function_is_verified_with_its_gradients():
    _, loss = model_and_loss()
    found = lowtide.verify(lowtide.optimize(loss, **EASY), torch.randn(4, 8))
    assert found.ok
    assert found.num_gradients == 6


def test_measuring_a_function_leaves_its_model_as_it_was():
    model, loss = model_and_loss()
    planned = lowtide.optimize(loss, **EASY)
    planned(torch.randn(4, 8)).backward()
    before = copy.deepcopy(model.state_dict())
    gradients = [p.grad.clone() for p in model.parameters()]
    lowtide.measure(planned, torch.randn(4, 8), steps=1)
    assert all(torch.equal(v, before[k]) for k, v in model.state_dict().items())
    for p, g in zip(model.parameters(), gradients, strict=True):
        assert torch.equal(p.grad, g)


@pytest.mark.slow
def test_measuring_leaves_the_gradients_alone():
    model = nn.Linear(8, 8)
    x = torch.randn(4, 8)
    model(x).sum().backward()
    before = model.weight.grad.clone()
    lowtide.measure(model, x, steps=1)
    assert torch.equal(model.weight.grad, before)


def test_verifying_does_not_use_up_the_inputs_graph():
    stem, body = nn.Linear(8, 8), nn.Sequential(nn.Linear(8, 8), nn.Tanh())
    lowtide.optimize(body, verify=True, **EASY)
    body(stem(torch.randn(4, 8))).sum().backward()
    assert stem.weight.grad is not None


def test_verifying_adds_nothing_to_the_gradient_of_an_input():
    body = nn.Sequential(nn.Linear(8, 8), nn.Tanh())
    x = torch.randn(4, 8, requires_grad=True)
    body(x).sum().backward()
    expected = x.grad.clone()
    x.grad = None
    lowtide.optimize(body, verify=True, **EASY)
    body(x).sum().backward()
    assert torch.equal(x.grad, expected)


@pytest.mark.parametrize("then", ["verify", "again", "restore"])
def test_what_is_done_before_the_first_call_is_no_bypass(then):
    model, x = nn.Sequential(nn.Linear(8, 8), nn.Tanh()), torch.randn(4, 8)
    lowtide.optimize(model, **EASY)
    if then == "verify":
        assert lowtide.verify(model, x).ok
    elif then == "again":
        lowtide.optimize(model, **EASY)
    else:
        lowtide.restore(model)
    model(x).sum().backward()


class Talkative(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Linear(8, 8), nn.Linear(8, 8)
        self.norm = nn.BatchNorm1d(8)

    def forward(self, x, log=False):
        y = self.norm(torch.tanh(self.first(x)))
        if log:
            print(float(y.detach().mean()))
        return torch.tanh(self.second(y)).sum()


def test_a_graph_break_that_comes_later(capsys):
    x = torch.randn(4, 8)
    logs = iter([False, False, True, True, False, False])
    agree(Talkative(), lambda m: m(x, next(logs)).backward(), steps=3)
    assert capsys.readouterr().out


def test_layers_that_thaw_later():
    x = torch.randn(4, 8)
    model = Talkative()
    model.first.requires_grad_(False)
    plain = copy.deepcopy(model)
    lowtide.optimize(model, **EASY)
    for frozen in (True, False):
        for each in (plain, model):
            each.first.requires_grad_(not frozen)
            each.zero_grad()
            each(x, True).backward()
        for p, q in zip(model.parameters(), plain.parameters(), strict=True):
            assert (p.grad is None) == (q.grad is None)
            assert p.grad is None or torch.equal(p.grad, q.grad)


@dataclass
class Output:
    scores: torch.Tensor


class Dataclassed(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Linear(8, 8), nn.Linear(8, 8)

    def forward(self, x):
        y = torch.tanh(self.first(x))
        torch._dynamo.graph_break()
        return Output(torch.tanh(self.second(y)))


def test_outputs_of_a_kind_nobody_registered():
    x = torch.randn(4, 8)
    agree(Dataclassed(), lambda m: m(x).scores.sum().backward())


class Looped(nn.Module):
    """One compiled block that runs four times."""

    class Block(nn.Module):
        def __init__(self):
            super().__init__()
            self.linear = nn.Linear(64, 64)

        def forward(self, x):
            return x + torch.tanh(torch.tanh(self.linear(x)) * 2)

    def __init__(self):
        super().__init__()
        self.blocks = nn.ModuleList(Looped.Block() for _ in range(4))

    def forward(self, x):
        for block in self.blocks:
            x = block(x)
            torch._dynamo.graph_break()
        return x.sum()


@pytest.mark.slow
def test_a_block_that_runs_several_times_is_counted_each_time():
    x = torch.randn(4096, 64)
    model = Looped()
    peak = lowtide.measure(model, x, steps=1).peak_bytes
    budget = int(0.7 * peak)
    agree(model, lambda m: m(x).backward(), budget=budget)
    model.zero_grad()
    assert lowtide.measure(model, x, steps=1).peak_bytes <= budget


@pytest.mark.slow
def test_equal_layers_with_breaks_between_them():
    class Three(nn.Module):
        def __init__(self):
            super().__init__()
            self.a, self.b, self.c = (Looped.Block() for _ in range(3))

        def forward(self, x):
            x = self.a(x)
            torch._dynamo.graph_break()
            x = self.b(x)
            torch._dynamo.graph_break()
            return self.c(x).sum()

    x = torch.randn(4096, 64)
    agree(Three(), lambda m: m(x).backward(), budget="90%")


def test_the_state_of_every_optimizer_counts():
    model = nn.Linear(64, 64)
    for kind in (torch.optim.RMSprop, torch.optim.Adadelta, torch.optim.Adam):
        lowtide.restore(model)
        optimizer = kind(model.parameters())
        lowtide.optimize(model, optimizer=optimizer, **EASY)
        model(torch.randn(4, 64)).sum().backward()
        optimizer.step()
        made = sum(
            v.untyped_storage().nbytes()
            for entries in optimizer.state.values()
            for v in entries.values()
            if v.numel() > 1
        )
        step = lowtide.planned(model).steps[-1]
        counted = sum(s.nbytes for s in step.storages if s.kind == "optimizer_state")
        assert made <= counted <= made + 64, kind
        optimizer.zero_grad()


def test_a_model_that_does_not_train_is_not_verified():
    model = nn.Sequential(nn.Linear(8, 8), nn.Dropout(0.5)).eval()
    with pytest.raises(NoTrainingGraphError):
        lowtide.verify(model, torch.randn(4, 8), budget="1 GiB")


def test_two_modules_of_a_function_are_both_compared():
    one, two = nn.Sequential(nn.Linear(8, 8)), nn.Sequential(nn.Linear(8, 8))

    def loss(x):
        return two(torch.tanh(one(x))).sum()

    found = lowtide.verify(loss, torch.randn(4, 8), budget="1 GiB")
    assert found.num_gradients == 4


def test_what_the_model_already_has_is_verified():
    model, x = nn.Sequential(nn.Linear(8, 8), nn.Tanh()), torch.randn(4, 8)
    lowtide.optimize(model, **EASY)
    model(x).sum().backward()
    assert lowtide.verify(model, x).plan is lowtide.planned(model).plans[-1]

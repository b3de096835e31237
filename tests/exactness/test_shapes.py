"""Inputs of changing sizes: few captures, the same bits, one budget for all."""

import copy

import pytest
import torch
from torch import nn

import lowtide
from lowtide import planners
from lowtide.engine.bits import same_bits
from lowtide.engine.costs import prices
from lowtide.engine.costs.machine import count_allocations
from lowtide.engine.planning.decide import Planning

CPU = torch.device("cpu")


class Reader(nn.Module):
    """An embedding, attention, dropout and a loss: what a length goes through."""

    def __init__(self, width: int = 16, vocabulary: int = 32) -> None:
        super().__init__()
        self.words = nn.Embedding(vocabulary, width)
        self.places = nn.Embedding(128, width)
        self.mix = nn.Linear(width, 3 * width)
        self.wide = nn.Sequential(nn.Linear(width, 64), nn.GELU(), nn.Linear(64, width))
        self.drop = nn.Dropout(0.1)
        self.out = nn.Linear(width, vocabulary)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.words(x) + self.places(torch.arange(x.shape[1]))
        q, k, v = self.mix(y).unsqueeze(1).chunk(3, dim=-1)
        a = nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        y = y + self.drop(a.squeeze(1))
        y = y + self.wide(y)
        return nn.functional.cross_entropy(self.out(y).flatten(0, 1), x.flatten())


@pytest.fixture
def searches(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The limits that were searched for."""
    found: list[int] = []
    search = Planning.search

    def counted(self, step, limit_bytes, share=1.0):
        found.append(limit_bytes)
        return search(self, step, limit_bytes, share)

    monkeypatch.setattr(Planning, "search", counted)
    return found


def agree(states):
    return all(same_bits(a, b) for a, b in zip(*states, strict=True))


def train(model, plain, sizes, *, loss=lambda y: y):
    """Steps of these sizes with and without a budget: compared bit for bit."""
    for batch, length in sizes:
        x = torch.randint(0, 32, (batch, length))
        states = []
        for net in (plain, model):
            net.zero_grad()
            torch.manual_seed(length)
            value = loss(net(x))
            value.backward()
            gradients = [p.grad.clone() for p in net.parameters()]
            states.append([value.detach(), *gradients, torch.get_rng_state()])
        assert agree(states), f"{batch} x {length}"


def optimized(**settings):
    plain = Reader()
    model = copy.deepcopy(plain)
    lowtide.optimize(model, **{"budget": "67%", "planner": "chen_greedy", **settings})
    return model, plain


def test_two_captures_and_a_few_searches_serve_all_lengths(searches):
    model, plain = optimized()
    sizes = [(8, t) for t in (48, 17, 40, 31, 24, 5, 47, 48, 9, 40)]
    train(model, plain, sizes)
    call = lowtide.planned(model)
    assert call.watch.graphs == 2
    assert call.watch.forwards == len(sizes)
    assert len(searches) <= 4
    assert call.plans[0].recomputed
    # The second length fits without recomputation.
    assert not call.plans[1].recomputed


def test_a_share_stays_one_of_the_largest_length_when_it_is_planned_again():
    # At 70 % there is room left, so the second call plans again, for a shorter length.
    model, plain = optimized(budget="70%")
    train(model, plain, [(8, 48), (8, 17)])
    (plan,) = lowtide.planned(model).plans
    assert plan.budget_bytes > plan.baseline_peak_bytes


def test_a_longer_length_is_planned_for():
    model, plain = optimized(budget="80%")
    train(model, plain, [(8, 24), (8, 20), (8, 96), (8, 90)])
    plans = lowtide.planned(model).plans
    assert plans[-1].budget_bytes > plans[0].budget_bytes
    assert lowtide.planned(model).watch.graphs == 2


def test_smaller_last_batches_run_at_once(searches):
    model, plain = optimized()
    # The first one is captured, with a symbol for its size, and needs no recomputation.
    train(model, plain, [(8, 48), (8, 48), (3, 48), (8, 48)])
    before = len(searches)
    train(model, plain, [(5, 48), (8, 48), (2, 48), (8, 48)])
    assert len(searches) == before
    assert lowtide.planned(model).watch.graphs == 2


def test_a_second_start_searches_and_measures_nothing(tmp_path, monkeypatch):
    monkeypatch.setenv("LOWTIDE_CACHE_DIR", str(tmp_path))
    x = torch.randint(0, 32, (8, 48))
    schedules = []
    for start in range(2):
        torch._dynamo.reset()
        torch.manual_seed(0)
        model = lowtide.optimize(Reader(), budget="67%", planner="chen_greedy")
        if start:
            monkeypatch.setattr(planners, "load", lambda name: _Idle)
            monkeypatch.setattr(prices, "measure_calls", _nothing_to_do)
        for _ in range(3):
            model.zero_grad()
            model(x).backward()
        schedules.append(lowtide.planned(model).plans[-1].schedule)
    assert schedules[0] == schedules[1]


class _Idle:
    name = "chen_greedy"

    @staticmethod
    def plan(*_, **__):
        pytest.fail("a search")


def _nothing_to_do(calls, *_):
    assert list(calls) == []
    return []


def test_a_length_above_the_budget_runs_at_its_lowest_peak():
    model, plain = optimized(budget=500_000)
    train(model, plain, [(8, 32), (8, 30)])
    with pytest.warns(lowtide.errors.LowtideWarning, match="larger inputs than before"):
        train(model, plain, [(8, 120)])


def test_gradients_in_another_layout_have_the_same_bits_at_every_length():
    torch.manual_seed(0)
    plain = nn.Sequential(nn.Embedding(32, 16), nn.Linear(16, 24), nn.Tanh())
    model = copy.deepcopy(plain)
    lowtide.optimize(model, budget="100%")
    sizes = [(4, 9), (4, 7), (4, 12), (4, 7)]
    train(model, plain, sizes, loss=lambda y: y.sum())
    train(model, plain, sizes, loss=lambda y: (y.transpose(1, 2).exp()).mean())


def test_the_backend_takes_dynamic_shapes():
    plain = Reader()
    model = copy.deepcopy(plain)
    torch._dynamo.reset()
    options = {"budget": "67%", "planner": "chen_greedy"}
    compiled = torch.compile(model, backend="lowtide", dynamic=True, options=options)
    for length in (48, 31, 60):
        x = torch.randint(0, 32, (8, length))
        states = []
        for net, call in ((plain, plain), (model, compiled)):
            net.zero_grad()
            torch.manual_seed(length)
            call(x).backward()
            states.append([p.grad.clone() for p in net.parameters()])
        assert agree(states), length


@pytest.mark.slow
def test_no_length_goes_above_the_budget():
    model, plain = optimized(budget="60%", planner="auto")
    lengths = torch.randint(4, 120, (40,)).tolist()
    train(model, plain, [(8, 128), *((8, t) for t in lengths)])
    budget = max(p.budget_bytes for p in lowtide.planned(model).plans)
    resident = lowtide.planned(model).plans[-1].resident_bytes
    for length in lengths:
        x = torch.randint(0, 32, (8, length))
        model.zero_grad()

        def step(x=x):
            with torch.enable_grad():
                model(x).backward()

        _, taken = count_allocations(step, CPU)
        assert resident + taken <= budget

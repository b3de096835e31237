"""Updates in the backward: the same bits as `optimizer.step()`, fewer bytes."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import nn

import lowtide
from lowtide.engine.bits import same_bits
from lowtide.engine.costs.ledger import ledger
from lowtide.errors import InvalidArgumentError, InvalidScheduleError
from lowtide.step.schedule import settled, with_frees
from lowtide.step.simulate import simulate

OPTIMIZERS = {
    "sgd": (torch.optim.SGD, {"lr": 0.1}),
    "momentum": (
        torch.optim.SGD,
        {"lr": 0.1, "momentum": 0.9, "nesterov": True, "weight_decay": 0.01},
    ),
    "adam": (torch.optim.Adam, {"foreach": False}),
    "adamw foreach": (torch.optim.AdamW, {"foreach": True, "weight_decay": 0.1}),
    "adamw fused": (torch.optim.AdamW, {"fused": True}),
    "adafactor": (torch.optim.Adafactor, {}),
    "rmsprop": (torch.optim.RMSprop, {"momentum": 0.5, "centered": True}),
}


@pytest.fixture(autouse=True)
def _seeded():
    torch._dynamo.reset()
    torch.manual_seed(0)


class Net(nn.Module):
    """A tied weight, a norm, a dropout and a loss inside."""

    def __init__(self, width: int = 32) -> None:
        super().__init__()
        self.embed = nn.Embedding(20, width)
        self.first, self.second = nn.Linear(width, width), nn.Linear(width, width)
        self.norm, self.drop = nn.LayerNorm(width), nn.Dropout(0.2)
        self.head = nn.Linear(width, 20, bias=False)
        self.head.weight = self.embed.weight

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        x = self.embed(tokens)
        x = x + self.drop(torch.tanh(self.first(self.norm(x))))
        x = x + torch.relu(self.second(x))
        return nn.functional.cross_entropy(self.head(x), tokens)


def groups(model: nn.Module) -> list[dict[str, Any]]:
    matrices = [p for p in model.parameters() if p.dim() > 1]
    vectors = [p for p in model.parameters() if p.dim() == 1]
    return [{"params": matrices}, {"params": vectors, "lr": 0.01}]


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_parameters_and_state_have_the_same_bits(name: str):
    kind, settings = OPTIMIZERS[name]
    plain = Net()
    planned = copy.deepcopy(plain)
    tokens = torch.randint(0, 20, (64,))
    sides = []
    for model in (plain, planned):
        optimizer = kind(groups(model), **settings)
        schedule = torch.optim.lr_scheduler.StepLR(optimizer, 2, 0.5)
        sides.append((model, optimizer, schedule))
    lowtide.optimize(
        planned,
        budget="1 GiB",
        planner="recompute_all",
        optimizer=sides[1][1],
        update="in_backward",
    )
    for number in range(5):
        for model, optimizer, schedule in sides:
            torch.manual_seed(number)
            optimizer.zero_grad()
            model(tokens).backward()
            optimizer.step()
            schedule.step()
    assert lowtide.planned(planned).watch.updates.updates
    for p, q in zip(plain.parameters(), planned.parameters(), strict=True):
        assert same_bits(p, q)
    states = [side[1].state_dict() for side in sides]
    assert states[0]["param_groups"] == states[1]["param_groups"]
    assert states[0]["state"].keys() == states[1]["state"].keys()
    for key, entries in states[0]["state"].items():
        for entry, value in entries.items():
            other = states[1]["state"][key][entry]
            if isinstance(value, torch.Tensor):
                assert same_bits(value, other), (key, entry)
            else:
                assert value == other


def deep(width: int = 256, depth: int = 8) -> nn.Sequential:
    layers = [m for _ in range(depth) for m in (nn.Linear(width, width), nn.Tanh())]
    return nn.Sequential(*layers)


def test_gradients_do_not_add_up():
    model, x = deep(), torch.randn(4, 256)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    weights = sum(p.nbytes for p in model.parameters())

    def step() -> None:
        model(x).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()

    step()
    plain = ledger(step, modules=[model], batch=x).peak_bytes
    lowtide.optimize(model, budget="1 GiB", optimizer=optimizer, update="in_backward")
    for _ in range(3):
        step()
    ours = ledger(step, modules=[model], batch=x).peak_bytes
    assert plain > 2 * weights
    assert ours < 1.4 * weights


def test_a_budget_below_the_gradients_is_kept():
    model, x = deep(), torch.randn(64, 256)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    weights = sum(p.nbytes for p in model.parameters())
    budget = int(1.5 * weights)
    lowtide.optimize(model, budget=budget, optimizer=optimizer, update="in_backward")

    def step() -> None:
        model(x).square().mean().backward()
        optimizer.step()

    for _ in range(3):
        step()
    assert ledger(step, modules=[model], batch=x).peak_bytes <= 1.01 * budget


def test_uses_of_a_consumed_gradient_are_errors():
    model, x = deep(16, 2), torch.randn(4, 16)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    lowtide.optimize(model, budget="1 GiB", optimizer=optimizer, update="in_backward")
    model(x).sum().backward()
    with pytest.raises(InvalidArgumentError, match="consumed by its update"):
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    with pytest.raises(InvalidArgumentError, match=r"optimizer\.step\(\) has not"):
        model(x)
    optimizer.step()
    assert all(p.grad is None for p in model.parameters())
    model(x).sum().backward()


def test_a_step_of_several_graphs_is_refused():
    class Broken(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.net = deep(16, 2)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            y = self.net(x)
            torch._dynamo.graph_break()
            return self.net(y).sum()

    model = Broken()
    before = [p.detach().clone() for p in model.parameters()]
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    lowtide.optimize(model, budget="1 GiB", optimizer=optimizer, update="in_backward")
    with pytest.raises(InvalidArgumentError, match="not one graph"):
        model(torch.randn(4, 16))
    assert all(map(same_bits, before, model.parameters()))


def test_two_forwards_before_their_backwards_are_refused():
    model, x = deep(16, 2), torch.randn(4, 16)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    lowtide.optimize(model, budget="1 GiB", optimizer=optimizer, update="in_backward")
    loss = model(x).sum() + model(x + 1).sum()
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        loss.backward()


def test_what_cannot_work_is_refused():
    model, x = deep(16, 2), torch.randn(4, 16)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    asked: dict[str, Any] = {"budget": "1 GiB", "update": "in_backward"}
    with pytest.raises(InvalidArgumentError, match="none"):
        lowtide.optimize(model, **asked)
    with pytest.raises(InvalidArgumentError, match="LBFGS"):
        lowtide.optimize(model, optimizer=torch.optim.LBFGS([x]), **asked)
    lowtide.optimize(model, optimizer=optimizer, **asked)
    handle = model[0].weight.register_hook(lambda g: g * 2)
    with pytest.raises(InvalidArgumentError, match="hook"):
        model(x)
    handle.remove()
    scaler = torch.amp.GradScaler("cpu", enabled=True)
    with pytest.raises(InvalidArgumentError, match="GradScaler"):
        model(x)
    del scaler
    model(x).sum().backward()
    with pytest.raises(InvalidArgumentError, match="cannot be run a second time"):
        lowtide.verify(model, x)


def test_nothing_reads_a_parameter_after_its_update():
    model, x = deep(16, 3), torch.randn(4, 16)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    lowtide.optimize(model, budget="1 GiB", optimizer=optimizer, update="in_backward")
    model(x).sum().backward()
    graph = lowtide.planned(model).steps[-1]
    update = next(op for op in graph.ops if op.spends)
    reader = next(
        op for op in graph.ops if update.spends[0] in op.reads and not op.spends
    )
    late = [*graph.baseline, reader.id]
    with pytest.raises(InvalidScheduleError, match="has been updated"):
        simulate(graph, with_frees(graph, late))
    simulate(graph, with_frees(graph, settled(graph, late)))

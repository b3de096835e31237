"""What trainers do around a step: planned all the same, with the same bits."""

from __future__ import annotations

import copy
import io
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn
from torch.utils.checkpoint import checkpoint

import lowtide
from lowtide.engine.bits import same_bits
from lowtide.engine.costs.ledger import ledger
from lowtide.errors import NoTrainingGraphError

ROWS, WIDTH, STEPS = 256, 32, 6


@pytest.fixture(autouse=True)
def _seeded():
    torch._dynamo.reset()
    torch.manual_seed(0)


class Net(nn.Module):
    """Activations that outweigh the parameters, dropout and statistics."""

    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(
            nn.Sequential(
                nn.Linear(WIDTH, 2 * WIDTH),
                nn.BatchNorm1d(2 * WIDTH),
                nn.Tanh(),
                nn.Dropout(0.1),
                nn.Linear(2 * WIDTH, WIDTH),
            )
            for _ in range(4)
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for block in self.blocks:
            x = x + block(x)
        return x.float().square().mean()


def batches(steps: int = STEPS) -> Iterator[torch.Tensor]:
    generator = torch.Generator().manual_seed(1)
    for _ in range(steps):
        yield torch.randn(ROWS, WIDTH, generator=generator)


Loop = Callable[[nn.Module, torch.optim.Optimizer], Any]


def compare(loop: Loop, make: Callable[[], nn.Module] = Net) -> Any:
    """Train twice, the second time under a budget; returns how that was planned."""
    ends = []
    for budget in (None, "100%"):
        torch.manual_seed(2)
        model = make()
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
        if budget:
            lowtide.optimize(model, budget=budget, planner="recompute_all")
        extra = loop(model, optimizer)
        ends.append([*state_of(model, optimizer), *(extra or [])])
    assert len(ends[0]) == len(ends[1])
    assert all(map(same_bits, *ends))
    call = lowtide.planned(model)
    assert call.plans
    return call


def state_of(model: nn.Module, optimizer: torch.optim.Optimizer) -> list[torch.Tensor]:
    moments = [
        value
        for entries in optimizer.state.values()
        for value in entries.values()
        if isinstance(value, torch.Tensor)
    ]
    return [*model.state_dict().values(), *moments, torch.get_rng_state()]


def test_a_scaler_that_skips_steps_and_clipping():
    def loop(model: nn.Module, optimizer: torch.optim.Optimizer) -> Any:
        scaler = torch.amp.GradScaler("cpu", init_scale=2.0**10, growth_interval=2)
        scales, norms = [], []
        for number, x in enumerate(batches()):
            optimizer.zero_grad()
            loss = model(x * (1e30 if number == 2 else 1.0))
            scaler.scale(loss).backward()
            scaler.unscale_(optimizer)
            norms.append(nn.utils.clip_grad_norm_(model.parameters(), 0.1))
            scaler.step(optimizer)
            scaler.update()
            scales.append(torch.tensor(scaler.get_scale()))
        assert scales[2] < scales[1]
        return [*scales, *norms]

    assert compare(loop).watch.backwards == STEPS


def test_averaged_weights_and_evaluation_in_between():
    def loop(model: nn.Module, optimizer: torch.optim.Optimizer) -> Any:
        average = AveragedModel(model, multi_avg_fn=get_ema_multi_avg_fn(0.9))
        seen = []
        for x in batches():
            optimizer.zero_grad()
            model(x).backward()
            optimizer.step()
            average.update_parameters(model)
            model.eval()
            with torch.no_grad():
                seen += [model(x), average(x)]
            with torch.inference_mode():
                seen.append(model(x[:7]).clone())
            model.train()
        return [*seen, *average.state_dict().values()]

    assert compare(loop).watch.backwards == STEPS


def test_training_goes_on_from_a_file():
    def loop(model: nn.Module, optimizer: torch.optim.Optimizer) -> Any:
        for number, x in enumerate(batches()):
            optimizer.zero_grad()
            model(x).backward()
            optimizer.step()
            if number == 2:
                file = io.BytesIO()
                torch.save((model.state_dict(), optimizer.state_dict()), file)
                for p in model.parameters():
                    nn.init.zeros_(p)
                file.seek(0)
                weights, moments = torch.load(file)
                model.load_state_dict(weights)
                optimizer.load_state_dict(moments)

    call = compare(loop)
    assert call.watch.backwards == STEPS
    assert call.watch.graphs <= 2


@pytest.mark.parametrize("way", ["weights", "whole"])
def test_another_process_goes_on_from_a_file(way: str):
    file = io.BytesIO()
    first = lowtide.optimize(Net(), budget="75%", planner="mu_two")
    plain = copy.deepcopy(first)
    xs = list(batches())

    def steps(model: nn.Module, xs: list[torch.Tensor]) -> None:
        for number, x in enumerate(xs):
            torch.manual_seed(number)
            model.zero_grad()
            model(x).backward()
            with torch.no_grad():
                for p in model.parameters():
                    p -= 0.1 * p.grad

    steps(first, xs[:3])
    steps(plain, xs[:3])
    torch.save(first.state_dict() if way == "weights" else first, file)
    file.seek(0)
    torch._dynamo.reset()
    second = Net()
    if way == "weights":
        second.load_state_dict(torch.load(file))
    else:
        second = torch.load(file, weights_only=False)
        assert lowtide.planned(second) is None
    lowtide.optimize(second, budget="75%", planner="mu_two")
    steps(second, xs[3:])
    steps(plain, xs[3:])
    assert lowtide.planned(second).watch.backwards == 3
    assert all(
        map(same_bits, second.state_dict().values(), plain.state_dict().values())
    )


def test_precision_may_change_from_step_to_step():
    def loop(model: nn.Module, optimizer: torch.optim.Optimizer) -> Any:
        del optimizer
        seen = []
        for number, x in enumerate(batches(9)):
            model.zero_grad()
            if number == 5:
                model.bfloat16()
            if number == 7:
                model.float()
            with torch.autocast("cpu", torch.bfloat16, enabled=number in (2, 3)):
                loss = model(x.bfloat16() if number in (5, 6) else x)
            loss.backward()
            seen += [loss.detach(), *(p.grad.clone() for p in model.parameters())]
        return seen

    assert compare(loop).watch.backwards == 9


def test_gradients_are_accumulated_within_the_budget():
    def loop(model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
        for number, x in enumerate(batches(8)):
            (model(x) / 4).backward()
            if number % 4 == 3:
                optimizer.step()
                optimizer.zero_grad()

    call = compare(loop)
    assert call.watch.backwards == 8
    assert len(call.plans) <= 3


@pytest.mark.parametrize("where", ["inside", "around"])
def test_a_compiler_inside_or_around(where: str):
    def loop(model: nn.Module, optimizer: torch.optim.Optimizer) -> Any:
        is_around = where == "around"
        run: Any = torch.compile(model, backend="eager") if is_around else model
        for x in batches(4):
            optimizer.zero_grad()
            run(x).backward()
            optimizer.step()

    def make() -> nn.Module:
        model = Net()
        if where == "inside":
            model.blocks[1].compile(backend="eager")
        return model

    assert compare(loop, make).watch.backwards >= 4


def test_a_compiled_function_that_swallows_the_model_is_told():
    model = lowtide.optimize(Net(), budget="100%")
    step = torch.compile(lambda x: model(x) * 2, backend="eager")
    with pytest.raises(NoTrainingGraphError, match="never called"):
        step(torch.randn(ROWS, WIDTH)).backward()


class Cached(Net):
    """Returns keys and values for a generation that nobody asks for."""

    def forward(self, x: torch.Tensor) -> dict[str, Any]:
        cache = []
        for block in self.blocks:
            x = x + block(x)
            cache.append((x.view(ROWS, 4, -1).transpose(0, 1), x.sin()))
        return {"loss": x.square().mean(), "past_key_values": cache}


def test_caches_among_the_outputs_are_planned_once():
    numbers = []

    def loop(model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
        for x in batches():
            optimizer.zero_grad()
            model(x)["loss"].backward()
            optimizer.step()
            call = lowtide.planned(model)
            numbers.append((call.watch.surprises, len(call.plans)) if call else None)

    compare(loop, Cached)
    assert len(set(numbers[-4:])) == 1, numbers


class LowRank(nn.Module):
    """A frozen layer and a small one that is trained beside it."""

    def __init__(self) -> None:
        super().__init__()
        self.frozen = nn.Linear(WIDTH, WIDTH).requires_grad_(False)
        self.down, self.up = (
            nn.Linear(WIDTH, 4, bias=False),
            nn.Linear(4, WIDTH, bias=False),
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.tanh(self.frozen(x) + self.up(self.down(F.dropout(x, 0.1))))


class Adapted(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(LowRank() for _ in range(6))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            x = x + layer(x)
        return x.square().mean()


def test_adapters_beside_frozen_layers_are_planned_once():
    def loop(model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
        for x in batches():
            optimizer.zero_grad()
            model(x).backward()
            optimizer.step()

    assert len(compare(loop, Adapted).plans) == 1


class Checkpointed(Net):
    """Its blocks draw random numbers, which eager draws again."""

    def __init__(self, reentrant: bool) -> None:
        super().__init__()
        self.reentrant = reentrant
        for block in self.blocks:
            block[1] = nn.LayerNorm(2 * WIDTH)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for block in self.blocks:
            x = x + checkpoint(block, x, use_reentrant=self.reentrant)
        return x.square().mean()


@pytest.mark.parametrize("reentrant", [False, True])
def test_a_share_is_of_what_checkpoints_with_dropout_leave(reentrant: bool):
    x = torch.randn(16 * ROWS, WIDTH, requires_grad=reentrant)
    peaks, ends = [], []
    for budget in (None, "90%"):
        torch.manual_seed(2)
        model = Checkpointed(reentrant)
        if budget:
            lowtide.optimize(model, budget=budget)

        def step(model: nn.Module = model) -> None:
            torch.manual_seed(3)
            x.grad = None
            model.zero_grad()
            model(x).backward()

        for _ in range(3):
            step()
        ends.append([p.grad.clone() for p in model.parameters()])
        peaks.append(ledger(step, modules=[model], batch=x).peak_bytes)
    assert all(map(same_bits, *ends))
    assert peaks[1] <= 0.91 * peaks[0] + (1 << 20)

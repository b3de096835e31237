"""Training loops as people write them: the same bits as without lowtide, or a word."""

from __future__ import annotations

import copy
import gc
import random
import resource
import subprocess
import sys
import threading
import warnings
import weakref
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional as F

import lowtide
from lowtide.engine.bits import same_bits
from lowtide.engine.planning import decide as planning
from lowtide.errors import (
    BudgetTooSmallError,
    InvalidScheduleError,
    LowtideWarning,
    VerificationError,
)
from lowtide.step.plan import Run
from tests.exactness.models import assert_same_bits

EASY = {"budget": "1 GiB", "planner": "recompute_all"}


@pytest.fixture(autouse=True)
def _seeded():
    torch._dynamo.reset()
    torch.manual_seed(0)


def agree(
    model: nn.Module,
    run: Callable[[nn.Module], Any],
    *,
    steps: int = 2,
    between: Callable[[nn.Module], Any] | None = None,
) -> Any:
    """Run steps plainly and planned; gradients, buffers and generator are the same."""
    plain = copy.deepcopy(model)
    lowtide.optimize(model, **EASY)
    for number in range(steps):
        states = []
        for each in (plain, model):
            each.zero_grad()
            torch.manual_seed(number)
            run(each)
            states.append(torch.get_rng_state())
        assert torch.equal(*states)
        assert_same_bits(model, plain)
        for each in (plain, model):
            if between is not None:
                between(each)
    return lowtide.planned(model)


class Small(nn.Module):
    """Two layers with something between them, and a loss inside."""

    def __init__(self, middle: Callable[[torch.Tensor], torch.Tensor] = torch.tanh):
        super().__init__()
        self.first, self.second = nn.Linear(8, 8), nn.Linear(8, 8)
        self.middle = middle

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.second(self.middle(self.first(x))).square().sum()


# Random numbers.


@torch.library.custom_op("lowtide_tests::noisy", mutates_args=())
def noisy(x: torch.Tensor) -> torch.Tensor:
    return x + torch.rand_like(x)


noisy.register_fake(lambda x: torch.empty_like(x))
noisy.register_autograd(lambda ctx, g: g)


def test_an_op_of_somebody_elses_is_never_run_again():
    model = Small(lambda h: torch.tanh(noisy(h)))
    call = agree(model, lambda m: m(torch.ones(4, 8)).backward())
    (op,) = [op for op in call.steps[-1].ops if "noisy" in op.target]
    assert op.once


def dropping() -> nn.Module:
    layers: list[nn.Module] = []
    for _ in range(2):
        layers += [nn.Linear(256, 256), nn.Dropout(0.5), nn.Tanh()]
    return nn.Sequential(*layers, nn.Linear(256, 8))


def masks_agree(model: nn.Module, x: torch.Tensor) -> bool:
    """Whether the backward used the masks of the forward.

    The last layer is linear: its output, summed over rows, is its weight times the sum
    of its inputs, and that sum is the gradient of each row of the weight.
    """
    model.zero_grad()
    output = model(x)
    output.sum().backward()
    last = model[-1]
    forward = (output.detach() - last.bias).sum(0)
    backward = last.weight @ last.weight.grad[0]
    return bool((forward - backward).abs().max() < 1e-2)


def test_another_thread_may_draw_meanwhile():
    model, x = dropping(), torch.randn(64, 256)
    lowtide.optimize(model, **EASY)
    assert masks_agree(model, x)
    done = threading.Event()

    def draw():
        while not done.is_set():
            torch.rand(64)

    other = threading.Thread(target=draw)
    other.start()
    try:
        assert all(masks_agree(model, x) for _ in range(40))
    finally:
        done.set()
        other.join()


def test_models_train_in_two_threads():
    wrong: list[Any] = []

    def work() -> None:
        model, x = dropping(), torch.randn(64, 256)
        lowtide.optimize(model, **EASY)
        try:
            wrong.append(sum(not masks_agree(model, x) for _ in range(20)))
            assert lowtide.planned(model).watch.forwards == 20
        except BaseException as error:
            wrong.append(error)

    threads = [threading.Thread(target=work) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == [0, 0]


@pytest.mark.parametrize(
    "draw",
    [
        lambda h: h * torch.rand_like(h),
        lambda h: h + torch.randn(h.shape),
        lambda h: h * torch.bernoulli(torch.sigmoid(h.detach())),
        lambda h: F.rrelu(h, training=True),
        lambda h: F.gumbel_softmax(h),
        lambda h: h * torch.randint(0, 3, h.shape),
        lambda h: F.alpha_dropout(h, 0.3, training=True),
        lambda h: F.feature_alpha_dropout(h, 0.3, training=True),
        lambda h: h[:, torch.randperm(8)],
        lambda h: h * torch.normal(0.0, 1.0, h.shape),
        lambda h: h * torch.empty_like(h).uniform_(0.5, 1.5),
        lambda h: h * torch.empty_like(h).exponential_(),
    ],
)
def test_every_draw_is_replayed_or_kept(draw: Any):
    x = torch.randn(4, 8)
    agree(Small(lambda h: torch.tanh(draw(h))), lambda m: m(x).backward())


# What the user's own code does.


class Sociable(nn.Module):
    """Draws, counts, prints and remembers, around a graph break."""

    log: list[str]

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(8, 8), nn.Linear(8, 8)
        self.seen: list[torch.Tensor] = []
        self.count = {"calls": 0}
        self.log = []

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = torch.tanh(self.first(x))
        factor = random.random() * float(np.random.rand())
        self.count["calls"] += 1
        self.seen.append(h.detach())
        print("forward")
        torch._dynamo.graph_break()
        return self.second(h * factor).square().sum()


@pytest.mark.filterwarnings("ignore:Dynamo does not know how to trace")
@pytest.mark.filterwarnings("ignore:.*nothing of this step could be captured")
def test_code_of_the_users_runs_once_a_step(capfd: pytest.CaptureFixture[str]):
    x = torch.randn(4, 8)

    def run(model: nn.Module) -> None:
        random.seed(1)
        np.random.seed(1)
        model(x).backward()
        model.streams = (random.random(), float(np.random.rand()))

    plain = Sociable()
    planned = copy.deepcopy(plain)
    lowtide.optimize(planned, **EASY)
    for model in (plain, planned):
        for _ in range(3):
            run(model)
        out = capfd.readouterr().out
        assert out.count("forward") == 3
    assert planned.count == plain.count == {"calls": 3}
    assert planned.streams == plain.streams
    assert [type(t) for t in planned.seen] == [torch.Tensor] * 3
    assert all(map(same_bits, planned.seen, plain.seen))


class Drawing(Small):
    """Draws in Python and counts, in code that runs once more in a dry run."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = torch.tanh(self.first(x))
        h = self.between(h)
        return self.second(h).square().sum()

    @torch._dynamo.disable
    def between(self, h: torch.Tensor) -> torch.Tensor:
        self.seen = [*getattr(self, "seen", []), h.detach()]
        return h * random.random() * float(np.random.rand())


def test_a_dry_run_leaves_streams_and_lists_alone():
    x, drawn = torch.randn(4, 8), []

    def run(model: nn.Module) -> None:
        random.seed(1)
        np.random.seed(1)
        model(x).backward()
        drawn.append((random.random(), float(np.random.rand())))

    model = Drawing()
    call = agree(model, run, steps=3)
    assert call.watch.graphs == 2  # both planned in a dry run, before anything ran
    assert call.watch.backwards == 6
    assert len(set(drawn)) == 1
    assert [type(t) for t in model.seen] == [torch.Tensor] * 3


def test_a_profile_leaves_the_streams_alone():
    random.seed(3)
    np.random.seed(3)
    states = random.getstate(), np.random.get_state()[1].tolist(), torch.get_rng_state()
    model = Small(lambda h: h * random.random() * float(np.random.rand()))
    lowtide.profile(model, torch.randn(4, 8), how="estimate")
    assert random.getstate() == states[0]
    assert np.random.get_state()[1].tolist() == states[1]
    assert torch.equal(torch.get_rng_state(), states[2]) is False  # the batch's own
    assert all(p.grad is None for p in model.parameters())


# Numbers that change.


class Annealed(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer, self.step = nn.Linear(8, 8), 0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.step += 1
        return torch.tanh(self.layer(x)).sum() * min(1.0, self.step / 1000)


def test_a_counter_in_the_model_is_an_input():
    x = torch.randn(4, 8)
    call = agree(Annealed(), lambda m: m(x).backward(), steps=80)
    assert len(call.plans) <= 3


def test_a_model_may_ask_where_its_classes_are_from():
    class Asking(Small):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            if type(self.first.weight).__module__.startswith("torchao."):
                return x
            return super().forward(x)

    x = torch.randn(4, 8)
    call = agree(Asking(), lambda m: m(x).backward())
    assert call.watch.graphs == 1


@pytest.mark.parametrize("layerdrop", [0.0, 0.5])
def test_layers_that_are_never_left_out_are_one_graph(layerdrop: float):
    class Dropping(Small):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            for _ in range(3):
                if torch.rand([]) < layerdrop:
                    continue
                x = x + torch.tanh(self.first(x))
            return x.square().sum()

    x = torch.randn(4, 8)
    call = agree(Dropping(), lambda m: m(x).backward(), steps=3)
    assert call.watch.graphs == 1 or layerdrop


def test_a_number_that_the_model_changes_is_an_input():
    class Cooled(Small):
        temperature = 1.0

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            self.temperature *= 0.9
            torch.rand(2)
            return self.second(torch.tanh(self.first(x))).sum() / self.temperature

    x = torch.randn(4, 8)
    call = agree(Cooled(), lambda m: m(x).backward(), steps=5)
    assert len(call.plans) <= 2


@pytest.mark.parametrize("values", [[0.1 * i for i in range(12)], list(range(12))])
def test_a_number_among_the_arguments_is_an_input(values: list[float]):
    class Scaled(Small):
        def forward(self, x: torch.Tensor, factor: float = 1.0) -> torch.Tensor:
            return self.second(torch.tanh(self.first(x) * factor)).square().sum()

    x, given = torch.randn(4, 8), iter([v for v in values for _ in range(2)])
    call = agree(Scaled(), lambda m: m(x, next(given)).backward(), steps=12)
    assert len(call.plans) <= 3


def test_what_changes_without_end_runs_unplanned():
    class Tagged(Small):
        tag = "0"

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return super().forward(x) * len(self.tag)

    x, plain = torch.randn(4, 8), Tagged()
    model = copy.deepcopy(plain)
    lowtide.optimize(model, **EASY)
    seen: list[str] = []
    for number in range(12):
        for each in (plain, model):
            each.tag = f"{10**number}"
            each.zero_grad()
            with warnings.catch_warnings(record=True) as told:
                warnings.simplefilter("always", LowtideWarning)
                each(x).backward()
            seen += [str(w.message) for w in told if w.category is LowtideWarning]
        for p, q in zip(model.parameters(), plain.parameters(), strict=True):
            assert same_bits(p.grad, q.grad)
    assert len(seen) == 1
    assert "graph has changed 8 times" in seen[0]


def test_a_planner_that_fails_is_said(monkeypatch, caplog):
    def broken(*_: object, **__: object) -> None:
        raise ZeroDivisionError("a bug of ours")

    monkeypatch.setattr(planning.Planning, "search", broken)
    model, x = Small(), torch.randn(4, 8)
    lowtide.optimize(model, budget="80%")
    with pytest.warns(LowtideWarning, match="unplanned.*a bug of ours"):
        model(x).backward()
    assert model.first.weight.grad is not None
    told = [r for r in caplog.records if r.name == "lowtide.run" and r.exc_info]
    assert told[0].levelname == "ERROR"


def test_what_a_plan_is_replaced_by_sets_it_free():
    model, x = Heads(), torch.randn(4, 8)
    lowtide.optimize(model, **EASY)
    model(x)[0].sum().backward()
    old = weakref.ref(lowtide.planned(model).steps[0])
    for turn in (0, 1, 0, 1):
        model.zero_grad()
        model(x)[turn].sum().backward()
    gc.collect()
    assert lowtide.planned(model).steps[-1] is not old()
    assert old() is None


# Outputs.


class Heads(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Linear(8, 8)
        self.one, self.two = nn.Linear(8, 4), nn.Linear(8, 4)

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        h = torch.tanh(self.body(x))
        return torch.tanh(self.one(h)), torch.tanh(self.two(h))


def test_outputs_in_turns_are_planned_twice_at_most():
    x, turns = torch.randn(4, 8), iter([i // 2 % 2 for i in range(24)])
    model = Heads()
    numbers: list[int] = []
    agree(
        model,
        lambda m: m(x)[next(turns)].sum().backward(),
        steps=12,
        between=lambda m: numbers.append(
            lowtide.planned(m).watch.graphs if lowtide.planned(m) else 0
        ),
    )
    assert lowtide.planned(model).watch.surprises >= 10
    assert len(lowtide.planned(model).plans) == 1


def test_a_forward_without_a_backward_is_not_held():
    model = Small()
    lowtide.optimize(model, **EASY)
    kept = model(torch.randn(4, 8))
    call = lowtide.planned(model)
    assert len(call.watch.held) == 1
    kept.backward()
    assert not call.watch.held
    dropped = model(torch.randn(4, 8))
    assert len(call.watch.held) == 1
    del dropped, kept
    gc.collect()
    assert not call.watch.held


# Hooks, modes, copies, compilers.


def test_hooks_added_later_count():
    x, seen = torch.randn(4, 8), []

    def add(model: nn.Module) -> None:
        model.first.register_forward_hook(lambda m, i, o: o * 2)

    agree(Small(), lambda m: m(x).backward(), steps=3, between=add)
    del seen


def test_a_backward_hook_on_the_model_fires_once():
    counts = []
    for optimized in (False, True):
        torch._dynamo.reset()
        model, fired = nn.Sequential(nn.Linear(8, 8), nn.Tanh()), []
        model.register_full_backward_hook(lambda *_, f=fired: f.append(1))
        if optimized:
            lowtide.optimize(model, **EASY)
        for _ in range(3):
            model(torch.randn(4, 8, requires_grad=True)).sum().backward()
        counts.append(len(fired))
    assert counts == [3, 3]


def test_a_model_trained_in_evaluation_mode_is_noticed():
    model, x = Small().eval(), torch.randn(4, 8)
    lowtide.optimize(model, **EASY)
    with pytest.warns(LowtideWarning, match="in evaluation mode"):
        model(x).backward()
    model(x).backward()
    assert lowtide.planned(model).watch.backwards == 1


def test_a_compile_around_the_model_keeps_the_budget():
    model, x = Small(), torch.randn(4, 8)
    lowtide.optimize(model, **EASY)
    torch.compile(model, backend="eager")(x).backward()
    assert lowtide.planned(model).watch.backwards == 1


def test_a_compile_after_is_noticed():
    model, x = Small(), torch.randn(4, 8)
    lowtide.optimize(model, **EASY)
    model.compile(backend="eager")
    with pytest.warns(LowtideWarning, match="compiled afterwards"):
        model(x).backward()


def test_a_compile_before_is_noticed():
    model = Small()
    model.compile(backend="eager")
    with pytest.warns(LowtideWarning, match="own compiled call"):
        lowtide.optimize(model, **EASY)


def test_a_part_and_the_whole_are_both_optimized():
    x, model = torch.randn(4, 8), nn.Sequential(Small())
    lowtide.optimize(model[0], **EASY)
    plain = copy.deepcopy(model)
    lowtide.optimize(model, **EASY)
    for _ in range(3):
        for each in (plain, model):
            each.zero_grad()
            each(x).backward()
        for p, q in zip(model.parameters(), plain.parameters(), strict=True):
            assert same_bits(p.grad, q.grad)
    assert lowtide.planned(model).watch.backwards == 3
    assert lowtide.planned(model[0]).watch.backwards == 0
    model[0](x).backward()
    assert lowtide.planned(model[0]).watch.backwards == 1


# What cannot be captured, or not whole.


class Branching(Small):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = torch.tanh(self.first(x))
        h = h * 2 if h.mean().item() > 0 else h * 3
        return self.second(h).square().sum()


class Caught(Small):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        try:
            return self.first(x).view(7).sum()
        except RuntimeError:
            return super().forward(x)


class Talking(Small):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for _ in range(3):
            x = torch.tanh(self.first(x))
            print(end="")
        return x.sum()


class Experts(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.gate = nn.Linear(8, 3)
        self.experts = nn.ModuleList(nn.Linear(8, 8) for _ in range(3))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        best = self.gate(x).argmax(-1)
        out = torch.zeros_like(x)
        for number, expert in enumerate(self.experts):
            rows = (best == number).nonzero().flatten()
            if len(rows):
                out = out.index_add(0, rows, torch.tanh(expert(x[rows])))
        return out.square().sum()


class Vectorised(Small):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.vmap(lambda row: torch.tanh(self.first(row)))(x).sum()


class OneHot(Small):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        picked = F.one_hot(x.argmax(-1), 8).to(x.dtype)
        return (self.second(torch.tanh(self.first(x))) * picked).sum()


class Recurrent(nn.Module):
    def __init__(self, kind: Any) -> None:
        super().__init__()
        self.cell, self.out = kind(8, 8), nn.Linear(8, 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.out(self.cell(x)[0]).square().sum()


class Sparse(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.table, self.out = nn.Embedding(9, 8, sparse=True), nn.Linear(8, 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        rows = (x[:, 0] > 0).long()
        return self.out(torch.tanh(self.table(rows))).sum()


class Masking(nn.Module):
    """Torch's own layers look at the values of a mask."""

    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Transformer(8, 2, 1, 1, 16, dropout=0.1, batch_first=True)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        mask = nn.Transformer.generate_square_subsequent_mask(len(x))
        return self.net(x[None], x[None], src_mask=mask, tgt_mask=mask).square().sum()


class Gambling(Small):
    """Python decides in a loop which layers run."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        chance = random.Random(len(x))
        for _ in range(3):
            if chance.random() < 0.5:
                x = torch.tanh(self.first(x))
        return self.second(x).square().sum()


class Sloped(Small):
    """A functorch transform inside."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        slope = torch.func.grad(lambda v: torch.tanh(self.first(v)).sum())
        return self.second(slope(x)).square().sum()


HARD: dict[str, Callable[[], nn.Module]] = {
    "transformer with a mask": Masking,
    "python draws in a loop": Gambling,
    "functorch": Sloped,
    "a branch on a value": Branching,
    "an error that is caught": Caught,
    "prints in a loop": Talking,
    "experts": Experts,
    "vmap": Vectorised,
    "one_hot": OneHot,
    "lstm": lambda: Recurrent(nn.LSTM),
    "gru": lambda: Recurrent(nn.GRU),
    "bare lstm": lambda: nn.LSTM(8, 8),
    "sparse embedding": Sparse,
    "cumulative batch norm": lambda: nn.Sequential(
        nn.Linear(8, 8), nn.BatchNorm1d(8, momentum=None), nn.Tanh()
    ),
}


@pytest.mark.filterwarnings("ignore::lowtide.errors.LowtideWarning")
@pytest.mark.parametrize("name", HARD)
def test_what_trains_without_lowtide_trains_with_it(name: str):
    x = torch.randn(6, 8)

    def run(model: nn.Module) -> None:
        output = model(x)
        output = output[0] if isinstance(output, tuple) else output
        output.sum().backward()

    agree(HARD[name](), run, steps=3)


def test_a_budget_that_cannot_be_kept_is_refused_before_anything_runs():
    model = Branching()
    lowtide.optimize(model, budget=1)
    seen = []
    model.second.register_forward_hook(lambda *_: seen.append(1))
    with pytest.raises(BudgetTooSmallError):
        model(torch.randn(4, 8))
    assert not seen


def test_a_lazy_module_is_planned_once_it_has_shapes():
    model, x = nn.Sequential(nn.LazyLinear(8), nn.Tanh()), torch.randn(4, 8)
    lowtide.optimize(model, **EASY)
    for _ in range(3):
        model(x).sum().backward()
    assert lowtide.planned(model).watch.backwards == 2


def test_the_users_own_error_is_the_one_that_comes():
    model = Small()
    lowtide.optimize(model, **EASY)
    with pytest.raises(RuntimeError, match=r"cannot be multiplied|same reduction dim"):
        model(torch.randn(4, 9))


def test_batch_norm_under_autocast():
    x = torch.randn(4, 3, 8, 8)
    model = nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU())

    def run(each: nn.Module) -> None:
        with torch.autocast("cpu", torch.bfloat16):
            output = each(x)
        output.float().square().sum().backward()

    agree(model, run)


# Sums of gradients.


class Tied(nn.Module):
    def __init__(self, *, breaks: bool = False) -> None:
        super().__init__()
        self.layer, self.breaks = nn.Linear(8, 8), breaks

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = torch.tanh(self.layer(torch.tanh(self.layer(x))))
        if self.breaks:
            torch._dynamo.graph_break()
        return torch.tanh(self.layer(x)).square().sum()


AROUND: dict[str, tuple[bool, Callable[[nn.Module, torch.Tensor], torch.Tensor]]] = {
    "graph break": (True, lambda m, x: m(x)),
    "two calls": (False, lambda m, x: m(x) + m(x.cos())),
    "penalty": (False, lambda m, x: m(x) + m.layer.weight.square().sum()),
}


@pytest.mark.parametrize("name", AROUND)
def test_another_order_of_sums_is_said(name: str):
    breaks, loss = AROUND[name]
    model, x = Tied(breaks=breaks), torch.randn(4, 8)
    lowtide.optimize(model, **EASY)
    with pytest.warns(LowtideWarning, match="another order"):
        loss(model, x).backward()
    loss(model, x).backward()  # and said once


def test_sums_within_one_graph_are_eagers():
    agree(Tied(), lambda m: m(torch.ones(4, 8)).backward(), steps=3)


# Plans that are files.


def test_a_schedule_that_is_not_valid_never_runs():
    model, x = Small(lambda h: F.dropout(h, 0.5)), torch.randn(4, 8)
    step = lowtide.profile(model, x)
    plan = lowtide.plan(step, budget="1 GiB", planner="keep_all")
    (drawn,) = [op.id for op in step.ops if "dropout" in op.name and op.once]
    twice = [*plan.schedule[:1], Run(drawn), *plan.schedule[1:]]
    lowtide.apply(model, replace(plan, schedule=tuple(twice)))
    with pytest.raises(InvalidScheduleError):
        model(x).backward()
    assert all(p.grad is None for p in model.parameters())


def test_a_backward_op_may_run_before_the_turn():
    model, x = Small(), torch.randn(4, 8)
    plain = copy.deepcopy(model)
    step = lowtide.profile(model, x)
    plan = lowtide.plan(step, budget="1 GiB", planner="keep_all")
    reads_tangent = set(step.ops[step.turn].writes)
    early = next(
        op.id
        for op in step.ops
        if op.phase == "backward"
        and op.opens < 0
        and reads_tangent.isdisjoint(op.reads)
    )
    from lowtide.step.schedule import make_plan, with_frees

    sequence = [i for i in plan.ops if i != early]
    sequence.insert(sequence.index(step.turn), early)
    lowtide.apply(model, make_plan(step, with_frees(step, sequence), planner="by hand"))
    for each in (plain, model):
        each(x).backward()
    for p, q in zip(model.parameters(), plain.parameters(), strict=True):
        assert same_bits(p.grad, q.grad)


# Checks while training.


def test_steps_can_be_checked_on_the_way(monkeypatch: pytest.MonkeyPatch):
    model, x = Small(lambda h: F.dropout(h, 0.5)), torch.randn(4, 8)
    lowtide.optimize(model, verify=3, **EASY)
    for _ in range(3):
        model(x).backward()
    from lowtide.engine.graphs import rewrite
    from tests.exactness.test_traps import draw_again

    monkeypatch.setattr(rewrite, "draw_again", draw_again)
    with pytest.raises(VerificationError):
        model(x)


@pytest.mark.parametrize("what", ["input", "parameter"])
def test_what_changes_behind_autograds_back_is_noticed(what: str):
    model = Small()
    lowtide.optimize(model, verify=1, **EASY)
    buffer = np.random.rand(4, 8).astype("float32")
    loss = model(torch.from_numpy(buffer))
    if what == "input":
        buffer[:] = 0
    else:
        model.first.weight.data.zero_()
    with pytest.raises(VerificationError, match="changed between"):
        loss.backward()


def test_memory_stays_flat_over_a_thousand_steps():
    model, x = Heads(), torch.randn(4, 8)
    lowtide.optimize(model, **EASY)
    objects, peaks = [], []
    for step in range(1000):
        model.zero_grad()
        model(x)[step % 2].sum().backward()
        if step in (100, 999):
            gc.collect()
            objects.append(len(gc.get_objects()))
            peaks.append(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)
    assert objects[1] <= objects[0] + 20
    assert peaks[1] <= peaks[0] + 4096  # KiB


# The backend.


def layers(activation: type[nn.Module]) -> nn.Module:
    found: list[nn.Module] = []
    for _ in range(4):
        found += [nn.Linear(64, 64), activation()]
    return nn.Sequential(*found)


def test_the_backend_forgets_a_forward_without_a_backward():
    options = {"budget": "4 MB", "planner": "keep_all"}
    first, second = (
        torch.compile(layers(a), backend="lowtide", dynamic=False, options=options)
        for a in (nn.Tanh, nn.Sigmoid)
    )
    dropped = first(torch.randn(1000, 64))
    del dropped
    gc.collect()
    second(torch.randn(1000, 64)).sum().backward()


def test_the_backend_says_where_torch_stops():
    model = torch.compile(
        Small(), backend="lowtide", dynamic=False, options={"budget": "1 GiB"}
    )
    with torch._dynamo.config.patch(recompile_limit=2):
        model(torch.randn(3, 8)).backward()
        with pytest.warns(LowtideWarning, match="recompile_limit"):
            model(torch.randn(4, 8)).backward()


def test_dropout_keeps_a_byte_for_each_number():
    step = lowtide.profile(Small(lambda h: F.dropout(h, 0.5)), torch.randn(4, 8))
    (drawn,) = [op for op in step.ops if op.once == "draws random numbers"]
    masks = [step.storages[s] for s in drawn.writes if step.storages[s].dtype == "bool"]
    assert [mask.nbytes for mask in masks] == [4 * 8]


class Unused(nn.Module):
    """Its second output passes an op of which nothing is known to keep zeros zero."""

    def __init__(self) -> None:
        super().__init__()
        self.body, self.left = nn.Linear(16, 16), nn.Linear(16, 16)
        self.right = nn.Linear(16, 16)

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        x = self.body(x)
        return self.left(x), F.group_norm(self.right(x), 4)


def test_a_gradient_that_nothing_reaches_is_missing_and_not_zero():
    x = torch.randn(8, 16)
    model = Unused()
    agree(model, lambda m: m(x)[0].square().mean().backward(), steps=3)
    assert model.right.weight.grad is None


class Masked(nn.Module):
    """Draws from numpy's generator."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Linear(8, 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        mask = torch.from_numpy(np.random.rand(len(x)) < 0.5)
        return self.body(x * mask[:, None])


def test_draws_of_numpy_stay_those_of_numpy():
    x = torch.randn(32, 8)

    def run(model: nn.Module) -> None:
        np.random.seed(3)
        model(x).square().mean().backward()
        assert np.random.rand() == after

    np.random.seed(3)
    np.random.rand(len(x))
    after = np.random.rand()
    agree(Masked(), run)


def test_an_error_that_is_being_handled_is_not_raised_again():
    def cut(x: torch.Tensor) -> torch.Tensor:
        torch._dynamo.graph_break()
        return torch.tanh(x)

    x, model = torch.randn(64, 8), Small(cut)
    lowtide.optimize(model, budget=1)
    try:
        model(x)
    except BudgetTooSmallError:
        lowtide.restore(model)
        lowtide.optimize(model, **EASY)
        model(x).backward()
    assert model.first.weight.grad is not None


def test_importing_lowtide_draws_no_random_number():
    script = (
        "import random; random.seed(0); a = random.getstate(); import lowtide; "
        "lowtide.optimize; lowtide.report; assert random.getstate() == a"
    )
    subprocess.run([sys.executable, "-c", script], check=True)

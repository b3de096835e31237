"""Steps that values decide are planned in pieces, not left as they are."""

from __future__ import annotations

import copy
import threading
import warnings
from collections.abc import Callable

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import lowtide
from lowtide.engine.bits import same_bits
from lowtide.engine.graphs import rewrite
from lowtide.engine.planning import decide as planning
from lowtide.errors import LowtideWarning

WIDTH = 16


@pytest.fixture(autouse=True)
def _seeded():
    torch._dynamo.reset()
    torch.manual_seed(0)


class Iteration(nn.Module):
    """Stops by itself, in a loop."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.body = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)
        nn.init.normal_(self.body.weight, std=0.02)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = state = self.first(x)
        for _ in range(5):
            before, state = state, torch.tanh(self.body(state) + x)
            if (state - before).abs().max() < 1e-2:
                break
        return state.square().mean()


class Branch(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = torch.tanh(self.first(x))
        x = self.second(x) if x.mean().item() > 0 else self.second(-x)
        return x.square().mean()


class OneHot(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Linear(4, WIDTH)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        classes = x.argmax(-1) % 4
        return self.net(F.one_hot(classes, 4).float()).square().mean()


class Force(nn.Module):
    """The gradient of a score is part of the loss."""

    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Tanh())

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x.detach().requires_grad_()
        score = self.net(x).square().mean()
        (slope,) = torch.autograd.grad(score, x, create_graph=True)
        return score + slope.square().sum()


class Sparse(nn.Module):
    """A table whose gradient is sparse, before layers that can be planned."""

    def __init__(self) -> None:
        super().__init__()
        self.table, self.out = nn.EmbeddingBag(9, WIDTH, sparse=True), Branch()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.out(torch.tanh(self.table((x > 0).long())))


def sum_of_squares(output: torch.Tensor) -> torch.Tensor:
    return output.square().sum()


def trained(
    net: nn.Module,
    x: torch.Tensor,
    loss: Callable[[torch.Tensor], torch.Tensor] = lambda output: output,
) -> list[torch.Tensor]:
    found: list[torch.Tensor] = []
    for _ in range(3):
        net.zero_grad()
        found.append(loss(net(x)))
        found[-1].backward()
        found += [p.grad.clone() for p in net.parameters() if p.grad is not None]
    return found + [b.clone() for b in net.buffers()]


@pytest.mark.parametrize("build", [Iteration, Branch, OneHot, Force, Sparse])
def test_such_a_step_is_planned(build: Callable[[], nn.Module]) -> None:
    net, x = build(), torch.randn(32, WIDTH)
    plain = trained(copy.deepcopy(net), x)
    lowtide.optimize(net, budget="100%", time_limit=0.2)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        ours = trained(net, x)
    assert not [str(w.message) for w in caught if "unplanned" in str(w.message)]
    call = lowtide.planned(net)
    assert call is not None
    assert call.watch.backwards >= 3
    assert call.watch.left == []
    assert all(map(same_bits, plain, ours))
    assert len(plain) == len(ours)


def test_a_break_in_a_sequence_leaves_what_is_around_it_whole():
    layers = [nn.Linear(WIDTH, WIDTH) for _ in range(6)]
    layers[3].register_full_backward_hook(lambda m, x, y: (x[0] * 0.5,))
    net, x = nn.Sequential(*layers), torch.randn(32, WIDTH)
    plain = trained(net, x, sum_of_squares)
    lowtide.optimize(net, budget="100%", time_limit=0.2)
    ours = trained(net, x, sum_of_squares)
    call = lowtide.planned(net)
    assert call is not None
    assert call.watch.graphs == 3
    assert all(map(same_bits, plain, ours))


def test_writing_a_graph_takes_as_long_as_it_is(monkeypatch: pytest.MonkeyPatch):
    asked = [0]

    def is_object(node: torch.fx.Node) -> bool:
        asked[0] += 1
        return False

    monkeypatch.setattr(rewrite, "is_object", is_object)
    net = nn.Sequential(*[nn.Tanh() for _ in range(60)], nn.Linear(WIDTH, WIDTH))
    lowtide.optimize(net, budget="100%", time_limit=0.2)
    trained(net, torch.randn(4, WIDTH, requires_grad=True), sum_of_squares)
    assert asked[0] <= 4 * 60


class Routed(nn.Module):
    """Values decide how many rows each part gets."""

    def __init__(self) -> None:
        super().__init__()
        self.parts = nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in range(2))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        result = torch.zeros_like(x)
        for number, part in enumerate(self.parts):
            rows = ((x[:, 0] > 0) == bool(number)).nonzero()[:, 0]
            result = result.index_add(0, rows, torch.tanh(part(x[rows])))
        return result.square().mean()


def test_sizes_that_values_decide_are_not_planned_anew_in_every_step():
    net = Routed()
    plain = copy.deepcopy(net)
    lowtide.optimize(net, budget="100%", time_limit=0.2)
    call = lowtide.planned(net)
    assert call is not None
    plans: list[int] = []
    for step in range(6):
        x = torch.randn(32, WIDTH) + (step - 3) / 4
        for each in (plain, net):
            each.zero_grad()
            each(x).backward()
        pairs = zip(plain.parameters(), net.parameters(), strict=True)
        assert all(same_bits(a.grad, b.grad) for a, b in pairs)
        plans.append(len(call.plans))
    assert plans[-1] == plans[2], plans


class Late(nn.Module):
    """Registers its hooks in its first call, under a lock, as transformers does."""

    def __init__(self) -> None:
        super().__init__()
        self.net, self.is_ready = nn.Linear(WIDTH, WIDTH), False
        self.lock = threading.Lock()

    def prepare(self) -> None:
        with self.lock:
            self.net.register_forward_hook(lambda module, x, y: y * 2)
            self.is_ready = True

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if not self.is_ready:
            self.prepare()
        return torch.tanh(self.net(x)).square().mean()


def test_hooks_may_be_registered_in_the_first_call():
    net, plain, x = Late(), Late(), torch.randn(32, WIDTH)
    plain.load_state_dict(net.state_dict())
    lowtide.optimize(net, budget="100%", time_limit=0.2)
    assert all(map(same_bits, trained(plain, x), trained(net, x)))


def test_strides_that_torch_foresees_wrongly():
    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.last = nn.Linear(WIDTH, 2), nn.Linear(8, 3)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            x = F.hardtanh(self.first(x))
            return self.last(x.transpose(1, 2)).square().mean()

    net, x = Net(), torch.randn(4, 8, WIDTH)
    plain = trained(copy.deepcopy(net), x)
    lowtide.optimize(net, budget="100%", time_limit=0.2)
    assert all(map(same_bits, plain, trained(net, x)))


class Halving(nn.Module):
    """Calls the same code with another size each time, with breaks in between."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(WIDTH, WIDTH)

    def half(self, x: torch.Tensor) -> torch.Tensor:
        torch._dynamo.graph_break()
        return torch.tanh(self.layer(x))[::2]

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for _ in range(3):
            x = self.half(x)
        return x.square().mean()


@pytest.mark.filterwarnings("ignore:.*graphs cannot be planned")
@pytest.mark.filterwarnings("ignore:.*another order")
def test_sizes_that_change_within_a_step_are_planned():
    net, x = Halving(), torch.randn(32, WIDTH)
    plain = trained(copy.deepcopy(net), x)
    lowtide.optimize(net, budget="100%", time_limit=0.2)
    ours = trained(net, x)
    call = lowtide.planned(net)
    assert call is not None
    left = len(call.watch.left)
    before = call.watch.backwards
    trained(net, x)
    assert call.watch.backwards - before == 12
    assert len(call.watch.left) == left
    assert [a.shape for a in plain] == [b.shape for b in ours]


class Stages(nn.Module):
    """More graphs than a step of one kind of input may be planned for as a whole."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(WIDTH, WIDTH + i) for i in range(10))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        total = x.new_zeros(())
        for layer in self.layers:
            part = layer(x).square().mean()
            total = total + part * min(1.0, part.item())
        return total


def test_many_graphs_that_values_separate_are_planned_together():
    net, x = Stages(), torch.randn(32, WIDTH)
    plain = trained(copy.deepcopy(net), x)
    lowtide.optimize(net, budget="100%", time_limit=0.2)
    ours = trained(net, x)
    assert all(map(same_bits, plain, ours))


class Memory(nn.Module):
    """A value that several graphs read, each of them more than once."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(WIDTH, WIDTH)
        self.layers = nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in range(4))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x, (a, b, c, d) = self.first(x), self.layers
        torch._dynamo.graph_break()
        y = a(x).relu() + b(x).tanh() + x * x
        torch._dynamo.graph_break()
        most, _ = x.max(-1, keepdim=True)
        return (c(x).relu() * d(x).tanh() * most + y).square().mean()


def test_a_value_that_several_graphs_read_gets_its_gradient_in_eagers_order():
    net, x = Memory(), torch.randn(128, WIDTH)
    plain = trained(copy.deepcopy(net), x)
    lowtide.optimize(net, budget="100%", time_limit=0.2)
    assert all(map(same_bits, plain, trained(net, x)))
    call = lowtide.planned(net)
    assert call is not None
    assert call.watch.forwards == 9


@torch.library.custom_op("lowtide_tests::by_group", mutates_args=())
def by_group(
    x: torch.Tensor, weights: torch.Tensor, ends: torch.Tensor
) -> torch.Tensor:
    result, start = x.new_zeros(len(x), weights.shape[2]), 0
    for weight, end in zip(weights, ends.tolist(), strict=True):
        result[start:end], start = x[start:end] @ weight, end
    return result


@by_group.register_fake
def _(x: torch.Tensor, weights: torch.Tensor, ends: torch.Tensor) -> torch.Tensor:
    return x.new_empty(len(x), weights.shape[2])


def _keep_for_groups(ctx, inputs, output):
    ctx.save_for_backward(*inputs[:2])
    ctx.ends = inputs[2]


def _gradients_by_group(ctx, gradient):
    x, weights = ctx.saved_tensors
    of_x, of_weights, start = torch.zeros_like(x), torch.zeros_like(weights), 0
    for place, end in enumerate(ctx.ends.tolist()):
        of_x[start:end] = gradient[start:end] @ weights[place].T
        of_weights[place] = x[start:end].T @ gradient[start:end]
        start = end
    return of_x, of_weights, None


by_group.register_autograd(_gradients_by_group, setup_context=_keep_for_groups)


class Groups(nn.Module):
    """The gradient of a custom op looks at values."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)
        self.weights = nn.Parameter(torch.randn(4, WIDTH, WIDTH))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        ends = (x[:4].argmax(-1) + 1).cumsum(0).clamp(max=len(x))
        hidden = by_group(self.first(x).tanh(), self.weights, ends)
        return self.last(hidden.relu()).square().mean()


def test_a_custom_op_whose_gradient_looks_at_values_is_planned_as_it_is():
    net, x = Groups(), torch.randn(64, WIDTH)
    plain = trained(copy.deepcopy(net), x)
    lowtide.optimize(net, budget="100%", time_limit=0.2)
    assert all(map(same_bits, plain, trained(net, x)))
    call = lowtide.planned(net)
    assert call is not None
    assert (call.watch.graphs, call.watch.left) == (1, [])


class Chosen(nn.Module):
    """Rows that values choose, and their numbers: columns of one tensor."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.layer = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        hidden = self.first(x)
        row, place = torch.where(x > 0.5)
        return (self.layer(hidden[row]) * place[:, None]).square().mean()


def test_other_numbers_of_chosen_rows_are_planned_for():
    net = Chosen()
    plain = copy.deepcopy(net)
    lowtide.optimize(net, budget="200%", time_limit=0.2)
    for number in (32, 24, 40, 28, 36):
        x = torch.randn(number, WIDTH)
        for model in (net, plain):
            model.zero_grad()
            model(x).backward()
        both = zip(net.parameters(), plain.parameters(), strict=True)
        assert all(same_bits(a.grad, b.grad) for a, b in both)


def test_a_dry_run_that_fails_is_no_reason_to_plan_nothing(monkeypatch):
    def look(*_: object, **__: object) -> None:
        raise KeyError(9)

    monkeypatch.setattr(planning, "look", look)
    net, x = Branch(), torch.randn(32, WIDTH)
    plain = trained(copy.deepcopy(net), x)
    lowtide.optimize(net, budget="100%", time_limit=0.2)
    assert all(map(same_bits, plain, trained(net, x)))
    call = lowtide.planned(net)
    assert call is not None
    assert call.watch.backwards >= 3


def test_an_op_that_is_written_in_python_is_no_piece():
    library = torch.library.Library("lowtide_tests", "FRAGMENT")
    library.define("largest(Tensor x, int count) -> Tensor")
    library.impl("largest", _largest, "CPU")

    class Chooses(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.second = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            x = torch.tanh(self.first(x))
            for count in (1, 2, 3):
                torch._dynamo.graph_break()
                chosen = torch.ops.lowtide_tests.largest(x, count)
                x = x + x[chosen].sum(0)
            return self.second(x).square().mean()

    model, x = Chooses(), torch.randn(8, WIDTH)
    model(x).backward()
    wanted = [p.grad for p in model.parameters()]
    model.zero_grad(set_to_none=True)
    lowtide.optimize(model, budget="200%")
    model(x).backward()
    assert all(map(same_bits, wanted, (p.grad for p in model.parameters())))
    call = lowtide.planned(model)
    assert call is not None
    assert call.watch.unplanned == 0


def _largest(x: torch.Tensor, count: int) -> torch.Tensor:
    """Each count would be a graph of its own."""
    sums = (x * count).sum(1)
    found = [0 * sums.argmax()]
    for _ in range(count):
        found.append(sums.argmax())
        sums = sums.index_fill(0, found[-1], -float("inf"))
    return torch.stack(found[1:])


def test_a_graph_that_comes_later_and_cannot_be_planned_runs_as_it_is(monkeypatch):
    model = Branch()
    nn.init.constant_(model.first.bias, 3.0)
    x = torch.randn(4, WIDTH)
    lowtide.optimize(model, budget="200%")
    for _ in range(3):
        model(x).backward()
        model.zero_grad(set_to_none=True)
    call = lowtide.planned(model)
    assert call is not None
    monkeypatch.setattr(planning.Planning, "plan_next", _fails)
    num_left = len(call.watch.left)
    with pytest.warns(LowtideWarning):
        model(x - 100 * torch.sign(model.first.weight.sum(0))).backward()
    found = [p.grad for p in model.parameters()]
    model = lowtide.restore(model)
    model.zero_grad(set_to_none=True)
    model(x - 100 * torch.sign(model.first.weight.sum(0))).backward()
    assert all(map(same_bits, found, (p.grad for p in model.parameters())))
    assert "no plan today" in " ".join(call.watch.left[num_left:])


def _fails(*_: object) -> None:
    raise ValueError("no plan today")


class Aligned(nn.Module):
    """Values decide its loss, so that runs outside of the one graph."""

    def __init__(self) -> None:
        super().__init__()
        self.scores = nn.Linear(WIDTH, 64)
        self.words = torch.randint(1, 64, (4, 10))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        scores = self.scores(x).log_softmax(-1)
        lengths = torch.full((4,), len(x)), torch.full((4,), 10)
        return nn.functional.ctc_loss(scores, self.words, *lengths)


def test_a_guess_of_what_runs_outside_refuses_no_budget():
    model, x = Aligned(), torch.randn(100, 4, WIDTH)
    plain = lowtide.measure(model, x, steps=1)
    lowtide.optimize(model, budget=plain.peak_bytes + 2**14, time_limit=0.2)
    model(x).backward()
    assert lowtide.planned(model).watch.graphs == 1

"""Models that ask whether they are being compiled, and take another path then."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

import lowtide
from lowtide.engine.bits import same_bits
from lowtide.errors import LowtideWarning


def is_traced() -> bool:
    """As libraries ask: through a function of their own."""
    return torch.compiler.is_compiling()


class Asks(nn.Module):
    """Told yes, it sums in another order; told no, it may look at an activation."""

    def __init__(self, asks: Callable[[], bool], *, looks: bool = False) -> None:
        super().__init__()
        self.asks, self.looks = asks, looks
        self.inner = blocks()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.inner(x)
        if self.looks and not is_traced() and (x > 100).all():
            x = x + 1
        if self.asks():
            return x.double().square().mean().float()
        return x.square().mean()


def blocks() -> nn.Sequential:
    width = 32
    return nn.Sequential(
        *(
            nn.Sequential(
                nn.Linear(width, 8 * width), nn.GELU(), nn.Linear(8 * width, width)
            )
            for _ in range(2)
        )
    )


def train(model: nn.Module, *more: torch.Tensor) -> list[torch.Tensor]:
    """The loss and the gradients of one step."""
    model.zero_grad(set_to_none=True)
    x = torch.randn(128, 32, generator=torch.Generator().manual_seed(1))
    loss = model(x, *more)
    loss.backward()
    gradients = [p.grad for p in model.parameters() if p.grad is not None]
    return [v.detach().clone() for v in (loss, *gradients)]


def graphs_of(model: nn.Module) -> int:
    call = lowtide.planned(model)
    assert call is not None
    return call.watch.graphs


@pytest.mark.parametrize("asks", [torch.compiler.is_dynamo_compiling, is_traced])
def test_takes_the_path_of_eager(asks: Callable[[], bool]) -> None:
    torch.manual_seed(0)
    model = Asks(asks)
    wanted = train(model)
    lowtide.optimize(model, budget="85%")
    assert all(map(same_bits, wanted, train(model)))
    assert graphs_of(model) == 1


def test_warns_where_it_is_told_that_it_is_compiled() -> None:
    torch.manual_seed(0)
    model = Asks(is_traced, looks=True)
    wanted = train(model)
    lowtide.optimize(model, budget="85%")
    with pytest.warns(LowtideWarning, match="It is told yes") as told:
        found = train(model)
    assert [__file__ in str(w.message) for w in told] == [True]
    # Only there: what it asks at the end is answered as in eager.
    assert all(map(same_bits, wanted, found))
    assert all(map(same_bits, wanted, train(model)))
    assert graphs_of(model) == 1


def by_jump(mask: torch.Tensor) -> Any:
    return mask.all()


def by_item(mask: torch.Tensor) -> Any:
    return mask.all().item()


def by_bool(mask: torch.Tensor) -> Any:
    return bool((mask == 1).all())


def by_negation(mask: torch.Tensor) -> Any:
    return not (~mask).any()


def by_alternative(mask: torch.Tensor) -> Any:
    return mask.sum() == mask.numel() or mask.all()


def in_libraries(mask: torch.Tensor) -> Any:
    return not is_traced() and mask[:, : mask.shape[1]].all()


def after_a_change(mask: torch.Tensor) -> Any:
    return mask.clone().logical_not_().logical_not_().all()


def behind_a_change(mask: torch.Tensor) -> Any:
    mask.logical_not_()
    answer = ~mask
    mask.logical_not_()
    return answer.all()


class Hides(nn.Module):
    """Leaves out a mask that hides nothing, as transformers do."""

    def __init__(self, asks: Callable[[torch.Tensor], Any]) -> None:
        super().__init__()
        self.asks, self.inner = asks, blocks()

    def forward(self, x: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        if self.asks(mask):
            return self.inner(x).square().mean()
        weights = mask.float().sum(1)[:, None]
        return (self.inner(x) * weights).double().square().mean().float()


@pytest.mark.parametrize(
    ("asks", "most_graphs"),
    [
        (by_jump, 2),
        (by_item, 2),
        (by_bool, 2),
        (by_negation, 2),
        (by_alternative, 2),
        (in_libraries, 2),
        (after_a_change, None),
        (behind_a_change, None),
    ],
)
def test_looks_at_the_values_of_inputs(
    asks: Callable[[torch.Tensor], Any], most_graphs: int | None
) -> None:
    torch.manual_seed(0)
    model = Hides(asks)
    everything = torch.ones(128, 4, dtype=torch.bool)
    something = everything.clone()
    something[:2, 0] = False
    nothing = torch.zeros_like(everything)
    masks = [everything, something, nothing, everything.clone(), something]
    wanted = [train(model, mask) for mask in masks]
    lowtide.optimize(model, budget="90%")
    found = [train(model, mask) for mask in masks]
    for ours, plain in zip(found, wanted, strict=True):
        assert all(map(same_bits, ours, plain))
    if most_graphs is not None:
        assert graphs_of(model) == most_graphs


class Draws(nn.Module):
    """Decides by a number that is drawn anew in each step."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = blocks()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.inner(x)
        return (x * 2 if torch.rand([]) < 0.5 else x).square().mean()


def test_what_is_drawn_is_no_constant() -> None:
    torch.manual_seed(0)
    model = Draws()

    def steps() -> list[list[torch.Tensor]]:
        torch.manual_seed(1)
        return [train(model) for _ in range(6)]

    wanted = steps()
    lowtide.optimize(model, budget="64 MiB", planner="recompute_all")
    for ours, plain in zip(steps(), wanted, strict=True):
        assert all(map(same_bits, ours, plain))
    assert len({plain[0].item() for plain in wanted}) == 2


def test_looks_at_inputs_of_other_sizes() -> None:
    torch.manual_seed(0)
    model = Hides(in_libraries)
    masks = [torch.ones(128, width, dtype=torch.bool) for width in (4, 6, 9, 5)]
    masks += [mask.clone() for mask in masks]
    for mask in masks[4:]:
        mask[:2, 0] = False
    wanted = [train(model, mask) for mask in masks]
    lowtide.optimize(model, budget="90%")
    found = [train(model, mask) for mask in masks]
    for ours, plain in zip(found, wanted, strict=True):
        assert all(map(same_bits, ours, plain))
    assert graphs_of(model) <= 4


def is_traced_or_recorded() -> bool:
    """As transformers ask; a torch without GPUs cannot answer it in a graph."""
    try:
        return torch.compiler.is_compiling() or torch.cuda.is_current_stream_capturing()
    except Exception:
        return False


class AsksBetween(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(32, 32), nn.Linear(32, 32)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = torch.tanh(self.first(x))
        if is_traced_or_recorded():
            x = x.clone()
        return self.second(x).square().mean()


@pytest.mark.skipif(torch.version.cuda is not None, reason="it can be answered there")
def test_a_question_that_cannot_be_captured_does_not_cut_the_graph() -> None:
    model = AsksBetween()
    assert len(lowtide.profile(model, torch.randn(8, 32), how="estimate").pieces) == 1


@pytest.mark.parametrize("hides", [False, True])
def test_profile_looks_at_the_values_of_inputs_too(hides: bool) -> None:
    torch.manual_seed(0)
    mask = torch.ones(128, 4, dtype=torch.bool)
    mask[0, 0] = not hides
    batch = (torch.randn(128, 32), mask)
    step = lowtide.profile(Hides(in_libraries), batch, how="estimate")
    assert any("_to_copy" in op.target for op in step.ops) == hides
    assert len(step.pieces) == 1

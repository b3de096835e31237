"""Models that ask whether they are being compiled, and take another path then."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import nn

import lowtide
from lowtide.engine.bits import same_bits


def is_traced() -> bool:
    """As libraries ask: through a function of their own."""
    return torch.compiler.is_compiling()


class Asks(nn.Module):
    """Told yes, it sums in another order; told no, it may look at its input."""

    def __init__(self, asks: Callable[[], bool], *, looks: bool) -> None:
        super().__init__()
        width = 32
        self.asks, self.looks = asks, looks
        self.inner = nn.Sequential(
            *(
                nn.Sequential(
                    nn.Linear(width, 8 * width), nn.GELU(), nn.Linear(8 * width, width)
                )
                for _ in range(2)
            )
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.looks and not is_traced() and (x > 100).all():
            x = x + 1
        x = self.inner(x)
        if self.asks():
            return x.double().square().mean().float()
        return x.square().mean()


def train(model: nn.Module) -> list[torch.Tensor]:
    """The loss and the gradients of one step."""
    model.zero_grad(set_to_none=True)
    x = torch.randn(128, 32, generator=torch.Generator().manual_seed(1))
    loss = model(x)
    loss.backward()
    return [loss.detach(), *(p.grad for p in model.parameters() if p.grad is not None)]


@pytest.mark.parametrize(
    ("asks", "looks"),
    [(torch.compiler.is_dynamo_compiling, False), (is_traced, True)],
)
def test_takes_the_path_of_eager(
    asks: Callable[[], bool], looks: bool, caplog: pytest.LogCaptureFixture
) -> None:
    torch.manual_seed(0)
    model = Asks(asks, looks=looks)
    wanted = [v.clone() for v in train(model)]
    lowtide.optimize(model, budget="85%")
    with caplog.at_level("INFO", "lowtide.run"):
        found = train(model)
    assert all(map(same_bits, wanted, found))
    call = lowtide.planned(model)
    assert call is not None
    assert call.watch.graphs == 1
    # Where it looks at values it is told yes, and only there; that is said.
    said = [text for text in caplog.messages if "It is told yes" in text]
    assert [__file__ in text for text in said] == [True] * looks
    assert len(call.watch.answers.yes) == looks


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


def test_profile_asks_for_no_values_either() -> None:
    torch.manual_seed(0)
    step = lowtide.profile(
        Asks(is_traced, looks=True), (torch.randn(128, 32),), how="estimate"
    )
    assert not any("_to_copy" in op.target for op in step.ops)

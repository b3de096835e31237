"""Recurrent layers, whose kernels torch keeps out of captured graphs by default."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

import lowtide
from lowtide.engine.bits import same_bits


class Reader(nn.Module):
    def __init__(self, kind: Any, **options: Any) -> None:
        super().__init__()
        self.before = nn.Linear(8, 8)
        self.layer = kind(8, 8, batch_first=True, **options)
        self.after = nn.LazyLinear(4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.after(self.layer(self.before(x).relu())[0]).square().mean()


def gradients(net: nn.Module, x: torch.Tensor) -> list[torch.Tensor]:
    found: list[torch.Tensor] = []
    for _ in range(2):
        net.zero_grad()
        found.append(net(x))
        found[-1].backward()
        found += [p.grad.clone() for p in net.parameters() if p.grad is not None]
    return found


@pytest.mark.parametrize("kind", [nn.LSTM, nn.GRU, nn.RNN])
@pytest.mark.parametrize("options", [{}, {"num_layers": 2, "bidirectional": True}])
def test_a_recurrent_layer_is_planned_and_gives_the_same_bits(
    kind: Any, options: dict[str, Any]
) -> None:
    torch.manual_seed(0)
    net, x = Reader(kind, **options), torch.randn(4, 3, 8)
    net(x)
    plain = gradients(net, x)
    lowtide.optimize(net, budget="100%", time_limit=0.2)
    ours = gradients(net, x)
    assert all(map(same_bits, plain, ours))
    call = lowtide.planned(net)
    assert call is not None
    assert (call.watch.graphs, call.watch.left) == (1, [])


class Cells(nn.Module):
    def __init__(self, kind: Any, width: int) -> None:
        super().__init__()
        self.cell = kind(width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        state = None
        for time in x.unbind(1):
            state = self.cell(time, state)
        return (state if isinstance(state, torch.Tensor) else state[0]).square().mean()


@pytest.mark.parametrize("kind", [nn.GRUCell, nn.LSTMCell])
def test_gates_that_are_slices_round_as_eager_does(kind: Any) -> None:
    # Rows of 20 do not fill whole vectors, and then their ends round otherwise.
    torch.manual_seed(0)
    net, x = Cells(kind, 20), torch.randn(6, 2, 20)
    plain = gradients(net, x)
    lowtide.optimize(net, budget="100%", time_limit=0.2)
    assert all(map(same_bits, plain, gradients(net, x)))

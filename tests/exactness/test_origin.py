"""`verify` names the op at which a planned step begins to differ."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

import lowtide
from lowtide.engine.graphs import orders
from lowtide.errors import VerificationError


def net() -> nn.Module:
    layers: list[nn.Module] = []
    for _ in range(5):
        layers += [nn.Linear(16, 16), nn.Sigmoid(), nn.Dropout(0.5)]
    return nn.Sequential(*layers)


def wrong_sigmoid(x: torch.Tensor) -> torch.Tensor:
    return torch.sigmoid(x) * (1 + 2**-20)


def verified() -> Any:
    torch.manual_seed(0)
    return lowtide.verify(
        net(),
        (torch.randn(512, 16),),
        loss=lambda y: y.square().mean(),
        budget="60%",
        measured=False,
    )


def test_a_right_plan_has_no_origin():
    found = verified()
    assert found.ok
    assert found.origin == ""


@pytest.mark.parametrize("half", ["forward", "backward"])
def test_a_wrong_op_is_named(half: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """In the backward it is one that runs again."""
    split = orders.split
    sigmoids = (torch.ops.aten.sigmoid.default, torch.ops.aten.sigmoid_.default)

    def wrong_split(*args: Any, **kwargs: Any) -> Any:
        halves = split(*args, **kwargs)
        nodes = getattr(halves, half).graph.nodes
        next(n for n in nodes if n.target in sigmoids).target = wrong_sigmoid
        return halves

    monkeypatch.setattr(orders, "split", wrong_split)
    found = verified()
    assert not found.ok
    assert half == "forward" or found.loss_equal
    assert found.origin.startswith("wrong_sigmoid of ")
    assert found.origin.endswith(f" in the {half}")
    with pytest.raises(VerificationError, match="arises at wrong_sigmoid of "):
        found.raise_if_failed()

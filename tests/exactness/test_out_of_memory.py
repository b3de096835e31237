"""What is said when an allocation of a planned step fails."""

import pytest
import torch
from torch import nn

import lowtide


@torch.library.custom_op("lowtide_test::takes_all", mutates_args=())
def takes_all(x: torch.Tensor) -> torch.Tensor:
    """Ask for more than any machine has, as the allocator itself refuses it."""
    return torch.empty(1 << 60, dtype=torch.uint8)[: x.numel()].view(x.shape)


@takes_all.register_fake
def _(x):
    return torch.empty_like(x)


takes_all.register_autograd(lambda ctx, gradient: gradient)


@torch.library.custom_op("lowtide_test::late", mutates_args=())
def late(x: torch.Tensor) -> torch.Tensor:
    return x.clone()


late.register_fake(lambda x: torch.empty_like(x))
late.register_autograd(lambda ctx, gradient: takes_all(gradient))


class Greedy(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.small = nn.Linear(8, 16)
        self.large = nn.Linear(16, 4096)
        self.act = nn.ReLU()

    def forward(self, x):
        return takes_all(self.act(self.large(self.small(x)))).sum()


def test_an_error_says_what_the_step_held():
    model = lowtide.optimize(Greedy(), budget="100%", planner="keep_all")
    with pytest.raises(RuntimeError, match="allocate") as caught:
        model(torch.randn(64, 8))
    (note,) = caught.value.__notes__
    lines = note.splitlines()
    assert lines[0].startswith("lowtide: the step held 1.")
    # 64 x 4096 numbers of 4 bytes, against 64 x 16 and the weights.
    assert lines[1].split() == ["1.00", "MiB", "act"]
    assert "parameters" in note
    assert "A budget that fits" in lines[-1]


def test_an_error_of_the_backward_says_it_too():
    class Late(Greedy):
        def forward(self, x):
            return late(self.act(self.large(self.small(x)))).sum()

    model = lowtide.optimize(Late(), budget="100%", planner="keep_all")
    loss = model(torch.randn(64, 8))
    with pytest.raises(RuntimeError, match="allocate") as caught:
        loss.backward()
    (note,) = caught.value.__notes__
    assert "lowtide: the step held" in note
    assert "A budget that fits" in note


def test_another_error_is_left_as_it_is():
    model = lowtide.optimize(nn.Linear(4, 4), budget="100%")
    with pytest.raises(Exception, match="mat1") as caught:
        model(torch.randn(2, 3))
    assert not getattr(caught.value, "__notes__", [])

"""The same numbers are the same bits."""

import pytest
import torch

from lowtide.engine.bits import Unchanged, first_difference, same_bits


def nan(payload: int) -> torch.Tensor:
    return torch.tensor([0x7FC00000 + payload], dtype=torch.int32).view(torch.float32)


def test_the_sign_of_a_zero_counts():
    assert not same_bits(torch.tensor([0.0]), torch.tensor([-0.0]))
    assert "1 differ" in first_difference(torch.tensor([0.0]), torch.tensor([-0.0]))


def test_a_nan_equals_itself_and_no_other():
    assert same_bits(nan(1), nan(1))
    assert not same_bits(nan(1), nan(2))


@pytest.mark.parametrize(
    "dtype", [torch.bool, torch.bfloat16, torch.float64, torch.complex64, torch.int16]
)
def test_every_type_and_layout(dtype: torch.dtype):
    value = torch.randn(3, 4).to(dtype)
    assert same_bits(value, value.t().contiguous().t())
    assert same_bits(value, value.to_sparse())
    other = value.clone()
    other[2, 3] = other[2, 3] + 1 if dtype != torch.bool else ~other[2, 3]
    assert not same_bits(value, other)
    assert "at element 11 (1 differ)" in first_difference(value, other)


def test_shapes_and_types_count():
    assert not same_bits(torch.zeros(2), torch.zeros(1, 2))
    assert "torch.int32" in first_difference(torch.zeros(2), torch.zeros(2).int())


def test_a_change_behind_autograds_back_is_seen():
    value = torch.zeros(4)
    unchanged = Unchanged([("it", value)])
    assert unchanged.first_changed() is None
    value.numpy()[3] = -0.0
    assert unchanged.first_changed() == "it"

"""The largest batch: where it is looked for, and what it is verified by."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

import lowtide
from lowtide import BudgetFormatError, BudgetTooSmallError, StepGraph
from lowtide.engine.jobs.batch import (
    BatchRow,
    Measured,
    best_row,
    confirm_largest,
    find_largest,
)
from lowtide.errors import InvalidArgumentError


def chain(size: int, fixed: int = 100, each: int = 10, step: int = 1) -> StepGraph:
    """A step whose lowest peak is fixed + 3 * each * ceil(size / step)."""
    nbytes = each * -(-size // step)
    return StepGraph.from_text(
        f"""
        resident w {fixed}
        a = f(w)       {nbytes} bytes  1 s
        turn(a) -> d   {nbytes} bytes
        g = h(a, d)    {nbytes} bytes  1 s
        -> g
        """
    )


def test_the_largest_size_that_fits():
    # 100 + 30 n <= 1000 holds up to n = 30.
    tried: list[int] = []

    def step_at(size):
        tried.append(size)
        return chain(size)

    size, plan = find_largest(step_at, 1000)
    assert size == 30
    assert plan.peak_bytes == 1000
    assert len(tried) <= 5
    assert max(tried) == 31  # the next larger one was tried, and does not fit


@given(
    fixed=st.integers(1, 500),
    each=st.integers(1, 50),
    jump=st.integers(1, 7),
    most=st.integers(1, 300),
)
def test_it_is_found_although_the_peak_grows_in_jumps(fixed, each, jump, most):
    budget = fixed + 3 * each * -(-most // jump)
    expected = -(-most // jump) * jump
    if jump >= 4:  # then 1 and 4 samples need the same
        with pytest.raises(InvalidArgumentError):
            find_largest(lambda n: chain(n, fixed, each, jump), budget)
        return
    size, plan = find_largest(lambda n: chain(n, fixed, each, jump), budget)
    assert size == expected
    assert plan.peak_bytes <= budget


def test_a_size_known_to_fit_is_where_the_search_begins():
    known = {20: find_largest(chain, 1000)[1]}
    assert find_largest(chain, 1000, known=known)[0] == 30


def test_a_size_found_by_estimate_is_confirmed_by_measuring():
    # An estimate found 30. Measured, a step needs 500 + 39 n, so 1000 bytes hold 12.
    tried: list[int] = []

    def measured_at(size):
        tried.append(size)
        return chain(size, 500, 13)

    found = confirm_largest(measured_at, 30, 1000)
    assert found is not None
    assert found[0] == 12
    assert found[1].peak_bytes <= 1000
    assert tried == sorted(tried, reverse=True)
    assert len(tried) <= 5
    # A size that is known to fit is not measured again, and nothing may fit at all.
    known = {12: found[1]}
    assert confirm_largest(measured_at, 13, 1000, known=known) == (12, found[1])
    assert confirm_largest(measured_at, 3, 500) is None


def test_not_even_one_sample():
    with pytest.raises(BudgetTooSmallError) as caught:
        find_largest(chain, 120)
    assert caught.value.floor_bytes == 130


def test_a_batch_that_does_not_grow_is_refused():
    with pytest.raises(InvalidArgumentError, match=r"make_batch\(n\) return n samples"):
        find_largest(lambda n: chain(4), 1000)


def test_largest_batch_of_a_model_is_verified_by_a_capture():
    model = nn.Sequential(nn.Linear(16, 64), nn.GELU(), nn.Linear(64, 16))

    def make_batch(n):
        return torch.randn(n, 16)

    size = lowtide.largest_batch(model, make_batch, budget="100 KiB")
    fits = lowtide.profile(model, make_batch(size), how="estimate")
    assert lowtide.plan(fits, budget="100 KiB").peak_bytes <= 102400
    larger = lowtide.profile(model, make_batch(size + 1), how="estimate")
    with pytest.raises(BudgetTooSmallError):
        lowtide.plan(larger, budget="100 KiB")
    assert all(p.grad is None for p in model.parameters())


def test_a_share_is_no_budget_for_a_batch_size():
    with pytest.raises(BudgetFormatError, match="baseline peak, which is not known"):
        lowtide.largest_batch(nn.Linear(2, 2), lambda n: None, budget="60%")


def test_rows_prefer_what_was_measured():
    row = BatchRow(8, 100, 2.0, 50, 4.0)
    assert (row.baseline_samples_per_second, row.planned_samples_per_second) == (4, 2)
    real = BatchRow(8, 100, 2.0, 50, 4.0, Measured(90, 1.0), Measured(40, 2.0))
    assert (real.baseline_samples_per_second, real.planned_samples_per_second) == (8, 4)
    too_large = BatchRow(16, 200, 4.0, None, None)
    assert too_large.planned_samples_per_second is None
    assert best_row([row, real, too_large]) is real
    assert best_row([too_large]) is None
    assert (
        lowtide.report(chain(1), [real.to_dict()]).to_dict()["batch"][0]["batch"] == 8
    )

"""The frontier of a step, and the lowest peak for a given time."""

from __future__ import annotations

import pytest

from lowtide import plan
from lowtide.errors import BudgetTooSmallError, InvalidArgumentError
from lowtide.planners._sweep import lowest_peak, sweep
from lowtide.step.simulate import simulate
from tests.graphs import chain, residual, transformer


def test_time_never_rises_with_the_budget_and_every_point_fits() -> None:
    step = transformer(1)
    frontier = sweep(step, budgets=6, time_limit=3.0)
    seconds = [p.seconds for p in frontier.points]
    assert seconds == sorted(seconds, reverse=True)
    for p in frontier.points:
        assert simulate(step, p.plan.schedule).peak_bytes == p.peak_bytes
        assert p.peak_bytes <= p.budget_bytes
        assert p.plan.proof.bound_seconds <= p.seconds
    assert frontier.points[-1].overhead == pytest.approx(0.0)
    assert frontier.points[0].budget_bytes == frontier.floor_bytes
    assert frontier.knee in frontier.points


def test_a_list_of_budgets_is_answered_one_by_one() -> None:
    step = residual(4)
    frontier = sweep(step, budgets=["100%", "75%", 1], time_limit=2.0)
    assert frontier.unreachable == (1,)
    assert [p.budget_bytes for p in frontier.points] == [
        step.baseline_peak_bytes * 3 // 4,
        step.baseline_peak_bytes,
    ]
    assert frontier.points[-1].overhead == pytest.approx(0.0)


def test_every_planner_has_a_frontier() -> None:
    frontier = sweep(chain(8), budgets=4, planner="chen_sqrt", time_limit=1.0)
    seconds = [p.seconds for p in frontier.points]
    assert seconds == sorted(seconds, reverse=True)
    assert "knee" in str(frontier)


def test_only_unreachable_budgets_are_an_error() -> None:
    with pytest.raises(BudgetTooSmallError):
        sweep(chain(4), budgets=[1], time_limit=1.0)


def test_one_point_is_no_frontier() -> None:
    with pytest.raises(InvalidArgumentError):
        sweep(chain(4), budgets=1)


@pytest.mark.parametrize("planner", ["auto", "chen_greedy"])
def test_the_lowest_peak_keeps_to_the_time(planner: str) -> None:
    step = residual(4)
    plan = lowest_peak(step, max_overhead=0.1, planner=planner, time_limit=2.0)
    assert plan.overhead <= 0.1 + 1e-9
    assert plan.peak_bytes <= step.baseline_peak_bytes


def test_no_extra_time_still_allows_a_better_order() -> None:
    step = residual(4)
    plan = lowest_peak(step, max_overhead=0.0, time_limit=1.0)
    assert plan.overhead <= 1e-9


def test_negative_overhead_is_refused() -> None:
    with pytest.raises(InvalidArgumentError):
        plan(chain(4), max_overhead=-0.1)

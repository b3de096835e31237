"""How far the search of `auto` stays from the optimum when it is left to itself.

Steps this small are normally solved exactly, and the other planners are starts as well.
Here both are switched off, as they are of no use on real steps: what is judged is what
plans those. That it finds the optimum on all of these is measured, not promised: a
change that makes the search worse is seen here.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

import pytest

from lowtide.errors import BudgetTooSmallError
from lowtide.planners.auto import _search
from lowtide.step.graph import StepGraph
from tests.oracle import INFINITE, least_seconds_within, random_step, walk
from tests.unit.test_auto_exact import least_seconds, small_step

# In work, not by the clock: the same on every machine.
SEARCH_SECONDS = 0.2
# Seeds whose optimum the oracle finds quickly.
MIDDLING = (0, 2, 5, 6, 7, 12, 13, 17, 19, 20, 21, 22, 23, 24, 25, 28, 29)


def still() -> float:
    """A clock that stands."""
    return 0.0


@pytest.fixture(autouse=True)
def only_the_search(monkeypatch: pytest.MonkeyPatch) -> None:
    """No exact part, no other planners, and a floor that depends on no clock."""

    def lowest(step: StepGraph, *_: float):
        return _search.Search(step, SEARCH_SECONDS, clock=still).lowest()

    def no_plans(*_: object, **__: object) -> Iterable[tuple[int, ...]]:
        return ()

    monkeypatch.setattr(_search, "EXACT_OPS", 0)
    monkeypatch.setattr(_search, "other_plans", no_plans)
    monkeypatch.setattr(_search, "lowest", lowest)


@dataclass(frozen=True)
class Compared:
    """One budget that some schedule fits: the search's time over the optimum's."""

    step: str
    budget_bytes: int
    ratio: float


def budget_at(step: StepGraph, share: float) -> int:
    span = step.baseline_peak_bytes - step.resident_bytes
    return step.resident_bytes + int(share * span)


def compared(steps: Iterable[StepGraph], shares: Iterable[float]) -> list[Compared]:
    """The search against the oracle wherever there is a schedule at all."""
    rows: list[Compared] = []
    shares = tuple(shares)
    for step in steps:
        for budget in (budget_at(step, share) for share in shares):
            best = least_seconds_within(step, budget)
            if best == INFINITE:
                continue
            try:
                search = _search.Search(replace(step), SEARCH_SECONDS, clock=still)
                plan = search.fastest(budget)
            except BudgetTooSmallError:
                seconds = INFINITE
            else:
                walked = walk(step, plan.ops)
                assert walked.peak_bytes <= budget
                seconds = walked.seconds
            assert seconds >= best * (1 - 1e-9), "the oracle is not the optimum"
            rows.append(Compared(step.name, budget, seconds / best))
    return rows


def test_the_search_finds_the_optimum_on_steps_of_about_twenty_ops() -> None:
    rows = compared((random_step(seed, 8) for seed in MIDDLING), [0.8])
    assert len(rows) == 17
    assert all(row.ratio < 1 + 1e-9 for row in rows), rows


def test_the_search_finds_the_optimum_at_tight_budgets() -> None:
    rows = compared((random_step(seed, 6) for seed in range(20)), [0.8, 0.65, 0.55])
    assert len(rows) == 21
    assert all(row.ratio < 1 + 1e-9 for row in rows), rows


def test_the_search_finds_the_optimum_across_graph_breaks() -> None:
    steps = (random_step(seed, 6, breaks=1 + seed % 2) for seed in range(8))
    rows = compared(steps, [0.85, 0.7])
    assert len(rows) >= 8
    assert all(row.ratio < 1 + 1e-9 for row in rows), rows


def test_what_is_evicted_may_be_made_again_long_before_its_use() -> None:
    """An op of the backward runs again while what it reads is still there."""
    step = random_step(5014, 8, breaks=1)
    assert _search.Search(step, SEARCH_SECONDS, clock=still).lowest().peak_bytes <= 55


@pytest.mark.parametrize("first_seed", range(0, 60, 20))
def test_the_oracle_agrees_with_trying_everything(first_seed: int) -> None:
    for seed in range(first_seed, first_seed + 20):
        step = small_step(seed)
        for less in (0, 1, 3, 6):
            budget = step.baseline_peak_bytes - less
            expected = least_seconds(step, budget)
            assert least_seconds_within(step, budget) == pytest.approx(expected)

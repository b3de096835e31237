"""What auto promises on every kind of step: never worse, monotone, same, anytime."""

from __future__ import annotations

import itertools
import time
from dataclasses import replace

import pytest

from lowtide import planners
from lowtide.errors import BudgetTooSmallError, InvalidScheduleError
from lowtide.planners.auto import _effort, _search, frontier, lowest_within, plan
from lowtide.planners.auto._effort import Effort
from lowtide.planners.auto._floor import descend, sink
from lowtide.planners.auto._problem import Problem
from lowtide.planners.auto._search import Search
from lowtide.step.graph import StepGraph
from lowtide.step.simulate import simulate
from tests.graphs import GRAPHS, chain, residual, transformer

OTHERS = [n for n in planners.available() if n not in ("auto", "checkmate")]


def budget_at(step: StepGraph, share: float) -> int:
    """A budget between the residents and the baseline peak."""
    span = step.baseline_peak_bytes - step.resident_bytes
    return step.resident_bytes + int(share * span)


def seconds_at(step: StepGraph, name: str, budget: int) -> float:
    try:
        found = planners.load(name).plan(step, budget, time_limit=0.5)
    except (BudgetTooSmallError, InvalidScheduleError):
        return float("inf")
    assert simulate(step, found.schedule).peak_bytes <= budget
    return found.seconds


@pytest.mark.parametrize(
    "step",
    [
        pytest.param(g, marks=[pytest.mark.slow] * (g.name == "random3_24"), id=g.name)
        for g in GRAPHS
    ],
)
def test_no_other_planner_is_faster(step: StepGraph) -> None:
    budget = budget_at(step, 0.6)
    ours = seconds_at(step, "auto", budget)
    theirs = min(seconds_at(step, name, budget) for name in OTHERS)
    assert ours <= theirs * (1 + 1e-9)


@pytest.mark.parametrize("step", GRAPHS[::3], ids=lambda g: g.name)
def test_no_other_planner_reaches_a_lower_peak(step: StepGraph) -> None:
    ours = plan(step, None, time_limit=1.0)
    for name in OTHERS:
        try:
            theirs = planners.load(name).plan(step, None, time_limit=0.5)
        except InvalidScheduleError:
            continue
        assert ours.peak_bytes <= theirs.peak_bytes, name


@pytest.mark.parametrize("step", GRAPHS[::4], ids=lambda g: g.name)
def test_time_never_rises_along_a_frontier(step: StepGraph) -> None:
    floor = plan(step, None, time_limit=1.0).peak_bytes
    peak = step.baseline_peak_bytes
    budgets = [floor + (peak - floor) * k // 6 for k in range(7)]
    found = frontier(step, budgets, time_limit=1.0)
    seconds = [p.seconds for p in found if p is not None]
    assert seconds == sorted(seconds, reverse=True)
    for budget, p in zip(budgets, found, strict=True):
        assert p is None or p.peak_bytes <= budget
        assert p is None or p.proof.bound_seconds <= p.seconds


def test_a_slow_machine_finds_the_same_plan(monkeypatch: pytest.MonkeyPatch) -> None:
    step = residual(8)
    budget = budget_at(step, 0.4)
    first = plan(replace(step), budget, time_limit=0.1)
    # A slow machine: its clock shows a hour more each time it is asked.
    clock = itertools.count(step=3600).__next__
    monkeypatch.setattr(_effort, "PATIENCE_SECONDS", float("inf"))
    second = _search.Search(replace(step), 0.1, clock=clock).fastest(budget)
    assert first.to_dict() == second.to_dict()


def test_a_tiny_time_limit_still_gives_a_valid_plan() -> None:
    step = transformer(2)
    budget = budget_at(step, 0.7)
    begun = time.perf_counter()
    found = plan(step, budget, time_limit=0.05)
    # If nothing fits in time the floor is looked for, which takes a few seconds.
    assert time.perf_counter() - begun < 15.0
    assert simulate(step, found.schedule).peak_bytes <= budget


def test_an_interrupt_gives_the_best_so_far(monkeypatch: pytest.MonkeyPatch) -> None:
    step = transformer(2)

    def interrupted(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(_search.Search, "improve", interrupted)
    monkeypatch.setattr(_search.Search, "is_close", lambda _: False)
    budget = budget_at(step, 0.5)
    found = plan(step, budget, time_limit=2.0)
    assert found.proof.stopped_by == "interrupted"
    assert simulate(step, found.schedule).peak_bytes <= budget


def test_an_interrupt_before_anything_fits_is_passed_on(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    step = transformer(2)

    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(_search.Search, "begin", interrupted)
    with pytest.raises(KeyboardInterrupt):
        plan(step, budget_at(step, 0.5), time_limit=2.0)


def test_a_budget_below_the_floor_is_refused_with_the_floor() -> None:
    step = chain(8)
    floor = plan(step, None, time_limit=2.0).peak_bytes
    with pytest.raises(BudgetTooSmallError) as error:
        plan(step, step.resident_bytes + 1, time_limit=2.0)
    assert error.value.floor_bytes >= floor


def test_the_lowest_peak_within_a_time_takes_no_longer() -> None:
    step = residual(6)
    limit = 1.05 * step.baseline_seconds
    found = lowest_within(step, limit, time_limit=2.0)
    assert found.seconds <= limit
    assert found.peak_bytes < step.baseline_peak_bytes


def test_effort_is_shared_out_by_sections() -> None:
    evaluator = Problem(chain(1)).evaluator
    effort = Effort(evaluator, 1.0, clock=lambda: 0.0)
    with effort.section(0.5):
        evaluator.spend(0.4)
        assert not effort.is_over()
        evaluator.spend(0.2)
        assert effort.is_over()
        assert effort.stopped_by == ""
    assert not effort.is_over()
    evaluator.spend(0.5)
    assert effort.is_over()
    assert effort.stopped_by == "time_limit"


def test_what_is_set_aside_counts_in_no_section() -> None:
    evaluator = Problem(chain(1)).evaluator
    effort = Effort(evaluator, 1.0, clock=lambda: 0.0)
    with effort.section(0.5), effort.aside(9.0):
        evaluator.spend(8.0)
    assert effort.seconds_left() == pytest.approx(1.0)


def test_the_clock_ends_a_search_only_in_an_emergency() -> None:
    now = 0.0
    effort = Effort(Problem(chain(1)).evaluator, 1.0, clock=lambda: now)
    now = 35.0
    assert not effort.is_over()
    now = 60.0
    assert effort.is_over()
    assert effort.stopped_by == "clock"


@pytest.mark.slow
def test_a_hundred_layers_take_less_than_a_minute() -> None:
    step = transformer(100)
    begun = time.perf_counter()
    found = plan(step, budget_at(step, 0.5), time_limit=30.0)
    assert time.perf_counter() - begun < 60.0
    assert found.peak_bytes <= budget_at(step, 0.5)


def test_a_step_that_holds_nothing_from_op_to_op():
    step = StepGraph.from_text("""
        resident x 8
        turn(x) -> d   4 bytes
        da = f(x, d)   4 bytes 1 s
        -> da
    """)
    assert plan(step, 1 << 20).overhead == 0


def test_a_short_time_limit_is_no_reason_to_fail():
    step = transformer(130, tokens=64, width=32)
    budget = budget_at(step, 0.5)
    assert plan(step, budget, time_limit=0.01).peak_bytes <= budget


def test_ops_change_places_where_that_alone_lowers_the_peak():
    # What is drawn cannot be made again, so it waits from its place on. As captured,
    # p (20), a (12), q (4) and x (1) are alive at once: 37. If q is made before a is
    # drawn, at most x, p and q are: 25. After that nothing needs more than x, a and two
    # links of the chain: 21.
    links = [f"c{k + 1} = h(c{k})  4 bytes 1 s" for k in range(58)]
    step = StepGraph.from_text(
        "\n".join(
            (
                "resident x 1",
                "p = f(x)        20 bytes 1 s",
                "a = draw(x)     12 bytes 1 s random",
                "c0 = g(p)       4 bytes 1 s",
                *links,
                "z = j(c58, a)   4 bytes 1 s",
                "turn(z) -> d    4 bytes",
                "dx = k(d)       4 bytes 1 s",
                "-> dx",
            )
        )
    )
    assert len(step.ops) == 64
    assert step.baseline_peak_bytes == 37
    found = plan(step, None)
    assert found.peak_bytes == 25
    assert found.recomputed == ()
    assert sorted(found.ops) == list(step.baseline)
    # The same within a budget.
    assert plan(step, 25).overhead == 0.0


def test_plans_come_down_from_larger_budgets() -> None:
    # Three blocks at the lowest peak that evictions find: what is found with 5 % more
    # room and brought down is faster than what begins and stays there.
    search = Search(transformer(3), 2.0, clock=lambda: 0.0)
    sink(search.problem, search.base, search.effort, offer=search.offer)
    start = min(search.drafts, key=lambda draft: draft.peak_bytes)
    search.budget = start.peak_bytes
    given = search.problem, start, search.budget, search.effort
    descend(*given, offer=search.offer)
    best = search.best()
    assert best is not None
    assert best.seconds < search.raise_up(start).seconds

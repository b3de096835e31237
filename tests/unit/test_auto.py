"""What auto promises on every kind of step: never worse, monotone, same, anytime."""

from __future__ import annotations

import time

import pytest

from lowtide import planners
from lowtide.errors import BudgetTooSmallError, InvalidScheduleError
from lowtide.planners.auto import _search, frontier, lowest_within, plan
from lowtide.planners.auto._draft import Draft
from lowtide.planners.auto._effort import Effort
from lowtide.planners.auto._evict import Evictor
from lowtide.planners.auto._keep import Remover
from lowtide.planners.auto._problem import Problem
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


@pytest.mark.parametrize("step", GRAPHS, ids=lambda g: g.name)
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


@pytest.mark.parametrize("step", GRAPHS[::3], ids=lambda g: g.name)
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


def test_the_same_work_gives_the_same_plan() -> None:
    step = residual(8)
    budget = budget_at(step, 0.4)
    # Work stops the search here, not the clock.
    search = [_search.Search(step, 0.5, clock=lambda: 0.0) for _ in range(2)]
    first, second = (s.fastest(budget) for s in search)
    assert first.schedule == second.schedule
    assert first.proof.bound_seconds == second.proof.bound_seconds


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

    monkeypatch.setattr(_search, "improve", interrupted)
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


@pytest.mark.parametrize("step", GRAPHS, ids=lambda g: g.name)
def test_a_draft_agrees_with_the_simulator(step: StepGraph) -> None:
    from lowtide.step.schedule import with_frees

    problem = Problem(step)
    draft = Draft(problem, problem.baseline)
    budget = budget_at(step, 0.6)
    evictor = Evictor(draft, float(budget))
    storage, start, stop, _ = (a.tolist() for a in evictor.candidates())
    for s, a, b in list(zip(storage, start, stop, strict=True))[:20]:
        eviction = evictor.evaluate(s, a, b, rate=1.0)
        if eviction is None:
            continue
        following = draft.with_inserted([(eviction.position, eviction.cone)])
        timeline = simulate(step, with_frees(step, following.ops))
        assert timeline.peak_bytes == following.peak_bytes
        assert timeline.seconds == pytest.approx(following.seconds)
        removal = Remover(following)
        for position in removal.repeated():
            without = following.without(removal.removal(position).positions)
            timeline = simulate(step, with_frees(step, without.ops))
            assert timeline.peak_bytes == without.peak_bytes


@pytest.mark.parametrize("step", GRAPHS, ids=lambda g: g.name)
def test_a_removal_is_scored_as_it_turns_out(step: StepGraph) -> None:
    problem = Problem(step)
    recomputing = planners.load("recompute_all").plan(step, None)
    draft = Draft(problem, recomputing.ops)
    remover = Remover(draft)
    for position in remover.repeated()[:30]:
        removal = remover.removal(position)
        without = draft.without(removal.positions)
        assert without.seconds == pytest.approx(draft.seconds - removal.seconds)
        for slack in (0.0, -1.0):
            budget = without.peak_bytes + slack
            assert remover.fits(removal, budget) == (without.peak_bytes <= budget) or (
                remover.live.max() > budget
            )


def test_effort_is_shared_out_by_sections() -> None:
    problem = Problem(chain(1))
    effort = Effort(problem, 1.0, clock=lambda: 0.0)
    with effort.section(0.5):
        problem.units = 0.4 * effort.limit_units
        assert not effort.is_over()
        problem.units = 0.6 * effort.limit_units
        assert effort.is_over()
        assert effort.stopped_by == ""
    assert not effort.is_over()
    problem.units = effort.limit_units
    assert effort.is_over()
    assert effort.stopped_by == "time_limit"


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

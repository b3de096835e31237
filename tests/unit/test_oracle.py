"""The simulator against the tests' own executor, on schedules right and wrong.

Both know every kind of item: runs, runs again, frees, replays, ops that run once, graph
breaks, updates, after which a parameter may not be read, and ops that write over an
argument where that is freed behind them.
"""

from __future__ import annotations

import random
from collections import Counter

import pytest

from lowtide.errors import BudgetTooSmallError, InvalidScheduleError
from lowtide.planners import available, load
from lowtide.step.graph import StepGraph
from lowtide.step.plan import Free, Item, Run
from lowtide.step.schedule import settled, with_frees, without_spending
from lowtide.step.simulate import simulate
from tests.oracle import (
    INFINITE,
    ImpossibleError,
    execute,
    least_seconds_within,
    random_step,
)

MUTATIONS = 40


def planned(step: StepGraph, share: float) -> tuple[Item, ...]:
    """A schedule that recomputes, with its updates behind what they end."""
    plain = without_spending(step)
    span = plain.baseline_peak_bytes - plain.resident_bytes
    try:
        found = load("dtr").plan(plain, plain.resident_bytes + int(share * span))
    except BudgetTooSmallError:
        found = load("recompute_all").plan(plain, None)
    return with_frees(step, settled(step, found.ops))


def changed(step: StepGraph, items: list[Item], rng: random.Random) -> list[Item]:
    """The schedule with one item moved, doubled, left out, or put in."""
    items = list(items)
    place, other = rng.randrange(len(items)), rng.randrange(len(items))
    kind = rng.randrange(5)
    if kind == 0:
        items.insert(other, items.pop(place))
    elif kind == 1:
        items.insert(other, items[place])
    elif kind == 2:
        del items[place]
    elif kind == 3:
        items.insert(place, Run(rng.randrange(len(step.ops))))
    else:
        items.insert(place, Free(rng.randrange(len(step.storages))))
    return items


def executed(step: StepGraph, items: list[Item]) -> tuple[int, float, list[int]] | int:
    """What the oracle says of a schedule, or which item it refuses."""
    try:
        return execute(step, items)
    except ImpossibleError as wrong:
        return wrong.index


def verdict(step: StepGraph, items: list[Item]) -> str:
    """What both say, which has to be the same."""
    found = executed(step, items)
    if isinstance(found, int):
        with pytest.raises(InvalidScheduleError) as refused:
            simulate(step, items)
        assert refused.value.index == found
        return "impossible"
    peak, seconds, live = found
    timeline = simulate(step, items)
    assert timeline.peak_bytes == peak
    assert timeline.seconds == pytest.approx(seconds)
    assert list(timeline.live_bytes) == live
    return "possible"


@pytest.mark.parametrize("breaks", [0, 1, 2])
@pytest.mark.parametrize("updates", [False, True])
def test_simulator_and_oracle_agree_on_every_item(breaks: int, updates: bool) -> None:
    rng = random.Random(f"{breaks} {updates}")
    seen: Counter[str] = Counter()
    for seed in range(8):
        step = random_step(seed, 6, breaks=breaks, updates=updates)
        items = list(planned(step, 0.7))
        assert verdict(step, items) == "possible"
        for _ in range(MUTATIONS):
            seen[verdict(step, changed(step, items, rng))] += 1
    assert min(seen["possible"], seen["impossible"]) > MUTATIONS


def test_simulator_and_oracle_agree_on_what_is_written_over() -> None:
    rng = random.Random("over")
    seen: Counter[str] = Counter()
    for seed in range(8):
        step = random_step(seed, 6, overwrites=True)
        assert any(op.over >= 0 for op in step.ops)
        items = list(planned(step, 0.7))
        for _ in range(MUTATIONS):
            seen[verdict(step, changed(step, items, rng))] += 1
    assert min(seen["possible"], seen["impossible"]) > MUTATIONS


@pytest.mark.parametrize("seed", range(6))
def test_auto_is_optimal_on_steps_that_write_over(seed: int) -> None:
    step = random_step(seed, 5, overwrites=True)
    found = load("auto").plan(step, None)
    lowest = found.peak_bytes
    assert least_seconds_within(step, lowest) < INFINITE
    assert least_seconds_within(step, lowest - 1) == INFINITE
    middle = (lowest + step.baseline_peak_bytes) // 2
    plan = load("auto").plan(step, middle)
    assert execute(step, plan.schedule)[0] <= middle
    assert plan.seconds == pytest.approx(least_seconds_within(step, middle))


@pytest.mark.parametrize("planner", available())
def test_every_planner_knows_what_is_written_over(planner: str) -> None:
    step = random_step(3, 6, overwrites=True)
    plan = load(planner).plan(step, None)
    assert execute(step, plan.schedule)[0] == plan.peak_bytes


def test_a_parameter_may_not_be_read_once_it_is_updated() -> None:
    step = random_step(0, 5, updates=True)
    update = next(op for op in step.ops if op.spends)
    reader = next(
        op for op in step.ops if update.spends[0] in op.reads and not op.spends
    )
    late = [*with_frees(step, step.baseline), Run(reader.id)]
    assert verdict(step, late) == "impossible"


@pytest.mark.parametrize("seed", range(6))
def test_updates_that_are_placed_afterwards_never_beat_the_optimum(seed: int) -> None:
    step = random_step(seed, 5, updates=True)
    plan = load("dtr").plan(without_spending(step), None)
    schedule = with_frees(step, settled(step, plan.ops))
    peak, seconds, _ = execute(step, schedule)
    best = least_seconds_within(step, peak)
    assert best < INFINITE
    assert seconds >= best * (1 - 1e-9)

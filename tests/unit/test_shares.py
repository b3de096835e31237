"""How a budget is divided among the graphs of a step."""

from dataclasses import replace

import pytest

from lowtide.engine.prepare import _with_update
from lowtide.engine.shares import plans_by_share, with_updates
from lowtide.errors import BudgetTooSmallError
from lowtide.planners import load
from lowtide.step import graph
from lowtide.step.graph import StepGraph
from tests.graphs import chain


def test_several_graphs_are_planned_without_looking_for_their_floors(monkeypatch):
    # A floor takes seconds for each graph, whatever the time limit.
    monkeypatch.setattr(graph, "find_floor", lambda step: pytest.fail("a floor"))
    steps, asked = [chain(6), chain(8)], []

    def find(step, limit):
        asked.append(limit)
        return load("chen_greedy").plan(step, limit)

    plans, most, _ = plans_by_share(steps, [2, 3], "100%", find)
    assert None not in asked
    assert not any(plan.recomputed for plan in plans)
    asked.clear()
    plans, peak, budget = plans_by_share(steps, [2, 3], most * 8 // 10, find)
    assert asked.count(None) == len(steps)
    assert peak <= budget < most
    assert any(plan.recomputed for plan in plans)


def test_the_update_runs_when_no_graph_holds_anything():
    def find(step, limit):
        return load("keep_all").plan(step, limit)

    alone = chain(6)
    peak = plans_by_share([alone], [3], "100%", find)[1]
    small = _with_update(alone, 8)
    assert plans_by_share([small], [3], "100%", find)[1] == peak
    # Three runs hold more than three of their gradients.
    held = (peak - alone.resident_bytes) // 2
    large = _with_update(alone, held)
    assert large.baseline_peak_bytes > alone.baseline_peak_bytes
    assert plans_by_share([large], [3], "100%", find)[1] == peak


def test_a_gradient_that_the_next_backward_takes_is_not_left_behind():
    # At its turn the graph keeps y, 100 bytes, which is more than dw. At its peak there
    # are y, dy, dx and dw. So each further run adds 100 bytes to that; dx is passed on.
    step = StepGraph.from_text("""
        resident x 300 input
        resident w 4 parameter
        y = f(x, w)      100 bytes 1 s
        turn(y) -> dy    100 bytes
        dx = fb(y, dy)   300 bytes 1 s
        dw = fw(dy)      4 bytes   1 s
        -> y, dx, dw
    """)
    named = {"dx": "grad of x", "dw": "grad of w"}
    storages = [replace(s, name=named.get(s.name, s.name)) for s in step.storages]
    step = replace(step, storages=tuple(storages))

    def find(step, limit):
        return load("keep_all").plan(step, limit)

    once = plans_by_share([step], [1], "100%", find)[1]
    assert once == step.baseline_peak_bytes
    assert plans_by_share([step], [3], "100%", find)[1] == once + 200


def test_the_lowest_peak_with_updates_can_be_asked_for():
    # At its lowest, 80 bytes for a and b, the step makes a again after w. That reads p,
    # so the update of p comes later than it would, and dp is there beside w.
    step = StepGraph.from_text("""
        resident x 1 input
        resident p 1 parameter
        a  = f(x, p)      40 bytes 1 s
        b  = g(a)         40 bytes 1 s
        turn(b) -> d      1 bytes
        dp = pb(x, d)     30 bytes 1 s
           = update(p, dp) bytes   1 s  updates p
        w  = h(x, d)      60 bytes 1 s
        v  = k(w)         1 bytes  1 s
        dq = qb(a, v)     1 bytes  1 s
        -> dq
    """)

    def find(step, limit):
        return load("auto").plan(step, limit, time_limit=0.05)

    with pytest.raises(BudgetTooSmallError) as caught:
        with_updates(step, 1, find)
    error = caught.value
    assert (error.budget_bytes, error.floor_bytes) == (1, 93)
    assert error.bound_bytes <= 93
    assert with_updates(step, 93, find).peak_bytes == 93
    with pytest.raises(BudgetTooSmallError, match="budget 90 B"):
        with_updates(step, 90, find)

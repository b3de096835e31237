"""How a budget is divided among the graphs of a step."""

from dataclasses import replace

import pytest

from lowtide.engine.planning.prepare import _with_update
from lowtide.engine.planning.shares import plans_by_share, with_updates
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


def test_a_planner_that_needs_more_than_the_baseline_is_not_refused():
    step = chain(6)
    most = step.baseline_peak_bytes

    def find(step, limit):
        plan = load("recompute_all").plan(step)
        if limit is not None and limit < most + 100:
            raise BudgetTooSmallError(limit, most + 100)
        return plan

    plans, peak, budget = plans_by_share([step, step], [1, 1], 100 * most, find)
    assert peak <= budget
    assert len(plans) == 2


def test_runs_of_one_model_share_their_gradients():
    # Each run keeps y, 10 bytes; its gradients are w's 100. Beside the second run there
    # are those of the first.
    step = StepGraph.from_text("""
        resident x 10 input
        resident w 100 parameter
        y  = f(x, w)     10 bytes  1 s
        turn(y) -> dy    10 bytes
        dw = fw(y, dy)   100 bytes 1 s
        -> y, dw
    """)
    storages = [
        replace(s, name=s.name.replace("dw", "grad of w")) for s in step.storages
    ]
    step = replace(step, storages=tuple(storages))

    def find(step, limit):
        return load("keep_all").plan(step, limit)

    def peak(runs, is_same):
        return plans_by_share([step], [runs], "100%", find, is_same=is_same)[1]

    assert peak(1, True) == peak(1, False) == step.baseline_peak_bytes
    assert peak(2, True) == step.baseline_peak_bytes + 100
    assert peak(4, True) == step.baseline_peak_bytes + 100 + 2 * 10
    assert peak(4, False) == step.baseline_peak_bytes + 3 * 100

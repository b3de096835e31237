"""The online rule: sequences and scores by hand, its plans on every test step."""

from __future__ import annotations

from contextlib import suppress

import pytest

from lowtide.errors import BudgetTooSmallError
from lowtide.planners import dtr
from lowtide.step.graph import StepGraph
from lowtide.step.simulate import simulate
from tests import graphs


def names(step: StepGraph, sequence) -> str:
    return " ".join(step.ops[i].name for i in sequence)


# Under 22: a 10, b 10; h needs 10 more, b is held, so a goes. b 10, c 10, d 1, dc 1
# fit. cb, bb run; ab reads a, so f runs again.
CHAIN = StepGraph.from_text("""
    resident x 0
    a = f(x)       10 bytes 1 s
    b = g(a)       10 bytes 1 s
    c = h(b)       10 bytes 1 s
    turn(c) -> d    1 bytes
    dc = cb(c, d)   1 bytes 1 s
    db = bb(b, dc)  1 bytes 1 s
    da = ab(a, db)  1 bytes 1 s
    -> da
""")


def test_evicts_only_what_is_needed_and_makes_it_again() -> None:
    plan = dtr.plan(CHAIN, 22)
    assert names(CHAIN, plan.ops) == "f g h turn cb bb f ab"
    assert plan.peak_bytes == 22
    assert plan.seconds == 7
    # With room for everything (a, b, c, d, dc: 32) nothing is evicted.
    assert names(CHAIN, dtr.plan(CHAIN, 32).ops) == names(CHAIN, CHAIN.baseline)
    # Under 21, cb would evict b, and making b again needs a 10, b 10, d 1, dc 1.
    assert dtr.plan(CHAIN).peak_bytes == 22
    with pytest.raises(BudgetTooSmallError) as error:
        dtr.plan(CHAIN, 21)
    assert error.value.floor_bytes == 22


# a is done with after g: evicted. When w needs 10 of 25 bytes, 23 are used: b 10, c 10,
# z, y, v 1 each. b and c were last read 2 s ago (by y; v took 2 s).
# By its own seconds b would go, 1/(10*2) < 3/(10*2), and come back by f and g. But a is
# evicted, so b counts its seconds too: (1+10)/20. c is 3/20 and goes (z: 1/(1*6) is
# above it).
CHOICE = StepGraph.from_text("""
    resident x 0
    a = f(x)      10 bytes 10 s
    b = g(a)      10 bytes  1 s
    z = zz(b)      1 bytes  1 s
    c = k(x)      10 bytes  3 s
    y = yy(b, c)   1 bytes  1 s
    v = vv(x)      1 bytes  2 s
    w = ww(x)     10 bytes  1 s
    turn() -> d    0 bytes
    db = bb(b, d)  0 bytes  1 s
    dc = cb(c, d)  0 bytes  1 s
    dz = zb(z, y, v, w) 0 bytes 1 s
    -> db, dc, dz
""")


def test_the_neighbourhood_decides() -> None:
    plan = dtr.plan(CHOICE, 25)
    assert names(CHOICE, plan.ops) == "f g zz k yy vv ww turn bb k cb zb"


def test_what_was_not_used_for_long_goes_first() -> None:
    # c needs 10 of 25 bytes. a and b cost the same, but k has just read a.
    step = StepGraph.from_text("""
        resident x 0
        a = f(x)         10 bytes 2 s
        b = g(x)         10 bytes 2 s
        y = k(a)          1 bytes 1 s
        c = h(x)         10 bytes 1 s
        turn() -> d       0 bytes
        dc = cb(c, y, d)  0 bytes 1 s
        db = bb(b, d)     0 bytes 1 s
        da = ab(a, d)     0 bytes 1 s
        -> da, db, dc
    """)
    assert names(step, dtr.plan(step, 25).ops) == "f g k h turn cb g bb ab"


def test_classes_join_on_eviction_and_shrink_on_remaking() -> None:
    facts = dtr._Facts(CHAIN)
    a, b, c = (next(s.id for s in CHAIN.storages if s.name == n) for n in "abc")
    classes = dtr._Classes(facts)
    classes.evicted(a)
    assert classes.neighbourhood_seconds(b) == 1
    classes.evicted(c)
    assert classes.neighbourhood_seconds(b) == 2
    classes.evicted(b)  # Joins both: 3 s in one class.
    assert classes.find(classes.member[a]) == classes.find(classes.member[c])
    classes.remade(b)
    # b is out, but a and c stay in one class: the rule never splits.
    assert classes.neighbourhood_seconds(b) == 2
    classes.remade(a)
    assert classes.neighbourhood_seconds(b) == 1


def test_what_cannot_be_made_again_is_held_while_it_may_be_needed() -> None:
    # m is drawn once and read by g_again, which makes b for gb. Under 24, c (10) makes
    # room by evicting b: m 2 must survive until b has been made again.
    step = StepGraph.from_text("""
        resident x 0
        b, m = g(x)         10 2 bytes 1 s random
        b    = g_again(x, m) 10 bytes  1 s standby
        e    = k(b)          4 bytes   1 s
        c    = h(x)         10 bytes   1 s
        turn(c) -> d         1 bytes
        dc   = cb(c, d)      1 bytes   1 s
        db   = gb(b, e, dc)  1 bytes   1 s
        -> db
    """)
    plan = dtr.plan(step, 18)
    assert names(step, plan.ops) == "g k h turn cb g_again gb"


def test_thrashing_fails_instead_of_going_on() -> None:
    step = graphs.chain(12)
    facts = dtr._Facts(step)
    floor = max(facts.least_bytes(i) for i in step.baseline)
    assert dtr._Cache(facts, floor).run() is None
    for sequence in (p.ops for p in [dtr.plan(step)]):
        assert len(sequence) <= dtr._THRASHING * len(step.baseline)


@pytest.mark.parametrize("step", graphs.GRAPHS, ids=lambda s: s.name)
def test_plans_fit_and_run_the_step_in_order(step: StepGraph) -> None:
    lowest = dtr.plan(step)
    assert dtr.plan(step).schedule == lowest.schedule
    for share in (0.4, 0.6, 0.8, 1.0):
        budget = int(share * step.baseline_peak_bytes)
        if budget < lowest.peak_bytes:
            with suppress(BudgetTooSmallError):
                plan = dtr.plan(step, budget)
                assert plan.peak_bytes <= budget
            continue
        plan = dtr.plan(step, budget)
        assert simulate(step, plan.schedule).peak_bytes == plan.peak_bytes <= budget
        first = [i for i in dict.fromkeys(plan.ops) if not step.ops[i].standby]
        assert tuple(first) == step.baseline
    again = dtr.plan(step, lowest.peak_bytes)
    assert again.peak_bytes <= lowest.peak_bytes


def test_a_residual_network_trades_little_time_for_half_the_peak() -> None:
    step = graphs.residual(16, pixels=65536)
    plan = dtr.plan(step, step.baseline_peak_bytes // 2)
    assert plan.overhead < 0.2

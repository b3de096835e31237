"""Other forms of ops: what they replace, when they are chosen, what stays proven."""

from __future__ import annotations

from dataclasses import replace

import pytest

from lowtide.errors import BudgetTooSmallError, LowtideError
from lowtide.planners import load
from lowtide.planners.auto import frontier, lowest_within
from lowtide.planners.auto._forms import cases
from lowtide.planners.auto._problem import Problem
from lowtide.planners.auto._search import Search
from lowtide.step.forms import forms, groups, in_form, replaced
from lowtide.step.graph import StepGraph, check_graph
from lowtide.step.simulate import simulate
from tests.oracle import least_seconds_within, random_step, walk

# A head and its loss: logits of 100 bytes, or 10 at a time. The plain step needs 200
# where the softmax is made. With both forms the most is h, d, w, g and the scratch.
HEAD = """
resident t 0
h       = layer(t)          10 bytes  1 s
x       = head(h)           100 bytes 3 s
p       = softmax(x)        100 bytes 1 s
l       = loss(p)           1 bytes   1 s
l       = head_loss(h)      1 bytes   5 s  standby scratch 10
turn(l) -> d                1 bytes
q       = loss_back(d, p)   100 bytes 1 s
g       = head_back(q)      10 bytes  3 s
w       = weight_back(q, h) 20 bytes  3 s
g, w    = head_gradients(d, h)  10 20 bytes 12 s  standby scratch 10
e       = layer_back(g)     5 bytes   1 s
-> w, e
"""


# The same with a third way: gradients with the loss, which wait for theirs. While that
# arrives, h, d, u, w, g and 30 bytes are there; w takes the place of v.
AHEAD = HEAD.replace(
    "turn(l)",
    "l, v, u = head_ahead(h)     1 20 10 bytes 12 s standby scratch 30\nturn(l)",
).replace(
    "e       =",
    "w, g = head_arrived(d, h, v, u)  20 10 bytes 0 s standby over v scratch 30\ne   =",
)


@pytest.fixture
def head() -> StepGraph:
    return StepGraph.from_text(HEAD)


def test_a_form_replaces_what_nobody_else_needs(head: StepGraph) -> None:
    assert [head.ops[i].target for i in forms(head)] == ["head_loss", "head_gradients"]
    gone = replaced(head, forms(head))
    assert [head.ops[i].target for i in sorted(gone)] == [
        *("head", "softmax", "loss", "loss_back", "head_back", "weight_back")
    ]
    # Its backward still reads the softmax.
    assert [head.ops[i].target for i in replaced(head, forms(head)[:1])] == ["loss"]


def test_a_step_in_form_is_a_step_whose_sequences_are_those_of_the_step(
    head: StepGraph,
) -> None:
    own = in_form(head, forms(head))
    check_graph(own.step)
    names = ["layer", "head_loss", "lowtide::turn", "head_gradients", "layer_back"]
    assert [head.ops[i].target for i in own.numbers] == names
    assert own.original(own.step.baseline) == list(own.numbers)


@pytest.mark.parametrize(
    ("budget", "seconds", "names"),
    [
        (211, 14.0, set()),  # all that the plain step takes
        (210, 15.0, set()),  # without h, which is made again
        (199, 19.0, {"head_loss", "head_gradients"}),  # x and p do not fit
        (51, 19.0, {"head_loss", "head_gradients"}),  # h, d, g, w and the scratch
    ],
)
def test_forms_run_where_the_budget_asks_for_them(
    head: StepGraph, budget: int, seconds: float, names: set[str]
) -> None:
    plan = load("auto").plan(head, budget, time_limit=0.2)
    assert plan.seconds == pytest.approx(seconds)
    ran = {head.ops[i].target for i in plan.ops if head.ops[i].standby}
    assert ran == names
    assert plan.proof.bound_seconds <= plan.seconds
    assert simulate(head, plan.schedule).peak_bytes == plan.peak_bytes <= budget


def test_the_floor_is_that_of_the_forms(head: StepGraph) -> None:
    assert head.floor_bytes == 51
    with pytest.raises(BudgetTooSmallError) as caught:
        load("auto").plan(head, 50, time_limit=0.2)
    assert caught.value.floor_bytes == 51 >= caught.value.bound_bytes


def test_sweeps_use_them_too(head: StepGraph) -> None:
    plans = frontier(head, [50, 51, 211], time_limit=0.5)
    assert [plan and plan.peak_bytes for plan in plans] == [None, 51, 211]
    assert lowest_within(head, 14.0, time_limit=0.3).peak_bytes == 211
    assert lowest_within(head, 19.0, time_limit=0.3).peak_bytes == 51


@pytest.mark.parametrize("seed", range(12))
def test_no_schedule_is_better_than_what_is_proven(seed: int) -> None:
    step = random_step(seed, 4, forms=True)
    check_graph(step)
    span = step.baseline_peak_bytes - step.resident_bytes
    for share in (0.5, 0.7, 0.9):
        budget = step.resident_bytes + int(share * span)
        least = least_seconds_within(step, budget)
        try:
            plan = load("auto").plan(step, budget, time_limit=0.2)
        except BudgetTooSmallError:
            continue  # none, or only some of the forms would do
        assert plan.peak_bytes <= budget
        assert plan.proof.bound_seconds <= least * (1 + 1e-9)
        assert least <= plan.seconds * (1 + 1e-9)


def test_what_every_maker_needs_has_to_run() -> None:
    step = StepGraph.from_text("""
resident t 0
a  = first(t)     1 bytes 1 s
b  = second(a)    1 bytes 1 s
c  = third(b)     1 bytes 1 s
c  = other(a)     1 bytes 1 s  standby
d  = fourth(c)    1 bytes 1 s
-> d
""")
    number = {op.target: op.id for op in step.ops}
    problem = Problem(step)
    # Whether c is made of b or of a, a was there.
    assert problem.must_run == {number["first"], number["fourth"]}
    assert problem.comes_before(number["first"], number["fourth"])
    assert not problem.comes_before(number["second"], number["fourth"])
    without = Problem(step, never=frozenset({number["other"]}))
    assert without.must_run == set(step.baseline)
    both = Problem(step, sure=frozenset({number["other"]}))
    assert both.must_run == {number[name] for name in ("first", "other", "fourth")}


def test_each_choice_of_forms_is_proven_by_itself() -> None:
    # Half of the form and half of what it replaces would fit at little cost: the plain
    # head holds 100 bytes where a is kept too, which costs 6 s to make again.
    step = StepGraph.from_text("""
resident t 0
a       = long(t)            40 bytes  6 s
h       = layer(a)           10 bytes  1 s
x       = head(h)            60 bytes  1 s
l       = loss(x)            1 bytes   1 s
l, r    = head_loss(h)       1 10 bytes   5 s  standby
turn(l) -> d                 1 bytes
g       = head_back(d, x)    10 bytes  1 s
g       = head_part(d, r)    10 bytes  1 s  standby
e       = layer_back(g, a)   5 bytes   1 s
-> e
""")
    plan = load("auto").plan(step, 90, time_limit=0.5)
    search = Search(step, 0.5)
    search.budget = 90.0
    search.offer(search.evaluator.draft(plan.ops))
    search.prove(1.0)
    assert search.proven < plan.proof.bound_seconds
    assert plan.proof.bound_seconds <= least_seconds_within(step, 90) * (1 + 1e-9)


def test_of_several_forms_the_fastest_that_fits_is_taken() -> None:
    step = StepGraph.from_text(AHEAD)
    assert sorted(map(len, groups(step))) == [1, 1, 2]
    check_graph(step)
    both, whole = {"head_loss", "head_gradients"}, {"head_ahead", "head_arrived"}
    for budget, seconds, names in (
        (199, 14.0, whole),
        (81, 14.0, whole),
        (80, 19.0, both),
    ):
        plan = load("auto").plan(step, budget, time_limit=0.2)
        ran = {step.ops[i].target for i in plan.ops if step.ops[i].standby}
        assert (plan.seconds, ran) == (pytest.approx(seconds), names)
        assert simulate(step, plan.schedule).peak_bytes == plan.peak_bytes <= budget
        assert walk(step, plan.ops).peak_bytes == plan.peak_bytes
        assert plan.proof.bound_seconds <= least_seconds_within(step, budget)
    assert step.floor_bytes == 51
    plans = frontier(step, [51, 81, 211], time_limit=0.5)
    assert [plan and plan.seconds for plan in plans] == pytest.approx([19, 14, 14])


def test_what_only_forms_make_is_made_for_forms() -> None:
    text = "resident t 0\na = f(t) 1 bytes 1 s\nb = g(c) 1 bytes 1 s\n-> a"
    with pytest.raises(LowtideError):
        StepGraph.from_text(text)
    step = StepGraph.from_text(AHEAD)
    wrong = [
        replace(op, standby=False) if op.target == "head_arrived" else op
        for op in step.ops
    ]
    with pytest.raises(ValueError, match="before it is made"):
        check_graph(replace(step, ops=tuple(wrong)))


def test_a_form_does_not_run_without_the_one_that_it_needs() -> None:
    step = StepGraph.from_text(AHEAD)
    number = {step.ops[i].target: i for i in forms(step)}
    used = [case.used for case in cases(step)]
    # Of four forms there are 16 choices. One reads what another makes: of the 8 choices
    # with it, 4 are without that other one, and no schedule is of their kind.
    assert len(used) == len(set(used)) == 12
    assert not any(
        number["head_arrived"] in choice and number["head_ahead"] not in choice
        for choice in used
    )

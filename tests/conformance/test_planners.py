"""What every planner owes, whatever its idea. A new file in `planners/` is tested here.

Each planner runs on every step of `tests.graphs` without a budget, with budgets from
the baseline down, and with one byte. What it answers must be a valid schedule within
the budget, or an error with a floor that can be reached.
"""

import json
import math
from dataclasses import replace
from itertools import pairwise

import pytest

from lowtide import planners
from lowtide.errors import BudgetTooSmallError
from lowtide.planners.auto import _search
from lowtide.step.graph import StepGraph
from lowtide.step.plan import Plan, Run
from lowtide.step.schedule import crossing
from lowtide.step.simulate import simulate
from tests.graphs import GRAPHS, chain

FRACTIONS = (0.9, 0.75, 0.6, 0.45)
TIME_LIMIT = 0.3

# These follow a rule step by step, and a larger budget can lead them astray.
MAY_SLOW_DOWN = {"dtr", "mu_two", "checkmate"}

Answer = Plan | BudgetTooSmallError

STEPS = {step.name: step for step in GRAPHS}

every_planner = pytest.mark.parametrize("name", planners.available())
# The largest random step with `make test-slow`.
every_step = pytest.mark.parametrize(
    "step_name",
    [
        pytest.param(name, marks=[pytest.mark.slow] * (name == "random3_24"))
        for name in STEPS
    ],
)


@pytest.fixture(autouse=True)
def no_clock(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let only counted work end the search of `auto`, however busy the machine is."""
    defaults = _search.Search.__init__.__kwdefaults__
    assert "clock" in defaults
    monkeypatch.setitem(defaults, "clock", lambda: 0.0)
    monkeypatch.setattr(_search, "FLOOR_SECONDS", 1.0)


def call(name: str, step: StepGraph, budget_bytes: int | None) -> Plan:
    return planners.load(name).plan(step, budget_bytes, time_limit=TIME_LIMIT)


def ask(name: str, step: StepGraph, budget_bytes: int | None) -> Answer:
    try:
        return call(name, step, budget_bytes)
    except BudgetTooSmallError as error:
        return error


def budgets(step: StepGraph) -> list[int]:
    return [math.ceil(f * step.baseline_peak_bytes) for f in FRACTIONS]


def check_plan(plan: Plan, step: StepGraph, budget_bytes: int) -> None:
    """The plan is what it says: simulate it again and compare every figure."""
    timeline = simulate(step, plan.schedule)
    assert timeline.peak_bytes == plan.peak_bytes <= budget_bytes
    assert timeline.seconds == pytest.approx(plan.seconds)
    assert plan.baseline_peak_bytes == step.baseline_peak_bytes
    assert plan.baseline_seconds == pytest.approx(step.baseline_seconds)
    assert plan.seconds >= step.baseline_seconds * (1 - 1e-9)
    assert plan.fingerprint == step.fingerprint
    assert plan.kept == crossing(step, plan.ops)
    ran = [item.op for item in plan.schedule if isinstance(item, Run)]
    again = {n for n in ran if step.ops[n].standby or ran.count(n) > 1}
    assert set(plan.recomputed) == again
    assert 0 <= plan.proof.gap <= 1
    assert plan.proof.bound_seconds <= plan.seconds * (1 + 1e-9)
    assert plan.proof.bound_bytes <= plan.peak_bytes


@every_planner
@every_step
def test_a_planner_keeps_its_promises(name, step_name):
    # One test for all of them: the answers are shared, and some take a while.
    step = STEPS[step_name]
    answers = {budget: ask(name, step, budget) for budget in budgets(step)}
    for budget_bytes, found in answers.items():
        check_fits_or_floor_is_true(name, step, budget_bytes, found)
        check_survives_json(found)
    check_the_lowest_is_the_floor(name, step, answers)
    if name not in MAY_SLOW_DOWN:
        check_never_slower_with_more(answers)


def check_fits_or_floor_is_true(
    name: str, step: StepGraph, budget_bytes: int, found: Answer
) -> None:
    if isinstance(found, Plan):
        assert found.planner == name
        assert found.budget_bytes == budget_bytes
        check_plan(found, step, budget_bytes)
    else:
        assert found.budget_bytes == budget_bytes < found.floor_bytes
        assert found.blame
        check_plan(call(name, step, found.floor_bytes), step, found.floor_bytes)


def check_survives_json(found: Answer) -> None:
    if isinstance(found, Plan):
        assert Plan.from_dict(json.loads(json.dumps(found.to_dict()))) == found


def check_the_lowest_is_the_floor(
    name: str, step: StepGraph, answers: dict[int, Answer]
) -> None:
    lowest = call(name, step, None)
    check_plan(lowest, step, lowest.budget_bytes)
    impossible = ask(name, step, 1)
    assert isinstance(impossible, BudgetTooSmallError)
    assert impossible.floor_bytes == lowest.peak_bytes
    for found in answers.values():
        if isinstance(found, Plan):
            assert lowest.peak_bytes <= found.peak_bytes
        else:
            assert lowest.peak_bytes == found.floor_bytes


def check_never_slower_with_more(answers: dict[int, Answer]) -> None:
    seconds = [
        found.seconds if isinstance(found, Plan) else math.inf
        for _, found in sorted(answers.items())
    ]
    for smaller, larger in pairwise(seconds):
        assert larger <= smaller * (1 + 1e-9)


@every_planner
@every_step
def test_the_baseline_costs_nothing(name, step_name):
    if name == "recompute_all":
        return  # recomputes whatever the budget
    step = STEPS[step_name]
    plan = call(name, step, step.baseline_peak_bytes)
    assert plan.seconds == pytest.approx(step.baseline_seconds)


@every_planner
@pytest.mark.parametrize("step_name", ["uneven12", "residual4", "gpt2", "random3_24"])
def test_the_same_question_has_the_same_answer(name, step_name):
    # Copies, so that nothing remembered for the first can help with the second.
    first, second = (
        ask(name, replace(STEPS[step_name]), budgets(STEPS[step_name])[1])
        for _ in range(2)
    )
    if isinstance(first, Plan):
        assert isinstance(second, Plan)
        assert first.schedule == second.schedule
    else:
        assert isinstance(second, BudgetTooSmallError)
        assert first.floor_bytes == second.floor_bytes


@every_planner
def test_planning_leaves_the_step_alone(name):
    step = chain(3)
    before = json.dumps(step.to_dict())
    call(name, step, step.baseline_peak_bytes)
    call(name, step, None)
    assert json.dumps(step.to_dict()) == before


@every_planner
def test_a_step_without_backward_runs_as_it_is(name):
    step = StepGraph.from_text("""
        resident x 8
        a = f(x)   16 bytes 1 s
        b = g(a)   4 bytes  1 s
        -> b
    """)
    assert call(name, step, None).ops == (0, 1)


@every_planner
def test_a_step_that_saves_nothing(name):
    step = StepGraph.from_text("""
        resident w 8
        a = f(w)       4 bytes 1 s
        turn(a) -> d   4 bytes
        g = fb(d, w)   8 bytes 1 s
        -> a, g
    """)
    plan = call(name, step, None)
    assert plan.seconds == step.baseline_seconds
    assert plan.peak_bytes == step.baseline_peak_bytes

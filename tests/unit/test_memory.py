"""What planners remember of a step never changes the step, nor a later answer."""

from __future__ import annotations

import gc
from dataclasses import fields, replace
from functools import cached_property

import pytest

from lowtide import planners
from lowtide.planners import _memory
from lowtide.planners._memory import recall
from lowtide.planners.auto._search import Search
from lowtide.step.graph import StepGraph
from tests.graphs import chain, residual


def still() -> float:
    """A clock that stands: only counted work ends the search."""
    return 0.0


def test_what_was_planned_before_does_not_change_a_plan() -> None:
    step = residual(4)
    span = step.baseline_peak_bytes - step.resident_bytes
    budget = step.resident_bytes + int(0.7 * span)
    expected = Search(replace(step), 0.02, clock=still).fastest(budget)
    thorough = Search(step, 0.6, clock=still).fastest(budget)
    assert thorough.seconds < expected.seconds
    # Little work finds what it would have found without the search before it.
    after = Search(step, 0.02, clock=still).fastest(budget)
    assert after.schedule == expected.schedule


@pytest.mark.parametrize("name", planners.available())
def test_planning_adds_nothing_to_the_step(name: str) -> None:
    step = chain(3)
    own = {f.name for f in fields(step)}
    own |= {n for n, v in vars(StepGraph).items() if isinstance(v, cached_property)}
    planners.load(name).plan(step, step.baseline_peak_bytes, time_limit=0.1)
    planners.load(name).plan(step, None, time_limit=0.1)
    assert vars(step).keys() <= own


def test_an_answer_is_looked_for_once_for_each_step_and_question() -> None:
    step, twin = chain(1), chain(1)
    asked: list[str] = []

    def find() -> int:
        asked.append("")
        return len(asked)

    assert [recall(step, "a", find) for _ in range(3)] == [1, 1, 1]
    assert recall(step, "b", find) == 2
    assert recall(twin, "a", find) == 3


def test_an_answer_that_is_not_final_is_not_remembered() -> None:
    step = chain(1)
    answers = iter((1, 2, 3))
    found = [
        recall(step, "a", lambda: next(answers), is_final=lambda n: n == 2)
        for _ in range(3)
    ]
    assert found == [1, 2, 2]


def test_nothing_is_remembered_of_a_step_that_is_gone() -> None:
    step = chain(1)
    identity = id(step)
    recall(step, "a", lambda: 1)
    assert identity in _memory._answers
    del step
    gc.collect()
    assert identity not in _memory._answers

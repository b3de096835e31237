"""Differences of plans and of steps."""

from dataclasses import replace

import pytest

import lowtide
from lowtide import StepGraph, planners
from lowtide.errors import InvalidArgumentError, PlanMismatchError
from tests.report_steps import SMALL, dropping, gpt
from tests.unit.test_report_text import check_golden


def test_golden_diff():
    step = gpt(6)
    first, second = dropping(step, 0.3), dropping(step, 0.7, "dtr")
    check_golden("diff.txt", f"{lowtide.diff(first, second, step=step)}\n")


def test_golden_diff_of_steps():
    check_golden("diff_steps.txt", f"{lowtide.diff(gpt(4), gpt(6))}\n")


def test_plans_are_compared_to_the_byte():
    step = StepGraph.from_text(SMALL)
    first = planners.load("keep_all").plan(step)
    second = planners.load("recompute_all").plan(step)
    made = lowtide.diff(first, second, step=step)
    changes = {c.name: (c.first, c.second) for c in made.changes}
    assert changes["peak"] == (first.peak_bytes, second.peak_bytes)
    assert changes["time"] == (first.seconds, second.seconds) == (6, 8)
    titles = {p.title: p.rows for p in made.parts}
    # a 16 and b 40 are kept by the one, and made again by f and g in the other.
    assert titles["Kept only by keep_all"] == (("(outside modules)", "2", "56 B"),)
    assert titles["Recomputed only by recompute_all"] == (
        ("(outside modules)", "2", "2.00 s"),
    )


def test_without_the_step_names_are_compared():
    step = StepGraph.from_text(SMALL)
    first = planners.load("keep_all").plan(step)
    second = planners.load("recompute_all").plan(step)
    parts = lowtide.diff(first, second).parts
    assert parts[0].rows == (("a",), ("b",))
    assert [p.title for p in parts][-1] == "Recomputed only by recompute_all"


def test_equal_plans_do_not_differ():
    plan = planners.load("keep_all").plan(gpt(2))
    made = lowtide.diff(plan, plan, step=gpt(2))
    assert made.is_empty
    assert str(made).endswith("Nothing differs.")
    assert "keep_all (A)" in str(made)
    assert lowtide.report(made).to_dict()["views"][0]["headline"] == "Nothing differs."


def test_the_report_lays_one_tide_over_the_other():
    step = gpt(3)
    first, second = dropping(step, 0.2), dropping(step, 0.8, "dtr")
    made = lowtide.report(lowtide.diff(first, second, step=step))
    tide = made.to_dict()["views"][0]["tide"]
    assert tide["peak_bytes"] == second.peak_bytes
    assert tide["outline"]["peak_bytes"] == first.peak_bytes
    assert max(tide["outline"]["live_bytes"]) == first.peak_bytes
    assert "Kept only by" in str(made)
    assert made.to_dict()["diff"]["parts"]


def test_steps_overlay_their_baselines():
    first, second = gpt(2), gpt(3)
    data = lowtide.report(lowtide.diff(first, second)).to_dict()
    assert data["views"][0]["tide"]["peak_bytes"] == second.baseline_peak_bytes
    assert (
        data["views"][0]["tide"]["outline"]["peak_bytes"] == first.baseline_peak_bytes
    )


def test_what_cannot_be_compared_is_refused():
    step = gpt(2)
    plan = dropping(step, 0.5)
    with pytest.raises(InvalidArgumentError, match="a Plan and a StepGraph"):
        lowtide.diff(plan, step)
    with pytest.raises(PlanMismatchError):
        lowtide.diff(plan, plan, step=gpt(3))


def test_plans_of_two_steps_show_both_baselines():
    first = dropping(gpt(2), 0.5)
    second = replace(dropping(gpt(3), 0.5), planner="dtr")
    assert lowtide.diff(first, second).changes[0].name == "baseline peak"

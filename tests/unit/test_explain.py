"""Why a storage is kept or recomputed."""

from __future__ import annotations

from dataclasses import replace

import pytest

from lowtide.errors import InvalidArgumentError
from lowtide.planners.auto import plan
from lowtide.reporting.explain import explain, explain_floor
from lowtide.step.graph import StepGraph

# All kept, while hb runs: x 8 + a 16 + b 40 + c 4 + d 4 + db 40 = 112. Without a:
# 96. A budget of 100 forces f to run again, just before gb, which costs 1 s of 7.
STEP = StepGraph.from_text("""
    resident x 8
    a  = f(x)        16 bytes  1 s
    b  = g(a)        40 bytes  1 s
    c  = h(b)         4 bytes  1 s
    turn(c) -> d      4 bytes
    db = hb(b, d)    40 bytes  2 s
    da = gb(a, db)   16 bytes  2 s
    -> c, da
""")


def test_a_recomputed_storage_says_what_it_frees_and_costs() -> None:
    found = explain(STEP, plan(STEP, 100, time_limit=1.0), "a", time_limit=1.0)
    (fate,) = found.fates
    assert fate.fate == "recomputed"
    assert fate.makings == 2
    assert fate.remake_seconds == 1.0
    assert fate.is_at_baseline_peak
    assert not fate.is_at_peak
    assert "made once more: frees 16 B at the baseline's peak" in str(found)


def test_a_kept_storage_says_what_it_would_cost() -> None:
    found = explain(STEP, plan(STEP, 112, time_limit=1.0), "a", time_limit=1.0)
    (fate,) = found.fates
    assert fate.fate == "kept"
    assert fate.remake_seconds == 1.0
    assert found.overhead == pytest.approx(0.0)


def test_five_percent_more_budget_is_compared() -> None:
    # 107 forces a out as well; 5 % more is 112, and keeps it.
    found = explain(STEP, plan(STEP, 107, time_limit=1.0), "a", time_limit=1.0)
    assert [f.fate for f in found.fates] == ["recomputed"]
    assert [f.fate for f in found.fates_with_more] == ["kept"]
    assert found.overhead_with_more == pytest.approx(0.0)
    assert "with 5 % more budget: kept" in str(found)


def test_outputs_residents_and_ops_are_explained() -> None:
    chosen = plan(STEP, 112, time_limit=1.0)
    fates = {w: explain(STEP, chosen, w).fates[0].fate for w in ("x", "da", "gb", "d")}
    assert fates == {"x": "resident", "da": "output", "gb": "output", "d": "brief"}


def test_an_unknown_name_is_refused() -> None:
    with pytest.raises(InvalidArgumentError):
        explain(STEP, plan(STEP, 112, time_limit=1.0), "nothing")


def test_the_floor_names_what_holds_it() -> None:
    found = explain_floor(STEP)
    # While hb runs: x 8 + b 40 + c 4 + d 4 + db 40, and nothing can be left out.
    assert found.floor_bytes == 96
    assert found.op == "hb"
    assert {name for name, _, _ in found.holders} >= {"b", "db"}
    assert found.bound_bytes <= found.floor_bytes


def test_the_floor_names_the_lever_that_would_lower_it() -> None:
    # While gb runs: x 8, y 90 (returned), d 1, and the gradient g 40, held to the end.
    step = StepGraph.from_text(
        """
        resident x 8
        y      = f(x)      90 bytes 1 s
        l      = loss(y)   1 bytes  1 s
        turn(l, y) -> d    1 bytes
        g      = gb(d, x)  40 bytes 1 s
        -> y, g
        """
    )
    kinds = {"g": "gradient"}
    storages = (replace(s, kind=kinds.get(s.name, s.kind)) for s in step.storages)
    found = explain_floor(replace(step, storages=tuple(storages)))
    assert found.levers == (
        ("gradients", 40, 'update="in_backward"'),
        ("returned outputs", 90, "return only the loss"),
    )
    assert 'what would lower it: update="in_backward" (gradients, 40 B)' in str(found)

"""The step graph: text, JSON, fingerprint, and what it says of itself."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from lowtide import Op, Plan, StepGraph, Storage, planners
from lowtide.errors import StepFormatError
from lowtide.step.schedule import from_kept, must_keep, saved_by_baseline, with_frees

TEXT = """
    resident w 8
    resident s 4 optimizer_state
    a     = f(w)           16 bytes    1 s    # a comment
    b, m  = g(a)           40 4 bytes  1.5 s  random
    b     = g_again(a, m)  40 bytes    1 s    standby
    c     = h(b)            4 bytes    1e-3 s scratch 7
    turn(c) -> d            4 bytes
    db    = hb(b, d)       40 bytes    1 s
    da    = gb(a, db)      16 bytes    2 s
    -> c, da
"""


def test_text_says_everything() -> None:
    step = StepGraph.from_text(TEXT)
    assert [s.name for s in step.storages] == "w s a b m c d db da".split()
    assert step.resident_bytes == 12
    assert step.storages[1].kind == "optimizer_state"
    assert step.ops[1].once
    assert step.ops[2].standby
    assert step.ops[3].scratch_bytes == 7
    assert step.baseline == (0, 1, 3, 4, 5, 6)
    assert step.turn == 4
    assert step.remakers[3] == 2  # b: drawn once, made again by the replay
    assert step.remakers[4] == -1  # m: nothing else makes it
    assert step.baseline_seconds == pytest.approx(5.501)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a = f(x) 8 bytes 1 s", "line 1.*x is not made above this line"),
        ("resident x 8\na = f(x) 8 bytes 1 s randon", "line 2.*unknown flag 'randon'"),
        ("resident x 8\na, b = f(x) 8 bytes 1 s", "2 names but 1 sizes"),
        ("resident x 8\na f x", "expected `names = op"),
        ("resident x 8\na = f(x) 1 s", "expected `N bytes T s`"),
    ],
)
def test_text_that_cannot_be_read_names_the_line(text: str, message: str) -> None:
    with pytest.raises(StepFormatError, match=message):
        StepGraph.from_text(text)


def test_json_brings_back_the_same_step(tmp_path: Path) -> None:
    step = StepGraph.from_text(TEXT)
    step.save(tmp_path / "x.step.json")
    again = StepGraph.load(tmp_path / "x.step.json")
    assert again == step
    assert again.fingerprint == step.fingerprint


def test_a_damaged_file_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "x.step.json"
    step = StepGraph.from_text(TEXT)
    step.save(path)
    data = json.loads(path.read_text())
    data["storages"][2]["nbytes"] = 17
    path.write_text(json.dumps(data))
    with pytest.raises(StepFormatError, match="edited or damaged"):
        StepGraph.load(path)
    path.write_text("{")
    with pytest.raises(StepFormatError, match="is not JSON"):
        StepGraph.load(path)
    path.write_text('{"lowtide": "plan", "schema": 1}')
    with pytest.raises(StepFormatError, match="expected kind 'step'"):
        StepGraph.load(path)


def test_the_fingerprint_is_of_structure_and_not_of_time() -> None:
    step = StepGraph.from_text(TEXT)
    ops = tuple(replace(op, seconds=2 * op.seconds) for op in step.ops)
    slower = replace(step, ops=ops)
    assert slower.fingerprint == step.fingerprint
    larger = [replace(s, nbytes=s.nbytes + (s.id == 3)) for s in step.storages]
    assert replace(step, storages=tuple(larger)).fingerprint != step.fingerprint
    other = replace(step.ops[0], signature="f2")
    assert replace(step, ops=(other, *step.ops[1:])).fingerprint != step.fingerprint


def test_ten_thousand_ops_survive_a_file(tmp_path: Path) -> None:
    storages = [Storage(0, "x", 64, kind="input", resident=True, shape=(4, 4))]
    ops: list[Op] = []
    for i in range(10_000):
        made = len(storages)
        storages.append(Storage(made, f"s{i}", 4096, shape=(32, 32), dtype="float32"))
        ops.append(
            Op(i, f"op{i}", "aten.mm.default", (i,), (made,), 1e-4, module="layers.3")
        )
    step = StepGraph(tuple(ops), tuple(storages), outputs=(10_000,))
    step.save(tmp_path / "large.step.json")
    loaded = StepGraph.load(tmp_path / "large.step.json")
    assert loaded.fingerprint == step.fingerprint
    assert loaded.ops == step.ops


def test_a_kept_set_is_recomputed_late_and_only_where_needed() -> None:
    step = StepGraph.from_text(TEXT)
    a, b, m = 2, 3, 4
    assert saved_by_baseline(step) == (a, b)
    assert must_keep(step) == {m}
    plan = planners.load("recompute_all").plan(step)
    # After the turn: f and the replay make a and b, hb, then gb reads a.
    assert plan.ops == (0, 1, 3, 4, 0, 2, 5, 6)
    assert plan.kept == (m,)
    assert plan.recomputed == (0, 2)
    keep_b = [i.op for i in from_kept(step, [b]) if hasattr(i, "op")]
    assert keep_b == [0, 1, 3, 4, 5, 0, 6]
    keep_both = from_kept(step, [a, b])
    assert keep_both == with_frees(step, step.baseline)


def test_a_plan_survives_json(tmp_path: Path) -> None:
    step = StepGraph.from_text(TEXT)
    plan = planners.load("recompute_all").plan(step)
    plan.save(tmp_path / "x.plan.json")
    assert Plan.load(tmp_path / "x.plan.json") == plan
    data = json.loads((tmp_path / "x.plan.json").read_text())
    assert data["names"] == {"kept": ["m"], "recomputed": ["f", "g_again"]}
    (tmp_path / "x.plan.json").write_text("[]")
    with pytest.raises(StepFormatError, match="holds a list"):
        Plan.load(tmp_path / "x.plan.json")

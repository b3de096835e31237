"""Reading and writing files: everything checked, nothing lost."""

from __future__ import annotations

import csv
import json
import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import lowtide
from lowtide import Plan, StepGraph, planners
from lowtide.errors import InvalidArgumentError, OutputError, StepFormatError
from lowtide.step import files
from lowtide.step.files import read_whole, write_whole
from lowtide.step.records import load
from lowtide.step.schedule import check_match, from_kept, make_plan, saved_by_baseline
from tests.damage import with_facts
from tests.graphs import chain, two_pieces

STEP = with_facts(chain(2))
# Keeps one storage and recomputes the others.
PLAN = make_plan(STEP, from_kept(STEP, saved_by_baseline(STEP)[:1]), planner="hand")


def signed(data: dict[str, Any]) -> dict[str, Any]:
    """The data with the fingerprint of its contents."""
    try:
        StepGraph.from_dict(data)
    except StepFormatError as error:
        _, _, told = str(error).partition("its contents hash to '")
        data["fingerprint"] = told[:16] or data["fingerprint"]
    return data


def edited(record: StepGraph | Plan, place: str, value: Any) -> dict[str, Any]:
    """The record's data with another value at a place such as "ops.3.seconds"."""
    data = json.loads(json.dumps(record.to_dict()))
    where = data
    *path, last = [int(p) if p.isdigit() else p for p in place.split(".")]
    for part in path:
        where = where[part]
    where[last] = value
    return signed(data) if isinstance(record, StepGraph) else data


# Steps.


@pytest.mark.parametrize(
    ("place", "value", "message"),
    [
        ("schema", True, "schema True; expected kind 'step', schema 1"),
        ("schema", 1.0, r"schema 1\.0"),
        ("then_run", "x", "unknown field `then_run`"),
        ("ops.1.then_run", "x", r"ops\[1\]: unknown field 'then_run'"),
        ("storages.0.then_run", "x", r"storages\[0\]: unknown field 'then_run'"),
        ("name", 7, "name: expected `str`, got `int`, found 7"),
        (
            "name",
            "x\ud800y",
            r"name: the text has half of.*'x\\ud800y'",
        ),
        ("name", "n" * 10_001, "name: expected `str` of length <= 10000"),
        ("alignment_bytes", 0, "alignment_bytes: expected `int` >= 1, found 0"),
        ("alignment_bytes", 10**30, "alignment_bytes: expected `int` <= 1073741824"),
        ("storages.1.nbytes", 0.5, r"storages\[1\].nbytes: expected `int`, got"),
        ("storages.1.nbytes", 2**60, r"storages\[1\].nbytes: expected `int` <="),
        ("storages.1.kind", "fluff", r"storages\[1\].kind: .*'fluff'"),
        ("storages.1.id", 0, r"storage ids must be 0\.\.n-1"),
        ("ops.2.seconds", -1.0, r"ops\[2\].seconds: expected `float` >= 0.0, found -1"),
        ("ops.2.seconds", float("inf"), r"ops\[2\].seconds: expected `float` <="),
        ("ops.2.seconds", float("nan"), r"ops\[2\].seconds: .*found nan"),
        ("ops.2.scratch_bytes", True, r"ops\[2\].scratch_bytes: .*got `bool`"),
        ("ops.2.reads", [999], "names a storage that is not there"),
        ("ops.2.opens", 7, "2 regions, but the ops open"),
        ("ops.2.piece", 3, "belongs to piece 3"),
        ("regions", [], "0 regions"),
        ("regions.0", [0, "sideways"], r"regions\[0\]\[1\]: .*'sideways'"),
        ("outputs", [1, 1], "twice"),
        ("outputs", [0], "is a resident, which stays"),
        ("facts.pieces", 5, "facts.pieces: expected `array`, got `int`, found 5"),
        ("facts.pieces", [["x", 0, 9, 5, 99]], "out of order or range"),
        ("facts.eager_extra_bytes", "x", "facts.eager_extra_bytes: expected `int`"),
        ("facts.deep", [[[1]]], "facts"),
    ],
)
def test_a_wrong_step_is_refused_by_its_field(
    place: str, value: Any, message: str
) -> None:
    with pytest.raises(StepFormatError, match=message):
        StepGraph.from_dict(edited(STEP, place, value))


@pytest.mark.parametrize("field", list(STEP.to_dict()))
def test_a_step_has_all_its_fields(field: str) -> None:
    data = STEP.to_dict()
    del data[field]
    with pytest.raises(StepFormatError, match=field.replace("lowtide", "kind None")):
        StepGraph.from_dict(data)


def test_an_op_makes_its_results_beside_its_arguments() -> None:
    op = STEP.ops[1]
    unread = next(s for s in STEP.resident if s not in op.reads)
    for writes, message in (
        ((*op.writes, op.reads[0]), "names a storage twice"),
        ((*op.writes, unread), "a resident"),
    ):
        data = edited(STEP, "ops.1.writes", list(writes))
        with pytest.raises(StepFormatError, match=message):
            StepGraph.from_dict(data)


def test_sizes_that_only_together_are_too_large() -> None:
    data = edited(STEP, "storages.1.nbytes", 2**59)
    data["storages"][2]["nbytes"] = 2**59
    with pytest.raises(StepFormatError, match="bytes together"):
        StepGraph.from_dict(signed(data))


# Plans.


@pytest.mark.parametrize(
    ("place", "value", "message"),
    [
        ("schema", True, "schema True; expected kind 'plan', schema 1"),
        ("then_run", "x", "unknown field `then_run`"),
        ("proof.then_run", "x", "proof: unknown field 'then_run'"),
        ("proof.history", [[1]], r"proof.history\[0\]: .*length 2"),
        ("peak_bytes", "1 GiB", "peak_bytes: expected `int`, got `str`, found '1 GiB'"),
        ("peak_bytes", -5, "peak_bytes: expected `int` >= 0, found -5"),
        ("budget_bytes", 0.5, "budget_bytes: expected `int`, got `float`"),
        ("seconds", float("nan"), "seconds: expected `float` >= 0.0, found nan"),
        ("seconds", 1.5, r"overhead 0\.\d+, but 1\.5 s over"),
        ("schedule", "abc", "schedule: expected `array`, got `str`"),
        ("schedule.0", 0.5, r"schedule\[0\]: expected `int`, got `float`"),
        ("schedule.0", 10**30, r"schedule\[0\]: expected `int` <="),
        ("kept.0", -1, r"kept\[0\]: expected `int` >= 0"),
        ("recomputed.0", 10_000, "op 10000 is recomputed, but"),
        ("names.kept", [], "'kept' has 0 names"),
        ("names.more", [], "'more' has 0 names for no such list"),
        ("openers", [1, 0], "each must run once, in order"),
        ("pieces", [["x", 0, 2, 1, 9]], "piece x has ops 0 to 2, 1 to 9"),
        ("pieces", [["x", 0, 2, 9, 9], ["y", 1, 3, 9, 9]], "two pieces hold op 1"),
    ],
)
def test_a_wrong_plan_is_refused_by_its_field(
    place: str, value: Any, message: str
) -> None:
    with pytest.raises(StepFormatError, match=message):
        Plan.from_dict(edited(PLAN, place, value))


def test_an_opener_lies_outside_of_all_pieces() -> None:
    step = two_pieces(2)
    plan = planners.load("keep_all").plan(step)
    first = plan.openers[0]
    data = edited(plan, "pieces", [["x", 0, first + 1, first + 1, first + 1]])
    with pytest.raises(StepFormatError, match=f"opener {first} lies within a piece"):
        Plan.from_dict(data)


def test_a_plan_that_lies_about_its_step_is_refused_where_they_meet() -> None:
    for lie, message in (
        ({"kept": (0,), "names": {}}, "kept: "),
        ({"recomputed": (), "names": {}}, "recomputed: "),
        ({"schedule": PLAN.schedule[1:]}, "schedule is invalid"),
        ({"fingerprint": "0" * 16}, "this plan is for step 0000"),
    ):
        liar = replace(PLAN, **lie)
        for use in (
            check_match,
            lowtide.report,
            lambda step, plan: lowtide.diff(PLAN, plan, step=step),
            lambda step, plan: lowtide.export(step, plan, "never.json"),
        ):
            with pytest.raises(lowtide.LowtideError, match=message):
                use(STEP, liar)


# Bytes.


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (b"", "is not JSON"),
        (b"\xff\xfe\x00", "is not JSON"),
        (b"null", "holds a NoneType"),
        (b"[" * 200_000, "nested too deeply"),
        (b'{"a":' * 100_000, "nested too deeply"),
        (b'{"lowtide": "plan", "a": NaN}', "NaN, which is not a number"),
        (b'{"lowtide": "plan", "a": -Infinity}', "-Infinity, which is not a number"),
        (b'{"lowtide": "plan", "a": 1, "a": 2}', "a: it appears twice"),
        (b'{"lowtide": "plan", "a": ' + b"9" * 5000 + b"}", "is not JSON"),
        (b'{"lowtide": "song"}', "neither a step nor a plan|found kind 'song'"),
    ],
    ids=range(10),
)
def test_what_is_no_record_is_refused_with_its_path(
    text: bytes, message: str, tmp_path: Path
) -> None:
    path = tmp_path / "x.json"
    path.write_bytes(text)
    for read in (Plan.load, StepGraph.load, load):
        with pytest.raises(StepFormatError, match=message) as raised:
            read(path)
        assert str(path) in str(raised.value)
        assert raised.value.path == str(path)


def test_only_files_are_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    os.mkfifo(tmp_path / "pipe")
    for path in (tmp_path / "pipe", Path("/dev/zero")):
        with pytest.raises(StepFormatError, match="a pipe or a device"):
            Plan.load(path)
    for path, message in ((tmp_path, "directory"), (tmp_path / "no", "no such file")):
        with pytest.raises(InvalidArgumentError, match=message):
            Plan.load(path)
    (tmp_path / "large").write_bytes(b" " * 11)
    with pytest.raises(StepFormatError, match="it has 11 B, more than the 10 B"):
        read_whole(tmp_path / "large", limit_bytes=10)


# Writing.

WRITERS: dict[str, Callable[..., Any]] = {
    "plan": PLAN.save,
    "step": STEP.save,
    "ops": lambda path, **k: STEP.to_csv(path, "ops", **k),
    "storages": STEP.to_csv,
    "page.html": lambda path, **k: lowtide.report(STEP).save(path, **k),
    "report.json": lambda path, **k: lowtide.report(STEP).save(path, **k),
    "chrome": lambda path, **k: lowtide.export(STEP, PLAN, path, to="chrome", **k),
    "csv": lambda path, **k: lowtide.export(STEP, PLAN, path, to="csv", **k),
    "tags": lambda path, **k: lowtide.export(STEP, PLAN, path, to="tags", **k),
    "policy": lambda path, **k: lowtide.export(STEP, PLAN, path, to="policy", **k),
}


@pytest.mark.parametrize("name", WRITERS)
def test_only_its_own_kind_is_replaced(name: str, tmp_path: Path) -> None:
    write, path = WRITERS[name], tmp_path / name
    write(path)
    whole = path.read_bytes()
    write(path)  # over its own kind
    assert path.read_bytes() == whole
    for other in WRITERS.keys() - {name}:
        WRITERS[other](tmp_path / other)
        os.replace(tmp_path / other, path)
        before = path.read_bytes()
        with pytest.raises(OutputError, match="holds something else that lowtide"):
            write(path)
        assert path.read_bytes() == before
    path.write_bytes(b"a thesis")
    with pytest.raises(OutputError, match=r"exists, and lowtide cannot tell.*force"):
        write(path)
    assert path.read_bytes() == b"a thesis"
    write(path, force=True)
    assert path.read_bytes() == whole
    assert [p.name for p in tmp_path.iterdir()] == [name]


def test_a_failed_write_leaves_what_was_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "x.plan.json"
    PLAN.save(path)
    before = path.read_bytes()

    def full(_: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(files.os, "fsync", full)
    with pytest.raises(OutputError, match="No space left on device"):
        replace(PLAN, planner="other").save(path)
    assert path.read_bytes() == before
    assert list(tmp_path.iterdir()) == [path]


def test_names_links_and_permissions(tmp_path: Path) -> None:
    long = tmp_path / ("x" * 250 + ".html")
    lowtide.report(STEP).save(long)
    link = tmp_path / "link.json"
    link.symlink_to(tmp_path / "real.json")
    PLAN.save(link)
    assert link.is_symlink()
    assert Plan.load(tmp_path / "real.json") == PLAN
    umask = os.umask(0)
    os.umask(umask)
    assert (tmp_path / "real.json").stat().st_mode & 0o777 == 0o666 & ~umask
    with pytest.raises(OutputError, match="File name too long"):
        PLAN.save(tmp_path / ("x" * 300))
    with pytest.raises(OutputError, match="half of a surrogate pair"):
        lowtide.report(replace(STEP, name="x\ud800")).save(tmp_path / "r.html")


def test_no_cell_of_a_table_is_a_formula(tmp_path: Path) -> None:
    name = '=HYPERLINK("http://x")'
    ops = tuple(replace(op, name=name, module="@x", target="-x") for op in STEP.ops)
    storages = tuple(replace(s, name="+x") for s in STEP.storages)
    step = replace(STEP, ops=ops, storages=storages)
    lowtide.export(step, None, tmp_path / "timeline", to="csv")
    for table in ("ops", "storages", "modules"):
        step.to_csv(tmp_path / table, table)  # type: ignore[arg-type]
    for path in tmp_path.iterdir():
        rows = csv.reader(path.read_text().splitlines())
        cells = [c for row in rows for c in row if c and c != "-1"]  # -1: no such op
        assert not [c for c in cells if c[0] in "=+-@"], path.name
        assert any(c.startswith("'") for c in cells)


def test_a_pipe_is_written_to_if_somebody_reads(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    with pytest.raises(OutputError, match="No such device"):
        PLAN.save(pipe)
    end = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    write_whole(pipe, b"x" * 1000)
    assert os.read(end, 2000) == b"x" * 1000
    os.close(end)

"""What a step tells of itself, on steps small enough to count by hand."""

import csv
from dataclasses import replace
from math import inf

import pytest

from lowtide import StepGraph, export
from lowtide.errors import InvalidArgumentError
from lowtide.reporting.pictures.charts import chart_picture
from lowtide.reporting.report import report
from lowtide.step.analysis.summary import format_profile
from lowtide.step.names import module_group, short_target

STEP = StepGraph.from_text(
    """
    resident x 8
    a     = f(x)        16 bytes  1 s
    b     = g(a)        40 bytes  2 s
    turn(b) -> d        4 bytes
    da    = gb(a, b, d) 16 bytes  4 s  scratch 8
    dx    = fb(a, da)   8 bytes   1 s
    -> dx
    """
)


def modules(step, *names):
    ops = (replace(op, module=m) for op, m in zip(step.ops, names, strict=True))
    return replace(step, ops=tuple(ops))


def named(records):
    return {r.name: r for r in records}


def test_live_bytes_around_each_op():
    records = named(STEP.op_records())
    # x 8; f makes a 16; g makes b 40; the turn makes d 4; gb makes da 16, takes 8.
    assert [r.live_during_bytes for r in STEP.op_records()] == [24, 64, 68, 92, 48]
    assert records["f"].live_before_bytes == 8
    # After gb, b and d are gone: x 8, a 16, da 16.
    assert records["gb"].live_after_bytes == 40
    assert records["gb"].bytes_read == 16 + 40 + 4
    assert records["gb"].bytes_made == 16
    assert records["gb"].begin_seconds == 3


def test_lifetimes():
    found = named(STEP.lifetimes())
    a = found["a"]
    # Used in the forward last by g (ends at 3 s), in the backward first by gb (3 s).
    assert (a.last_forward_use, a.first_backward_use, a.last_backward_use) == (1, 3, 4)
    assert (a.made_at_seconds, a.freed_at_seconds) == (0, 8)
    assert a.recompute_seconds == 1
    assert a.bytes_per_second == 16
    # b from what is resident: f and g.
    assert found["b"].recompute_seconds == 3
    assert found["x"].recompute_seconds == 0
    assert found["x"].resident
    assert found["da"].producer == 3


def test_idle_time_is_between_forward_and_backward():
    step = StepGraph.from_text(
        """
        resident x 8
        a  = f(x)     16 bytes 1 s
        b  = g(a)     16 bytes 1 s
        c  = h(b)     16 bytes 5 s
        turn(c) -> d  4 bytes
        e  = hb(b, d) 16 bytes 2 s
        da = gb(a, e) 16 bytes 1 s
        -> da
        """
    )
    # a is last used at 2 s and again at 9 s; b at 7 s and again at 7 s.
    assert named(step.lifetimes())["a"].idle_seconds == 7
    assert named(step.lifetimes())["b"].idle_seconds == 0


def test_a_random_result_must_be_kept():
    step = StepGraph.from_text(
        """
        resident x 8
        m  = draw(x)    8 bytes 1 s random
        y  = mul(x, m)  8 bytes 2 s
        turn(y) -> d    8 bytes
        dx = back(m, d) 8 bytes 1 s
        -> dx
        """
    )
    found = named(step.lifetimes())
    assert found["m"].recompute_seconds == inf
    assert found["m"].bytes_per_second == 0
    # y is made from m, which is taken to be there.
    assert found["y"].recompute_seconds == 2


def test_the_peak_and_who_holds_it():
    peak = STEP.at_peak()
    assert peak.peak_bytes == STEP.baseline_peak_bytes == 92
    assert STEP.ops[peak.op].name == "gb"
    assert peak.scratch_bytes == 8
    assert [(s.name, s.nbytes) for s in peak.storages] == [
        ("b", 40),
        ("a", 16),
        ("da", 16),
        ("x", 8),
        ("d", 4),
    ]
    kinds = peak.by_kind()
    assert kinds == STEP.by_kind()
    assert kinds["activation"] == 56
    assert kinds["temporary"] == 8
    assert sum(kinds.values()) == 92
    assert sum(peak.by_module().values()) == 92
    assert sum(peak.by_op_type().values()) == 92


def test_repeated_layers_are_one_row():
    step = StepGraph.from_text(
        """
        resident x 8
        a = f(x)       10 bytes 1 s
        b = f(a)       10 bytes 1 s
        c = out(b)     10 bytes 3 s
        turn(c) -> d   4 bytes
        e = back(a, d) 10 bytes 2 s
        g = back(b, e) 10 bytes 2 s
        -> g
        """
    )
    step = modules(step, "l.0.m", "l.1.m", "head", "", "l.1.m", "l.0.m")
    rows = {share.name: share for share in step.by_module(depth=2)}
    layers = rows["l.*.m"]
    assert (layers.count, layers.num_ops, layers.identical) == (2, 4, True)
    assert (layers.forward_seconds, layers.backward_seconds) == (2, 4)
    # Both a and b are kept for the backward; each is one f away.
    assert layers.kept_bytes == 20
    assert layers.recompute_seconds == 2
    assert layers.bytes_per_second == 10
    ops = list(step.ops)
    ops[1] = replace(ops[1], signature="f of another shape")
    rows = {s.name: s for s in replace(step, ops=tuple(ops)).by_module(depth=2)}
    assert not rows["l.*.m"].identical


@pytest.mark.parametrize(
    ("module", "depth", "expected"),
    [
        ("layers.3.mlp.fc1", 1, "layers.*"),
        ("layers.3.mlp.fc1", 2, "layers.*.mlp"),
        ("layers.3.mlp.fc1", 9, "layers.*.mlp.fc*"),
        ("", 2, "(outside modules)"),
    ],
)
def test_module_names_collapse(module, depth, expected):
    assert module_group(module, depth) == expected


def test_shares_and_op_types():
    assert STEP.shares() == {"forward": 3 / 8, "backward": 5 / 8, "optimizer": 0}
    slowest = STEP.by_op_type()[0]
    assert (slowest.name, slowest.seconds) == ("gb", 4)


def test_tables_go_to_csv(tmp_path):
    for table, count in (("storages", 6), ("ops", 5), ("modules", 1)):
        path = tmp_path / f"{table}.csv"
        STEP.to_csv(path, table)
        with path.open(newline="") as file:
            rows = list(csv.DictReader(file))
        assert len(rows) == count
    with pytest.raises(InvalidArgumentError, match="no such table"):
        STEP.to_csv(tmp_path / "x.csv", "views")  # type: ignore[arg-type]


def test_the_summary_reads_well():
    step = modules(STEP, "l.0", "l.1", "", "l.1", "l.0")
    step = replace(step, facts={"how": "measure"}, device="cpu")
    text = format_profile(step, floor=False)
    assert text == "\n".join(
        [
            "graph      5 ops, 6 storages, 1 graph, cpu",
            "peak       92 B         at backward of l.1",
            "           parameters 8.00  gradients 20.00  activations 56.00  "
            "temporaries 8.00",
            "time       8.00 s       forward 3.00 s, backward 5.00 s   (measured)",
            "",
            "module              x  kept bytes  at peak  seconds  bytes/s of recompute",
            "l.*                ~2        56 B     72 B   8.00 s                19 B/s"
            "  <- cheapest to drop",
            "(outside modules)   1         0 B      4 B      0 s                     -",
            "~ the modules under this name do not all run the same ops",
        ]
    )


def profile_picture(step, form):
    return chart_picture("tide", report(step).data, form)


def test_the_picture_is_drawn():
    assert profile_picture(STEP, "png")[:4] == b"\x89PNG"
    # Letters are drawn as curves, so pictures are compared.
    timed = profile_picture(STEP, "svg")
    assert timed == profile_picture(STEP, "svg")
    untimed = replace(STEP, ops=tuple(replace(op, seconds=0.0) for op in STEP.ops))
    assert profile_picture(untimed, "svg") != timed
    nothing = StepGraph.from_text("resident x 8\na = f(x) 8 bytes 0 s\n-> a")
    assert profile_picture(nothing, "svg").startswith(b"<?xml")


@pytest.mark.parametrize(
    ("target", "expected"),
    [
        ("aten.mm.default", "mm"),
        ("aten::add.Tensor", "add"),
        ("torch.ops.aten.mul.Tensor", "mul"),
        ("mylib::scale", "scale"),
        ("mylib.scale.default", "scale"),
        ("lowtide::turn", "turn"),
        ("linear", "linear"),
        ("aten.mul.Tensor + aten.sum.dim_IntList", "mul + sum"),
    ],
)
def test_every_table_calls_an_op_the_same(target, expected):
    assert short_target(target) == expected


def test_a_spreadsheet_executes_no_name(tmp_path):
    names = ("=cmd|' /C calc'!A0", "+1+1", "-2+3", "@SUM(1)", "-7")
    ops = (replace(op, name=n) for op, n in zip(STEP.ops, names, strict=True))
    step = replace(STEP, ops=tuple(ops))
    step.to_csv(tmp_path / "ops.csv", "ops")
    exported = export(step, None, tmp_path / "timeline.csv", to="csv")
    for path, column in ((tmp_path / "ops.csv", "name"), (exported, "op")):
        with path.open(newline="") as file:
            found = [row[column] for row in csv.DictReader(file)]
        assert found == [*(f"'{name}" for name in names[:4]), "-7"]

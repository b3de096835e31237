"""The data of a report: every number is the plan's, to the byte."""

import json
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

import lowtide
from lowtide import StepGraph, planners, simulate
from lowtide.engine.jobs.bench.activations import activation_peak_bytes
from lowtide.errors import InvalidArgumentError, OutputError, PlanMismatchError
from lowtide.reporting.frontier import bound
from lowtide.reporting.tide import keep_extremes
from lowtide.step.analysis.ops import extra_runs
from lowtide.step.analysis.peak import peak_of
from lowtide.step.analysis.storages import fates
from lowtide.step.format import format_bytes
from lowtide.step.names import collapse, pattern_of, titles
from lowtide.step.schedule import from_kept, make_plan, with_frees
from lowtide.step.walk import walk
from tests.graphs import GRAPHS
from tests.report_steps import (
    BATCHES,
    SMALL,
    dropping,
    everything,
    frontier,
    gpt,
    measured,
    renamed,
    verified,
)


def cards(data):
    return {card["id"]: card["number"] for card in data["views"][0]["cards"]}


@pytest.fixture(scope="module")
def whole():
    step = gpt(3)
    things = everything(step)
    return step, things[1], lowtide.report(*things).to_dict()


def test_cards_are_the_plans_numbers(whole):
    step, plan, data = whole
    found = cards(data)
    assert found["budget"] == plan.budget_bytes
    assert found["peak"] == plan.peak_bytes
    assert found["time"] == plan.overhead
    assert found["gap"] == plan.proof.gap
    assert found["resident"] == step.resident_bytes


@pytest.mark.parametrize("name", ["keep_all", "recompute_all"])
@pytest.mark.parametrize("step", GRAPHS, ids=lambda g: g.name)
def test_charts_and_tables_add_up_to_the_peak(step, name):
    plan = planners.load(name).plan(step)
    data = lowtide.report(step, plan).to_dict()
    tide = data["views"][0]["tide"]
    assert max(tide["live_bytes"]) == tide["peak_bytes"] == plan.peak_bytes
    columns = zip(*tide["by_kind"].values(), strict=True)
    assert [sum(column) for column in columns] == tide["live_bytes"]
    assert tide["live_bytes"][tide["peak_run"]] == plan.peak_bytes
    assert (
        sum(row["bytes"] for row in data["views"][0]["peak"]["rows"]) == plan.peak_bytes
    )
    assert tide["seconds"] == plan.seconds
    if tide["outline"]:
        assert max(tide["outline"]["live_bytes"]) == step.baseline_peak_bytes


@pytest.mark.parametrize("step", GRAPHS, ids=lambda g: g.name)
def test_modules_hold_what_the_plan_keeps(step):
    plan = planners.load("recompute_all").plan(step)
    data = lowtide.report(step, plan).to_dict()
    kept = sum(step.sizes[s] for s in plan.kept)
    assert sum(m["kept_bytes"] for m in data["views"][0]["modules"]) == kept
    extra = sum(m["recompute_seconds"] for m in data["views"][0]["modules"])
    assert extra == pytest.approx(plan.seconds - plan.baseline_seconds)
    by_op = sum(r["seconds"] for r in data["views"][0]["recompute_by_op"])
    assert by_op == pytest.approx(extra)


def test_the_small_step_by_hand():
    step = StepGraph.from_text(SMALL)
    data = lowtide.report(step).to_dict()
    assert cards(data)["peak"] == 112
    # Residents and outputs (x, c, da) are left out: a 16 + b 40 + d 4 + db 40.
    assert cards(data)["within"] == 100
    assert data["views"][0]["peak"]["op"] == 4
    assert [r["bytes"] for r in data["views"][0]["peak"]["rows"]] == [
        40,
        40,
        16,
        8,
        4,
        4,
    ]
    assert [
        (b["phase"], b["first_run"]) for b in data["views"][0]["tide"]["bands"]
    ] == [
        ("forward", 0),
        ("backward", 3),
    ]
    plan = planners.load("recompute_all").plan(step)
    tide = lowtide.report(step, plan).to_dict()["views"][0]["tide"]
    # f, g, h, turn, then f and g again for hb, and gb.
    assert tide["again"] == [0, 0, 0, 0, 1, 1, 0, 0]
    # The baseline's hb and gb stand beside the plan's.
    assert tide["outline"]["run"] == [0, 1, 2, 3, 6, 7]


def test_lifetimes_have_gaps_and_second_bars():
    step = StepGraph.from_text(SMALL)
    plan = planners.load("recompute_all").plan(step)
    rows = {
        r["name"]: r
        for r in lowtide.report(step, plan).to_dict()["views"][0]["lifetimes"]
    }
    bars = [(b["first_run"], b["end_run"], b["again"]) for b in rows["b"]["bars"]]
    assert bars == [(1, 3, False), (5, 7, True)]
    assert rows["b"]["bars"][1]["start_seconds"] == 4.0


def test_equal_layers_are_one_row():
    labels = [
        m["label"] for m in lowtide.report(gpt(3)).to_dict()["views"][0]["modules"]
    ]
    assert "layers.0-2.attn" in labels
    assert collapse(["a.0.b", "a.1.b", "a.2.b", "a.7.b"]) == "a.0-2,7.b"
    assert collapse(["a.0.b.0", "a.0.b.1", "a.1.b.0"]) == "a.0-1.b.*"
    assert collapse(["a.0.b.0", "a.0.b.1", "a.1.b.0", "a.1.b.1"]) == "a.0-1.b.0-1"
    assert pattern_of("layer1.10.conv") == "layer1.*.conv"


def test_the_icicle_is_the_peak_module_by_module():
    root = lowtide.report(gpt(3)).to_dict()["views"][0]["icicle"]

    def check(box):
        assert not box["parts"] or sum(p["bytes"] for p in box["parts"]) == box["bytes"]
        assert bool(box["kind"]) <= (not box["parts"])
        for part in box["parts"]:
            check(part)

    check(root)
    assert root["bytes"] == gpt(3).baseline_peak_bytes
    (layers,) = (part for part in root["parts"] if part["name"] == "layers")
    assert sorted(part["name"] for part in layers["parts"]) == ["0", "1", "2"]
    attn = next(p for p in layers["parts"][0]["parts"] if p["name"] == "attn")
    assert {"parameter", "activation"} <= {p["kind"] for p in attn["parts"]}


def test_an_op_is_called_by_its_place_in_the_model():
    step = StepGraph.from_text("""
        resident x 8
        a = aten.convolution.default(x)  16 bytes 1 s
        n = aten.add.Tensor(x)  1 bytes 1 s
        b = f(a, n)  40 bytes 1 s
        turn(b) -> d  4 bytes
        g = aten.convolution_backward.default(a, d)  16 bytes 1 s
        -> g
    """)
    modules = ("conv1", "bn1", "bn1", "", "conv1")
    batch_norm = "aten._native_batch_norm_legit_functional.default + aten.relu.default"
    ops = [replace(op, module=m) for op, m in zip(step.ops, modules, strict=True)]
    ops[2] = replace(ops[2], target=batch_norm)
    assert titles(replace(step, ops=tuple(ops))) == (
        "conv1",
        "bn1 add",
        "bn1 + relu",
        step.ops[3].name,
        "conv1 backward",
    )


@given(st.lists(st.integers(0, 100), min_size=1, max_size=400), st.integers(4, 60))
def test_downsampling_never_loses_the_peak(values, limit):
    kept = keep_extremes(values, limit)
    assert kept == sorted(set(kept))
    assert len(kept) <= max(limit, len(values) if len(values) <= limit else limit + 2)
    assert values.index(max(values)) in kept
    assert min(values[i] for i in kept) == min(values)


def test_a_long_step_is_sampled_with_its_peak(monkeypatch):
    from lowtide.reporting import data as report_data

    monkeypatch.setattr(report_data, "FULL_LIMIT", 50)
    step = gpt(3)
    plan = dropping(step, 0.6)
    data = lowtide.report(step, plan).to_dict()
    tide = data["views"][0]["tide"]
    assert len(tide["run"]) < 60 < tide["num_runs"]
    assert max(tide["live_bytes"]) == plan.peak_bytes
    assert tide["run"][tide["live_bytes"].index(plan.peak_bytes)] == tide["peak_run"]
    assert any("50" in note["text"] for note in data["notes"])


def test_every_point_of_a_frontier_has_a_view_of_its_own(whole):
    step, _, data = whole
    points = data["frontier"]["points"]
    assert {p["planner"] for p in points} == {"auto", "dtr"}
    assert sum(p["is_shown"] for p in points) == 1
    for point in points:
        view = data["views"][point["view"]]
        assert view["tide"]["peak_bytes"] == point["peak_bytes"]
        shown = {card["id"]: card["number"] for card in view["cards"]}
        assert shown["peak"] == view["icicle"]["bytes"] == point["peak_bytes"]
        assert shown["time"] == point["overhead"]
        assert sum(row["bytes"] for row in view["peak"]["rows"]) == point["peak_bytes"]
        assert view["lifetimes"]
        assert view["modules"]
    assert data["frontier"]["bound_bytes"] == step.resident_bytes


def test_a_bound_holds_for_every_smaller_budget():
    step = gpt(1)
    plan = make_plan(step, with_frees(step, step.baseline), planner="auto")

    def point(budget, seconds):
        proof = replace(plan.proof, bound_seconds=seconds * plan.baseline_seconds)
        return replace(plan, budget_bytes=budget, proof=proof)

    corners = bound([point(10, 1.1), point(20, 1.25), point(30, 1.0), point(5, 1.3)])
    found = [(c["budget_bytes"], round(c["overhead"], 6)) for c in corners]
    assert found == [(20, 0.25), (5, 0.3)]


def test_measured_and_predicted_stand_side_by_side(whole):
    _, plan, data = whole
    before, peak, time = data["fidelity"]["rows"]
    assert before["measured"] == 1.01 * plan.baseline_seconds
    assert (peak["predicted"], peak["measured"]) == (
        plan.peak_bytes,
        plan.peak_bytes + 4096,
    )
    assert time["difference"] == pytest.approx(0.02)
    assert max(data["views"][0]["measured"]["live_bytes"]) == plan.peak_bytes + 4096
    assert [c["name"] for c in data["fidelity"]["checks"]] == [
        "loss",
        "gradients",
        "buffers",
        "random generator",
    ]
    assert data["batch"][3]["baseline_peak_bytes"] is None
    assert len(data["batch"]) == len(BATCHES)


def test_measured_bytes_stand_at_the_runs_that_allocate_them():
    step = StepGraph.from_text(SMALL)
    plan = planners.load("keep_all").plan(step)
    real = measured(step, plan)
    # f, g and h make one storage each; the turn d; hb makes db, then b and d go; gb
    # makes da, then a and db go.
    assert [b - 4096 for b in real.live_bytes] == [
        *(24, 64, 68, 72),
        *(112, 72, 68),
        *(84, 68, 28),
    ]
    line = lowtide.report(step, plan, real).to_dict()["views"][0]["measured"]
    assert line["run"] == [0, 1, 2, 3, 4, 4, 4, 5, 5, 5]
    assert line["peak_bytes"] == plan.peak_bytes + 4096
    assert line["start_seconds"] == [0, 1, 2, 3, 3, 3, 3, 4, 4, 4]
    # A real step allocates a little more often, and still ends at the last run.
    longer = replace(real, live_bytes=real.live_bytes * 3)
    line = lowtide.report(step, plan, longer).to_dict()["views"][0]["measured"]
    assert (line["run"][0], line["run"][-1]) == (0, 5)
    assert line["run"] == sorted(line["run"])


def test_only_the_shown_schedules_measurement_is_drawn_over_it():
    step = StepGraph.from_text(SMALL)
    plan = planners.load("recompute_all").plan(step)
    real = {"baseline": measured(step, planners.load("keep_all").plan(step))}
    assert lowtide.report(step, plan, real).to_dict()["views"][0]["measured"] is None
    assert lowtide.report(step, real).to_dict()["views"][0]["measured"] is not None
    without = replace(real["baseline"], live_bytes=())
    assert lowtide.report(step, without).to_dict()["views"][0]["measured"] is None


def test_a_verification_brings_its_measurement():
    step = gpt(1)
    plan = dropping(step, 0.5)
    found = replace(verified(plan), measured=measured(step, plan), loss_equal=False)
    data = lowtide.report(step, plan, found).to_dict()
    shown = {card["id"]: card for card in data["views"][0]["cards"]}
    assert f"measured {format_bytes(plan.peak_bytes + 4096)}" in shown["peak"]["detail"]
    assert data["fidelity"]["checks"][0] == {"name": "loss", "equal": False}


def test_data_is_plain():
    data = lowtide.report(*everything(gpt(2))).to_dict()
    assert json.loads(json.dumps(data)) == data


def test_a_plan_alone_still_makes_a_report():
    plan = dropping(gpt(2), 0.5)
    data = lowtide.report(plan).to_dict()
    assert cards(data)["peak"] == plan.peak_bytes
    assert data["views"][0]["tide"] is None
    assert "step of this plan was not given" in data["notes"][-1]["text"]


@pytest.mark.parametrize(
    "text",
    [
        "resident x 8",
        "resident x 8\na = f(x) 0 bytes\n-> a",
        "resident x 8\na = f(x) 16 bytes 1 s\n-> a",
    ],
    ids=["no ops", "no time and no bytes", "no turn"],
)
def test_degenerate_steps(text):
    step = StepGraph.from_text(text)
    made = lowtide.report(step)
    assert cards(made.to_dict())["peak"] == step.baseline_peak_bytes
    assert "Nothing is planned yet" in str(made)
    assert "<h1>text</h1>" in made.to_html()


def test_what_cannot_be_shown_is_refused():
    with pytest.raises(InvalidArgumentError, match="neither a step nor a plan"):
        lowtide.report()
    with pytest.raises(InvalidArgumentError, match=r"report\(float\)"):
        lowtide.report(gpt(1), 3.5)
    with pytest.raises(PlanMismatchError):
        lowtide.report(gpt(1), dropping(gpt(2), 0.5))
    with pytest.raises(InvalidArgumentError, match="compare them with"):
        lowtide.report(gpt(1), gpt(2))


def test_a_frontier_alone_shows_its_knee():
    step = gpt(2)
    made = frontier(step)
    data = lowtide.report(step, made).to_dict()
    assert cards(data)["peak"] == made.knee.peak_bytes


def test_a_plan_that_is_best_for_two_budgets_is_one_point():
    step = gpt(2)
    points = frontier(step).points
    wider = replace(points[2], budget_bytes=10 * points[2].budget_bytes)
    made = replace(frontier(step), points=(*points, wider), knee=points[3])
    data = lowtide.report(step, made).to_dict()
    assert len(data["frontier"]["points"]) == len(points)
    assert cards(data)["peak"] == points[3].peak_bytes
    assert sum(p["is_shown"] for p in data["frontier"]["points"]) == 1


def test_saving_is_all_or_nothing(tmp_path):
    made = lowtide.report(gpt(1))
    path = tmp_path / "r.html"
    path.write_text("a thesis")
    with pytest.raises(OutputError, match=r"r\.html: the file exists.*force"):
        made.save(path)
    assert path.read_text() == "a thesis"
    assert made.save(path, force=True) == path
    assert made.save(path).read_text() == made.to_html()  # a report, over a report
    with pytest.raises(OutputError, match="No such file or directory"):
        made.save(tmp_path / "missing" / "r.html")
    with pytest.raises(OutputError, match="it is a folder"):
        made.save(_folder(tmp_path / "f.html"))
    with pytest.raises(InvalidArgumentError, match=r"\.html, \.json or \.txt"):
        made.save(tmp_path / "r.pdf")
    assert json.loads(made.save(tmp_path / "r.json").read_text()) == made.to_dict()
    text = made.save(tmp_path / "r.txt").read_text()
    assert text == f"lowtide report\n\n{made}\n"
    assert sorted(p.name for p in tmp_path.iterdir()) == [
        "f.html",
        "r.html",
        "r.json",
        "r.txt",
    ]


def _folder(path):
    path.mkdir()
    return path


def test_a_full_disk_leaves_the_old_file(tmp_path, monkeypatch):
    path = tmp_path / "r.html"
    path.write_text("old")

    def full(_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("lowtide.step.files.os.fsync", full)
    with pytest.raises(OutputError, match="No space left on device"):
        lowtide.report(gpt(1)).save(path, force=True)
    assert path.read_text() == "old"
    assert [p.name for p in tmp_path.iterdir()] == ["r.html"]


@pytest.mark.parametrize("step", GRAPHS, ids=lambda g: g.name)
def test_walks_agree_with_the_simulator(step):
    plan = planners.load("recompute_all").plan(step)
    walked = walk(step, plan.schedule)
    timeline = simulate(step, plan.schedule)
    assert max(walked.live_bytes) == walked.peak_bytes == timeline.peak_bytes
    assert walked.live_bytes[walked.peak_run] == timeline.peak_bytes
    assert walked.live_bytes.index(timeline.peak_bytes) == walked.peak_run
    peak = peak_of(walked)
    assert sum(peak.by_kind().values()) == timeline.peak_bytes
    extra = extra_runs(walked, lambda op: op.id)
    assert sum(e.num_runs for e in extra.values()) == walked.num_extra_runs
    assert set(extra) == set(plan.recomputed)
    words = {fate.storage: fate.word for fate in fates(walked)}
    assert {s for s, w in words.items() if w in ("kept", "both")} == set(plan.kept)


def test_standby_runs_are_extra_runs():
    step = StepGraph.from_text("""
        resident x 8
        a     = f(x)           16 bytes 1 s
        b, m  = g(a)           40 4 bytes 2 s  random
        b     = g_again(a, m)  40 bytes 4 s  standby
        c     = h(b)           8 bytes  1 s
        turn(c) -> d           4 bytes
        da    = gb(a, b, d)    16 bytes 2 s
        -> da
    """)
    # b is dropped and a is kept: the replay is the only run that the baseline has not.
    plan = make_plan(step, from_kept(step, {1, 3}), planner="by hand")
    walked = walk(step, plan.schedule)
    extra = extra_runs(walked, lambda op: op.name)
    assert {name: (e.num_runs, e.seconds) for name, e in extra.items()} == {
        "g_again": (1, 4.0)
    }
    assert plan.seconds - plan.baseline_seconds == 4.0
    said = " ".join(str(lowtide.report(step, plan)).split())
    assert "recomputed 1 extra run 4.00 s: g_again 1 " in said
    assert "The peak stays at 84 B, for 66.7 % more time." in said


def test_the_activation_peak_leaves_scratch_out_as_a_ledger_does():
    step = StepGraph.from_text("""
        resident x 8
        a  = f(x)        16 bytes 1 s  scratch 1000
        turn(a) -> d     4 bytes
        da = fb(a, d)    16 bytes 1 s
        -> da
    """)
    # a 16 + d 4; x is resident, da an output, and the scratch is inside of f.
    data = lowtide.report(step).to_dict()
    assert cards(data)["within"] == activation_peak_bytes(step) == 20
    assert cards(data)["peak"] == 8 + 16 + 1000


def test_a_name_of_a_megabyte_makes_a_small_page():
    step = renamed(gpt(2), 1_000_000 * "n")
    made = lowtide.report(step, dropping(gpt(2), 0.5), frontier(step))
    assert len(made.to_html()) < 1_000_000
    assert len(str(made)) < 100_000


def test_records_are_shown_in_a_line():
    step = gpt(6)
    plan = dropping(step, 0.6)
    assert repr(plan) == (
        "<Plan of gpt by auto: peak 7.22 MiB of 12.17 MiB, +31.7 % time, 6 kept, "
        "109 recomputed>"
    )
    found = verified(plan)
    said = repr(found)
    assert said == f"<Verification of {plan!r}: all equal, 12 gradients among them>"
    wrong = replace(found, differences=("loss: 1.0 against 2.0", "buffer b: 1"))
    assert repr(wrong).endswith(": loss: 1.0 against 2.0 and 1 more>")
    assert len(repr(measured(step, plan))) < 300
    assert len(repr(frontier(step))) < 2000


def test_the_search_only_falls_and_ends_at_the_plan():
    step = gpt(2)
    plan = dropping(step, 0.6)
    # A slower plan found later, and one that was faster because it did not fit.
    slow, least = 2 * plan.seconds, plan.proof.bound_seconds / 2
    history = ((0.1, slow), (0.2, plan.seconds), (0.3, slow), (0.4, least))
    plan = replace(plan, proof=replace(plan.proof, history=history))
    search = lowtide.report(step, plan).to_dict()["views"][0]["search"]
    shown = [point["overhead"] for point in search["incumbent"]]
    assert shown == sorted(shown, reverse=True)
    assert len(shown) == 2
    assert shown[-1] == pytest.approx(search["overhead"])
    assert min(shown) >= search["bound_overhead"]


def test_savings_are_those_against_the_step_without_lowtide():
    step = gpt(2)
    extra = step.baseline_peak_bytes
    step = replace(step, facts={**step.facts, "eager_extra_bytes": extra})
    plan = dropping(step, 0.6)
    data = lowtide.report(step, plan).to_dict()
    (view,) = data["views"]
    cards = {card["id"]: card for card in view["cards"]}
    assert step.eager_peak_bytes == 2 * extra
    assert cards["peak"]["before"] == format_bytes(step.eager_peak_bytes)
    assert view["tide"]["eager_peak_bytes"] == step.eager_peak_bytes
    assert view["tide"]["outline"]["peak_bytes"] == step.baseline_peak_bytes
    share = f"{100 * (1 - plan.peak_bytes / step.eager_peak_bytes):.1f} %"
    assert share in cards["peak"]["detail"]
    assert share in view["headline"]


def test_a_step_that_fits_its_budget_is_said_to_fit():
    step = gpt(2)
    plan = lowtide.plan(step, budget="100%")
    assert (
        "already fits" in lowtide.report(step, plan).to_dict()["views"][0]["headline"]
    )


def test_the_batch_report_has_the_budget_that_was_asked():
    asked = {"lowtide": "batch", "budget_bytes": 12_345, "rows": BATCHES}
    data = lowtide.report(gpt(2), asked).to_dict()
    assert (
        data["batch_budget_bytes"] == data["views"][0]["tide"]["budget_bytes"] == 12_345
    )
    # 1000 n + 500 bytes without a plan, 600 n + 500 with one.
    said = "the largest of these batches is 8 samples without a plan and 16 samples"
    assert said in data["views"][0]["headline"]
    # Without a plan there is no budget to draw.
    assert lowtide.report(gpt(2)).to_dict()["views"][0]["tide"]["budget_bytes"] == 0
    assert len(data["batch"]) == len(BATCHES)

"""Exports: other tools' forms, read back with torch's own readers."""

import csv
import io
import json
import pickle
from dataclasses import replace

import pytest

import lowtide
from lowtide import planners
from lowtide.errors import InvalidArgumentError, MissingPackageError, OutputError
from lowtide.reporting.export import FORMS, chrome_trace, policies, policy_file
from lowtide.reporting.snapshot import snapshot
from lowtide.step.graph import FOLDED
from tests.graphs import GRAPHS, chain, random_dag
from tests.report_steps import dropping, everything, gpt

STEPS = [*GRAPHS[:8], random_dag(5, 20)]


def traced_peak(events, process):
    counters = [e for e in events if e["ph"] == "C" and e["pid"] == process]
    return max(sum(e["args"].values()) for e in counters)


@pytest.mark.parametrize("step", STEPS, ids=lambda g: g.name)
def test_the_traces_highest_counter_is_the_peak(step):
    plan = planners.load("recompute_all").plan(step)
    events = json.loads(chrome_trace(step, plan))["traceEvents"]
    assert traced_peak(events, 1) == plan.peak_bytes
    assert traced_peak(events, 2) == step.baseline_peak_bytes
    runs = [e for e in events if e["ph"] == "X" and e["pid"] == 1]
    assert [e["name"] for e in runs] == [step.ops[i].name for i in plan.ops]
    assert all(e["dur"] > 0 for e in runs)
    stamps = [e["ts"] for e in events if e["pid"] == 1]
    assert stamps == sorted(stamps)


def test_the_trace_loads_in_torchs_readers(tmp_path):
    from torch._inductor.analysis.profile_analysis import JsonProfile
    from torch.profiler._trace_validator import validate_trace

    step = gpt(2)
    plan = dropping(step, 0.5)
    path = lowtide.export(step, plan, tmp_path / "t.json", to="chrome")
    passed, violations = validate_trace(str(path))
    assert passed, violations
    assert traced_peak(JsonProfile(str(path)).events, 1) == plan.peak_bytes


def highest(trace):
    """The most bytes allocated at once, as memory_viz counts them."""
    now = most = 0
    sizes = {}
    for event in trace:
        if event["action"] == "alloc":
            assert event["addr"] not in sizes
            sizes[event["addr"]] = event["size"]
            now += event["size"]
        elif event["action"] == "free_completed":
            assert sizes.pop(event["addr"]) == event["size"]
            now -= event["size"]
        most = max(most, now)
    return most, now


@pytest.mark.parametrize("step", STEPS, ids=lambda g: g.name)
def test_the_snapshots_highest_moment_is_the_peak(step):
    plan = planners.load("recompute_all").plan(step)
    made = snapshot(step, plan)
    for device, peak in enumerate((plan.peak_bytes, step.baseline_peak_bytes)):
        most, left = highest(made["device_traces"][device])
        assert most == peak
        segment = made["segments"][device]
        assert left == segment["allocated_size"]
        assert sum(b["size"] for b in segment["blocks"]) == segment["total_size"]


def test_addresses_never_overlap():
    step = gpt(2)
    alive = {}
    for event in snapshot(step, dropping(step, 0.5))["device_traces"][0]:
        if event["action"] == "alloc" and event["size"]:
            first, last = event["addr"], event["addr"] + event["size"]
            assert all(last <= a or b <= first for a, b in alive.values())
            alive[event["addr"]] = (first, last)
        elif event["action"] == "free_completed":
            alive.pop(event["addr"], None)


def test_the_snapshot_loads_in_torchs_readers(tmp_path):
    from torch.cuda import _memory_viz

    step = gpt(2)
    plan = dropping(step, 0.5)
    path = lowtide.export(step, plan, tmp_path / "s.pickle", to="memory_viz")
    made = pickle.loads(path.read_bytes())
    assert highest(made["device_traces"][0])[0] == plan.peak_bytes
    assert "segments: 2" in _memory_viz.segsum(made)
    written = _memory_viz.trace(made)
    allocations = sum(
        e["action"] == "alloc" for trace in made["device_traces"] for e in trace
    )
    assert written.count(" = seg_") + written.count(" = MEM[") == allocations
    assert "Active Memory Timeline" in _memory_viz.trace_plot(made)
    # Blocks as lines of a flame graph; their sizes sum to what is alive at the end.
    lines = _memory_viz.memory(made, format_flamegraph=lambda text: text)
    held = [
        int(row.rsplit(" ", 1)[1])
        for row in lines.splitlines()
        if "active_allocated" in row
    ]
    assert sum(held) == sum(s["allocated_size"] for s in made["segments"])


def test_memory_viz_can_read_the_pickle():
    """Its reader knows protocols up to 4 and these opcodes, and no others."""
    import pickletools

    known = set(
        "APPEND APPENDS BINGET BININT BININT1 BININT2 EMPTY_DICT EMPTY_LIST FRAME "
        "LONG1 LONG_BINGET MARK MEMOIZE PROTO SETITEMS SHORT_BINUNICODE STOP TUPLE2 "
        "NEWFALSE BINPUT BINUNICODE EMPTY_TUPLE NEWTRUE NONE BINFLOAT TUPLE TUPLE1 "
        "TUPLE3 LONG_BINPUT LIST DICT SETITEM".split()
    )
    step = gpt(1)
    data = FORMS["memory_viz"](step, dropping(step, 0.5))
    used = {opcode.name for opcode, _, _ in pickletools.genops(data)}
    assert used <= known
    made = pickle.loads(data)
    # It adds the category "unknown" itself if it misses it, under a misspelt name.
    categories = {e.get("category") for e in made["device_traces"][0]}
    assert "unknown" in categories


def test_csv_has_a_row_for_each_run():
    step = gpt(2)
    plan = dropping(step, 0.5)
    rows = list(csv.DictReader(io.StringIO(FORMS["csv"](step, plan))))
    assert len(rows) == len(plan.ops)
    assert max(int(r["live_bytes"]) for r in rows) == plan.peak_bytes
    for row in rows:
        kinds = [int(v) for k, v in row.items() if k.endswith("_bytes")]
        assert sum(kinds) == 2 * int(row["live_bytes"])


def test_tags_say_what_the_plan_keeps():
    step = gpt(2)
    plan = dropping(step, 0.5)
    rows = policies(step, plan)
    saved = {r["op"] for r in rows if r["policy"] == "MUST_SAVE"}
    kept = frozenset(plan.kept)
    makers = {op.name for op in step.ops if kept & set(op.writes) and not op.standby}
    assert saved == makers
    names = [op.name for op in step.ops if op.phase == "forward" and not op.standby]
    assert [r["op"] for r in rows] == names


def test_an_op_of_a_file_may_have_more_targets_than_names():
    step = STEPS[0]
    first = replace(step.ops[0], target=FOLDED.join(["a", "b"]))
    step = replace(step, ops=(first, *step.ops[1:]))
    rows = policies(step, planners.load("recompute_all").plan(step))
    assert rows[0]["op"] == first.name
    assert rows[0]["target"] == first.target


def test_the_policy_file_drives_torchs_selective_form():
    """Three linear layers with ReLU, planned without torch, run with it."""
    import torch
    from torch.utils.checkpoint import checkpoint, create_selective_checkpoint_contexts

    step = chain(3, rows=8, widths=(4,))
    plan = planners.load("recompute_all").plan(step)
    code = policy_file(step, plan).replace('"linear"', '"aten.mm.default"')
    space = {}
    exec(compile(code, "policy.py", "exec"), space)
    # keep one product: the second
    space["FATES"]["aten.mm.default"] = "rSr"
    torch.manual_seed(0)
    weights = [torch.randn(4, 4, requires_grad=True) for _ in range(3)]
    x = torch.randn(8, 4)

    def model(x):
        for w in weights:
            x = torch.relu(x @ w)
        return x.sum()

    model(x).backward()
    expected = [w.grad.clone() for w in weights]
    for w in weights:
        w.grad = None
    policy = space["Policy"]()
    loss = checkpoint(
        model,
        x,
        use_reentrant=False,
        context_fn=lambda: create_selective_checkpoint_contexts(policy),
    )
    loss.backward()
    assert all(torch.equal(w.grad, g) for w, g in zip(weights, expected, strict=True))
    assert policy.turns[False]["aten.mm.default"] == 3


def test_unknown_forms_and_existing_files_are_refused(tmp_path):
    step = gpt(1)
    with pytest.raises(InvalidArgumentError, match="chrome, memory_viz, csv, tags"):
        lowtide.export(step, None, tmp_path / "x", to="xml")
    for form in FORMS:
        path = tmp_path / form
        path.write_text("a thesis")
        with pytest.raises(OutputError, match="the file exists"):
            lowtide.export(step, None, path, to=form)
        assert path.read_text() == "a thesis"


def test_pictures_of_every_chart(tmp_path):
    made = lowtide.report(*everything(gpt(2)))
    names = "tide frontier lifetimes batch search".split()
    written = made.save_plots(tmp_path / "svg")
    assert [p.name for p in written] == [f"{n}.svg" for n in names]
    assert all(p.read_text().startswith("<?xml") for p in written)
    again = made.save_plots(tmp_path / "again")
    assert [p.read_bytes() for p in again] == [p.read_bytes() for p in written]
    with pytest.raises(InvalidArgumentError, match="svg, png, pdf"):
        made.save_plots(tmp_path, form="gif")
    (png, *_) = made.save_plots(tmp_path / "png", form="png")
    assert png.read_bytes()[:4] == b"\x89PNG"


def test_pictures_without_matplotlib_say_what_to_install(tmp_path, monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "matplotlib", None)
    with pytest.raises(MissingPackageError, match=r"pip install lowtide\[plot\]"):
        lowtide.report(gpt(1)).save_plots(tmp_path)

"""The command line on real models: every verb that needs torch, as its own process."""

import json
import re
import signal
import sqlite3
from contextlib import closing

import pytest

from lowtide import Plan, StepGraph
from lowtide.engine.costs.cache import CostCache
from tests.shell import check_golden, run, start, transcript, without_numbers

pytestmark = pytest.mark.real

TARGET = """
import torch
from torch import nn


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(32, 32) for _ in range(6))

    def forward(self, x):
        for layer in self.layers:
            x = nn.functional.gelu(layer(x))
        return x.square().sum(dim=1)


class Wrong(Net):
    def forward(self, x):
        return super().forward(x) @ torch.ones(3)


def make(batch=512):
    print("a word of the user's own")
    return Net(), torch.randn(batch, 32), lambda output: output.mean()


def wrong():
    return Wrong(), torch.randn(4, 32)


def odd():
    return Net(), torch.randn(4, 32), "mean"
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A folder with a target, and the plan that the command line made for it."""
    path = tmp_path_factory.mktemp("cli")
    (path / "train.py").write_text(TARGET)
    words = ("train.py:make", "--budget", "80%", "--time-limit", "2")
    done = run("plan", *words, "-o", "net.plan.json", cwd=path)
    assert done.code == 0, done.err
    assert "a word of the user's own" in done.err
    assert "a word of the user's own" not in done.out
    assert done.lines[-1] == "next: lowtide report net.plan.json"
    return path


# Output whose numbers are measured: compared without them.


def check_words(verb, *commands, cwd, **changes):
    """Compare a verb's help, and what its commands print, with its golden file."""
    help = transcript(f"{verb} --help", cwd=cwd)
    text = transcript(*commands, cwd=cwd, show=without_numbers, **changes)
    check_golden(f"cli_{verb}.txt", f"{help}\n{text}")


def test_golden_verify(folder):
    good = "verify train.py:make --plan net.plan.json"
    check_words("verify", good, "verify train.py:make", cwd=folder)


@pytest.mark.slow
def test_golden_batch(tmp_path):
    words = "batch mlp --batches 64,256 -O width=64 --time-limit 1"
    check_words("batch", f"{words} -o b.json", "batch mlp --batches x", cwd=tmp_path)


def test_golden_doctor(tmp_path):
    settings = {"CUDA_VISIBLE_DEVICES": "", "LOWTIDE_CACHE_DIR": "kept"}
    check_words("doctor", "doctor", cwd=tmp_path, **settings)


def test_the_age_of_op_times_is_shown_and_they_are_measured_again(tmp_path):
    words = ("profile", "mlp", "-O", "width=16", "--no-floor")
    where = {"LOWTIDE_CACHE_DIR": "kept"}
    assert run(*words, cwd=tmp_path, **where).code == 0
    with closing(sqlite3.connect(tmp_path / "kept" / "op-costs.sqlite")) as kept:
        kept.execute("update costs set measured_at = measured_at - 7200")
        kept.commit()
    assert "the oldest 2 h" in run("doctor", cwd=tmp_path, **where).out
    assert run(*words, "--refresh", cwd=tmp_path, **where).code == 0
    assert max(CostCache(tmp_path / "kept").ages()) < 3600


@pytest.mark.slow
def test_golden_bench(tmp_path):
    words = "bench mlp --methods eager,sequential --budgets 90%,theirs --steps 1"
    check_words("bench", f"{words} -o x.json", "bench", cwd=tmp_path)


@pytest.mark.slow
def test_golden_demo(tmp_path):
    check_words("demo", "demo --steps 3", cwd=tmp_path)


def test_a_plan_of_a_function_leaves_its_step_beside_it(folder):
    plan = Plan.load(folder / "net.plan.json")
    step = StepGraph.load(folder / "net.step.json")
    assert plan.fingerprint == step.fingerprint
    assert plan.peak_bytes <= 0.8 * step.baseline_peak_bytes
    assert step.facts["target"] == ["train.py:make"]
    assert run("report", "net.plan.json", "--text", cwd=folder).code == 0


@pytest.mark.slow
def test_verify_compares_bit_by_bit(folder):
    done = run("verify", "train.py:make", "--plan", "net.plan.json", cwd=folder)
    assert done.code == 0, done.err
    assert done.out.count("equal, bit by bit") == 4
    assert "DIFFERENT" not in done.out


def test_verify_fails_with_its_own_code(folder):
    data = json.loads((folder / "net.plan.json").read_text())
    data["budget_bytes"] = 1  # a promise that no step can keep
    (folder / "liar.plan.json").write_text(json.dumps(data))
    words = ("verify", "train.py:make", "--plan", "liar.plan.json")
    done = run(*words, "--json", cwd=folder)
    assert done.code == 4
    assert "above the budget of 1 bytes" in done.err
    assert json.loads(done.out)["ok"] is False


@pytest.mark.slow
def test_a_plan_for_another_batch_does_not_match(folder):
    words = ("verify", "train.py:make", "--batch", "32", "--plan", "net.plan.json")
    done = run(*words, cwd=folder)
    assert done.code == 1
    assert "this plan is for step" in done.err


def test_a_model_that_raises_shows_the_users_line(folder):
    done = run("profile", "train.py:wrong", cwd=folder)
    assert done.code == 1
    assert "at train.py:19: return super().forward(x) @ torch.ones(3)" in done.err
    assert "RuntimeError" in done.err
    assert "Traceback" not in done.err


def test_a_function_that_returns_something_else(folder):
    done = run("profile", "train.py:odd", cwd=folder)
    assert done.code == 2
    assert "returned a tuple of (Net, Tensor, str)" in done.err


@pytest.mark.slow
def test_profile_and_verify_of_a_built_in_model(tmp_path):
    words = ("mlp", "--batch", "64", "-O", "width=32", "-O", "layers=2")
    done = run("plan", *words, "--budget", "95%", "-o", "mlp.plan.json", cwd=tmp_path)
    assert done.code == 0, done.err
    # The step beside the plan says which model it was, so the plan alone will do.
    done = run("verify", "mlp.plan.json", "--json", cwd=tmp_path)
    assert done.code == 0, done.err
    found = json.loads(done.out)
    assert found["ok"]
    assert found["measured_peak_bytes"] <= found["budget_bytes"]


@pytest.mark.slow
def test_an_estimate_allocates_nothing_and_names_a_device(tmp_path):
    words = ("profile", "tiny_gpt", "-O", "width=4096", "-O", "layers=2")
    done = run(*words, "--how", "estimate", "--device", "a100-80gb", cwd=tmp_path)
    assert done.code == 0, done.err
    assert "GiB" in done.out
    done = run(*words, "--how", "estimate", "--device", "abacus", cwd=tmp_path)
    assert done.code == 2
    assert "no description of such a device" in done.err


@pytest.mark.slow
def test_batch_shows_every_size_and_the_largest(tmp_path):
    words = ("batch", "mlp", "--batches", "64,256", "-O", "width=64", "-o", "b.svg")
    done = run(*words, "--time-limit", "1", "--json", cwd=tmp_path)
    assert done.code == 0, done.err
    found = json.loads(done.out)
    small, large = found["rows"]
    assert (small["batch"], large["batch"]) == (64, 256)
    assert found["budget_bytes"] == small["baseline_peak_bytes"]
    assert small["measured_planned"]["peak_bytes"] <= found["budget_bytes"]
    assert found["largest_batch"] >= 64
    assert found["largest_peak_bytes"] <= found["budget_bytes"]
    assert "<svg" in (tmp_path / "b.svg").read_text()


@pytest.mark.slow
def test_doctor(tmp_path):
    done = run("doctor", cwd=tmp_path)
    assert done.code == 0, done.out
    assert "torch" in done.out
    assert done.lines[-1] == "next: lowtide demo"
    found = json.loads(run("doctor", "--json", cwd=tmp_path, LOWTIDE_BUDGET="1GiB").out)
    assert found["ok"]
    assert {"name": "LOWTIDE_BUDGET", "found": "1GiB", "verdict": "set"} in found[
        "rows"
    ]


@pytest.mark.slow
def test_demo(tmp_path):
    done = run("demo", cwd=tmp_path)
    assert done.code == 0, done.err
    told = json.loads(run("demo", "-o", "x.html", "--json", cwd=tmp_path).out)
    assert told["planned_peak_bytes"] <= told["budget_bytes"]
    assert done.out.count("same bits") == 8
    assert "8 of 8 losses" in done.out
    page = (tmp_path / "demo.html").read_text()
    assert re.search(r'id="card-bits"[^>]* data-value="identical"', page)
    assert run("demo", cwd=tmp_path).code == 0  # replaces its own report


@pytest.mark.slow
def test_a_profile_as_tables(tmp_path):
    words = ("profile", "mlp", "--how", "estimate", "--no-floor")
    for rows, first in (("storages", "storage"), ("ops", "op"), ("modules", "name")):
        done = run(*words, "--csv", f"{rows}.csv", "--csv-of", rows, cwd=tmp_path)
        assert done.code == 0, done.err
        head, *lines = (tmp_path / f"{rows}.csv").read_text().splitlines()
        assert head.split(",")[0] == first
        assert lines
    again = run(*words, "--csv", "ops.csv", cwd=tmp_path)
    assert again.code == 1
    assert "the file exists" in again.err


@pytest.mark.slow
def test_this_machine_can_be_measured(tmp_path):
    found = run("doctor", "--calibrate", "--json", cwd=tmp_path)
    assert found.code == 0, found.err
    described = json.loads(found.out)
    assert described["bandwidth_bytes_per_second"] > 1e8
    assert described["name"] == "cpu"


@pytest.mark.slow
def test_a_plan_for_another_batch_says_which_shapes_differ(tmp_path):
    mlp = ("mlp", "-O", "width=64")
    plan = ("--budget", "95%", "--time-limit", "1", "-o", "mlp.plan.json")
    done = run("plan", *mlp, "--batch", "64", *plan, cwd=tmp_path)
    assert done.code == 0, done.err
    done = run("verify", *mlp, "--batch", "8", "--plan", "mlp.plan.json", cwd=tmp_path)
    assert done.code == 1
    assert "the plan is for inputs of 64x64, these are 8x64" in done.err


@pytest.mark.slow
def test_an_interrupted_batch_leaves_what_was_found(tmp_path):
    words = ("mlp", "-O", "width=64", "--batches", "8,16", "--time-limit", "1")
    process = start("batch", *words, "-o", "b.json", cwd=tmp_path)
    assert process.stderr is not None
    while "running a batch of 8" not in process.stderr.readline():
        pass
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=60)
    assert process.returncode == 0, err
    assert "interrupted: this is what was found so far" in err
    assert "saved  b.json" in out

"""The acceptance run of `lowtide doctor --full`."""

import json

import pytest

from lowtide.engine.jobs import acceptance
from tests.shell import run

MLP = {"products": ("mlp", {"batch": 256, "width": 64})}
WRONG = {"no such model": ("mlp", {"batch": 0})}


def test_a_model_is_tried_at_two_budgets():
    between, lowest = acceptance.trials(cases=MLP)
    for trial in (between, lowest):
        assert trial.ok, (trial.failure, trial.differences)
        assert trial.device == "cpu"
        assert 0 < trial.measured_peak_bytes <= trial.predicted_peak_bytes
    assert lowest.measured_peak_bytes < between.measured_peak_bytes


def test_a_model_that_fails_does_not_end_the_run():
    failed, *others = acceptance.trials(cases=WRONG | MLP)
    assert not failed.ok
    assert "batch" in failed.failure
    assert all(trial.ok for trial in others)


@pytest.mark.slow
def test_doctor_full(tmp_path):
    done = run("doctor", "--full", "-o", "here.json", cwd=tmp_path)
    assert done.code == 0, done.out + done.err
    found = json.loads((tmp_path / "here.json").read_text())
    assert found["ok"]
    assert len(found["trials"]) >= 8
    assert found["machine"]["name"] == "cpu"
    again = run("doctor", "--full", "-o", "other.txt", cwd=tmp_path)
    assert again.code == 2

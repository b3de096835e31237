"""`lowtide run`: scripts as they are, in processes of their own."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from tests.shell import environment, run

pytestmark = pytest.mark.real

TRAIN = """
import sys
import torch
from torch import nn
import beside

class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.up, self.down = nn.Linear(32, 128), nn.Linear(128, 32)

    def forward(self, x):
        return x + self.down(torch.tanh(self.up(x)))

torch.manual_seed(0)
model = nn.Sequential(*(Block() for _ in range(4)))
optimizer = torch.optim.AdamW(model.parameters(), lr=float(sys.argv[2]))
for _ in range(3):
    x = torch.randn(512, 32)
    loss = (model(x) - x).square().mean()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    print(loss.item().hex())
print(sum(p.double().sum() for p in model.parameters()).item().hex())
sys.exit(7)
"""

MAIN = """
import multiprocessing, os, pickle, sys
class Own: ...
print(__name__, __file__, __spec__, sys.argv, os.path.basename(sys.path[0]))
print(sys.modules["__main__"].Own is Own, pickle.loads(pickle.dumps(Own())).__class__)
print("torch" in sys.modules)
"""


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "train.py").write_text(TRAIN)
    (tmp_path / "main.py").write_text(MAIN)
    (tmp_path / "beside.py").write_text("")
    return tmp_path


def python(*words, cwd):
    done = subprocess.run(
        [sys.executable, *words],
        cwd=cwd,
        env=environment(),
        capture_output=True,
        text=True,
        check=False,
    )
    return done.returncode, done.stdout


def test_a_loop_trains_to_the_same_bits_under_the_budget(folder):
    done = run("run", "--budget", "70%", "train.py", "--lr", "0.01", cwd=folder)
    assert (done.code, done.out) == python("train.py", "--lr", "0.01", cwd=folder)
    assert done.code == 7
    assert "lowtide: " in done.err
    assert " MiB -> " in done.err


@pytest.mark.parametrize("words", [("main.py",), ("-m", "main")])
def test_the_script_is_main_and_torch_is_its_own_business(words, folder):
    done = run("run", "--budget", "70%", *words, "--json", "-x", cwd=folder)
    ours, theirs = done.out, python(*words, "--json", "-x", cwd=folder)[1]
    if words[0] == "-m":  # python gives the module's full path; so does runpy
        assert ours.splitlines()[1:] == theirs.splitlines()[1:]
        assert "['" + str(folder / "main.py") in ours
    else:
        assert ours == theirs
    assert done.code == 0
    assert "nothing of it ran under the budget" in done.err


def test_json_names_what_was_planned(folder):
    words = ("run", "--json", "--budget", "70%", "train.py", "--lr", "0.01")
    done = run(*words, cwd=folder)
    assert json.loads(done.out[done.out.index("{") :]) == {"planned": ["Sequential"]}


def test_a_failing_script_shows_its_own_traceback(folder):
    (folder / "fails.py").write_text("def f():\n    1 / 0\nf()\n")
    done = run("run", "--budget", "70%", "fails.py", cwd=folder)
    code, _ = python("fails.py", cwd=folder)
    assert done.code == code == 1
    assert "ZeroDivisionError" in done.err
    assert "lowtide" not in done.err


def test_a_budget_that_cannot_be_kept_has_its_exit_code(folder):
    done = run("run", "--budget", "100 kB", "train.py", "--lr", "0.01", cwd=folder)
    assert done.code == 3
    assert "the lowest peak found" in done.err


def test_wrong_usage(folder):
    done = run("run", "train.py", cwd=folder)
    assert done.code == 2
    assert "--budget 6GiB" in done.err
    done = run("run", "--budget", "1 GiB", "missing.py", cwd=folder)
    assert done.code == 2
    assert "cannot be read" in done.err

"""Every example runs as its first lines say, and shows what it promises."""

import subprocess
import sys
from pathlib import Path

import pytest

from tests.shell import environment, run

pytestmark = pytest.mark.real

EXAMPLES = Path(__file__).parents[2] / "examples"


def script(name, *words, cwd):
    done = subprocess.run(
        [sys.executable, str(EXAMPLES / name), *map(str, words)],
        cwd=cwd,
        env=environment(),
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_every_example_has_a_test_and_a_line_in_the_list():
    here = Path(__file__).read_text()
    listed = (EXAMPLES / "README.md").read_text()
    names = [path.name for path in EXAMPLES.glob("*.py")]
    assert len(names) == 5
    assert [n for n in names if f'"{n}"' not in here or f"[{n}]" not in listed] == []


@pytest.mark.slow
def test_custom_planner(tmp_path):
    out = script("custom_planner.py", cwd=tmp_path)
    assert "largest_first: peak" in out
    assert "verified: the same bits" in out


@pytest.mark.slow
def test_train_images(tmp_path):
    words = ("--steps", 2, "--batch", 16, "--budget", "85%")
    out = script("train_images.py", *words, cwd=tmp_path)
    assert "step 2  loss" in out
    assert "auto: peak" in out


@pytest.mark.slow
def test_train_gpt(tmp_path):
    out = script("train_gpt.py", "--steps", 3, "--batch", 4, cwd=tmp_path)
    assert "every weight is equal, bit by bit" in out


@pytest.mark.slow
def test_custom_network(tmp_path):
    out = script("custom_network.py", "--report", "net.html", cwd=tmp_path)
    assert "equal bits" in out
    assert (tmp_path / "net.html").exists()
    target = f"{EXAMPLES / 'custom_network.py'}:make_step"
    done = run("verify", target, "--batch", "2", "--budget", "70%", cwd=tmp_path)
    assert done.code == 0, done.err


@pytest.mark.slow
def test_sweep_and_plot(tmp_path):
    out = script("sweep_and_plot.py", "--folder", "figures", cwd=tmp_path)
    assert "the knee: " in out
    assert (tmp_path / "figures" / "frontier.svg").exists()

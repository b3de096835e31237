"""A release as users get it: built, installed, and used as the README says."""

import email
import re
import subprocess
import sys
import tarfile
import tomllib
import zipfile

import pytest

import lowtide
from tests.docs.pages import ROOT, blocks_of

pytestmark = pytest.mark.real
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
# What a reader's script is around the README's loop.
SCRIPT = """
import torch
from torch import nn

torch.manual_seed(0)
model = nn.Sequential(*[nn.Sequential(nn.Linear(64, 64), nn.GELU()) for _ in range(6)])
optimizer = torch.optim.AdamW(model.parameters())
loss_function = nn.functional.mse_loss
batches = [(torch.randn(512, 64), torch.randn(512, 64)) for _ in range(3)]
"""


def run(*words, cwd=None):
    done = subprocess.run(
        list(map(str, words)), cwd=cwd, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, f"{words}\n{done.stdout}\n{done.stderr}"
    return done.stdout + done.stderr


@pytest.fixture(scope="module")
def built(tmp_path_factory):
    """The wheel and the source archive, built as a release builds them."""
    folder = tmp_path_factory.mktemp("dist")
    run(sys.executable, "-m", "hatchling", "build", "-d", folder, cwd=ROOT)
    (wheel,) = folder.glob("*.whl")
    (archive,) = folder.glob("*.tar.gz")
    return wheel, archive


def test_the_wheel_has_everything_that_is_used_and_nothing_else(built):
    with zipfile.ZipFile(built[0]) as wheel:
        names = set(wheel.namelist())
        info = f"lowtide-{lowtide.__version__}.dist-info"
        metadata = email.message_from_bytes(wheel.read(f"{info}/METADATA"))
        entry_points = wheel.read(f"{info}/entry_points.txt").decode()
    package = ROOT / "src" / "lowtide"
    expected = {
        f"lowtide/{path.relative_to(package).as_posix()}"
        for path in package.rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }
    assert {name for name in names if not name.startswith(info)} == expected
    assert "lowtide/py.typed" in expected
    assert "lowtide = lowtide.cli:main" in entry_points
    assert metadata["Version"] == PROJECT["version"] == lowtide.__version__
    assert metadata["License-Expression"] == "Apache-2.0"
    assert metadata["License-File"] == "LICENSE"
    assert metadata["Description-Content-Type"] == "text/markdown"
    assert "Typing :: Typed" in metadata.get_all("Classifier")
    assert "torch>=2.13" in metadata.get_all("Requires-Dist")


def test_the_source_archive_can_be_tested_and_built_from(built):
    with tarfile.open(built[1]) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    assert {
        *("README.md", "LICENSE", "CHANGELOG.md", "CITATION.cff", "CONTRIBUTING.md"),
        *("pyproject.toml", "constraints.txt", "Makefile", "mkdocs.yml"),
        *("src/lowtide/py.typed", "tests/conftest.py", "docs/hooks.py"),
    } <= names
    assert not [name for name in names if "__pycache__" in name]


def test_every_place_that_names_the_version_names_the_same():
    citation = (ROOT / "CITATION.cff").read_text()
    assert re.findall(r"^version: (.+)$", citation, re.M) == [PROJECT["version"]]
    assert (
        f"Version {PROJECT['version']} is in the making"
        in (ROOT / "README.md").read_text()
    )


def test_the_readme_begins_short():
    """What the first screen says: a promise, how to install, and one picture."""
    first, _, _ = (ROOT / "README.md").read_text().partition("![")
    assert "pip install lowtide" in first
    assert "Untested on GPUs" in first
    assert len(first.split()) <= 180


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_a_new_user_follows_the_readme(built, tmp_path):
    """Install the wheel into a clean environment and run the README from top to end."""
    run(sys.executable, "-m", "venv", tmp_path / "venv")
    programs = tmp_path / "venv" / "bin"
    pinned = ("-c", ROOT / "constraints.txt")
    run(programs / "pip", "install", "-q", *pinned, f"{built[0]}[plot]")
    blocks = blocks_of(ROOT / "README.md")
    loop = next(block.text for block in blocks if block.language == "python")
    own = "\n".join(line for line in loop.splitlines() if "lowtide" not in line)
    work = tmp_path / "work"
    work.mkdir()
    (work / "train.py").write_text(f"{SCRIPT}\n{own}\nprint(float(loss))\n")
    (work / "edited.py").write_text(f"{SCRIPT}\n{loop}\nprint(float(loss))\n")
    plain = run(programs / "python", "train.py", cwd=work)
    edited = run(programs / "python", "edited.py", cwd=work)
    assert edited.splitlines()[-1] == plain.splitlines()[-1]
    commands = [
        line.partition("#")[0].split()
        for block in blocks
        if not block.language
        for line in block.text.splitlines()
        if line.startswith("lowtide ")
    ]
    assert [words[1] for words in commands] == [
        *("demo", "run", "profile", "plan", "report", "verify")
    ]
    said = {
        words[1]: run(programs / words[0], *words[1:], cwd=work) for words in commands
    }
    assert "equal, bit by bit" in said["demo"]
    assert plain.splitlines()[-1] in said["run"]
    assert "The peak falls from" in said["plan"]
    assert "equal, bit by bit" in said["verify"]
    assert (work / "gpt.html").stat().st_size > 50_000
    # Run again, each replaces its own files.
    run(programs / "lowtide", *commands[4][1:], cwd=work)
    listed = "import torch._dynamo as d; print(d.list_backends())"
    assert "lowtide" in run(programs / "python", "-c", listed, cwd=work)

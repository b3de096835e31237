"""Every Python block of the documentation runs, and every command in it exists.

The blocks of a page run in order and share their names, as if the reader typed them
into one session. They may use what a reader already has: see `reader_session`.
"""

import itertools
import re
import shlex
import sys
import types

import pytest
import torch
import typer
from torch import nn

from lowtide.cli import app
from lowtide.models._libraries import transformers
from tests.docs.pages import PAGES, blocks_of, name_of

# The recipes show parts of `examples/stacks`, which `tests/integrations` runs.
WITH_PYTHON = [
    page
    for page in PAGES
    if any(b.language == "python" for b in blocks_of(page))
    and page.parent.name != "recipes"
]
WITH_COMMANDS = [
    page for page in PAGES if re.search(r"(^|`)lowtide ", page.read_text(), re.M)
]
GENERAL = {"--help", "--install-completion"}


class Network(nn.Module):
    """A stand-in for the reader's model, small enough to be planned in no time."""

    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(
            *[layer for _ in range(4) for layer in (nn.Linear(16, 16), nn.GELU())]
        )
        self.head = nn.Linear(16, 4)

    def forward(self, inputs):
        return self.head(self.layers(inputs))


def reader_session():
    """What the pages take for granted: a model, its optimizer, a loss and data."""
    transformers()  # from here on, a page can import it beside any torchvision
    torch.manual_seed(0)
    model = Network()
    batches = [(torch.randn(256, 16), torch.randint(4, (256,))) for _ in range(4)]
    session = types.ModuleType("reader_session")
    session.__dict__.update(
        torch=torch,
        nn=nn,
        model=model,
        optimizer=torch.optim.AdamW(model.parameters()),
        loss_function=nn.functional.cross_entropy,
        batches=batches,
        inputs=batches[0][0],
        targets=batches[0][1],
    )
    return session


@pytest.mark.parametrize("page", WITH_PYTHON, ids=name_of)
def test_python_blocks_run(page, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    session = reader_session()
    # Classes that are defined in a block are looked up here.
    monkeypatch.setitem(sys.modules, session.__name__, session)
    for block in blocks_of(page):
        if block.language == "python" and not block.why_not_run:
            # Errors then point at the line of the page.
            source = "\n" * (block.line - 1) + block.text
            exec(compile(source, str(page), "exec"), session.__dict__)


def test_few_python_blocks_are_not_run():
    left_out = [b for page in PAGES for b in blocks_of(page) if b.why_not_run]
    assert len(left_out) <= 1, [f"{name_of(b.page)}:{b.line}" for b in left_out]


def commands_of(page):
    """The words of each `lowtide ...` command of a page, in blocks and in the text."""
    lines = [line for b in blocks_of(page) for line in b.text.splitlines()]
    lines += re.findall(r"`(lowtide [^`]+)`", page.read_text())
    for line in lines:
        words = shlex.split(line, comments=True) if line.startswith("lowtide ") else []
        if words[1:] and words[1] not in (*GENERAL, "VERB"):
            yield words[1:]


@pytest.mark.parametrize("page", WITH_COMMANDS, ids=name_of)
def test_commands_and_their_options_exist(page):
    verbs = typer.main.get_command(app).commands
    for verb, *words in commands_of(page):
        params = verbs[verb].params
        known = {flag for p in params for flag in (*p.opts, *p.secondary_opts)}
        if verb == "run":  # what follows the script is the script's
            words = itertools.takewhile(lambda word: not word.endswith(".py"), words)
        assert {w for w in words if w.startswith("-")} <= known | GENERAL, verb

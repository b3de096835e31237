"""The report in a terminal.

The golden file is read as prose before it is changed; write it again with
`LOWTIDE_WRITE_GOLDEN=1 pytest tests/unit/test_report_text.py`.
"""

import io
import os
from pathlib import Path

import pytest

import lowtide
from lowtide.reporting.text import render_text, sparkline
from lowtide.step.names import printable
from tests.report_steps import dropping, everything, gpt, renamed

GOLDEN = Path(__file__).parents[1] / "golden"


def check_golden(name, text):
    path = GOLDEN / name
    if os.environ.get("LOWTIDE_WRITE_GOLDEN"):
        path.parent.mkdir(exist_ok=True)
        path.write_text(text)
    assert text == path.read_text()


class Terminal(io.StringIO):
    def isatty(self):
        return True


def test_golden_report():
    step = gpt(6)
    command = "lowtide report gpt.plan.json"
    made = lowtide.report(*everything(step), command=command)
    check_golden("report.txt", f"{made}\n")


def test_golden_profile():
    check_golden("report_profile.txt", f"{lowtide.report(gpt(6))}\n")


def test_color_only_on_a_terminal(monkeypatch):
    data = lowtide.report(gpt(2)).to_dict()
    monkeypatch.setenv("TERM", "xterm-256color")
    for name in ("NO_COLOR", "FORCE_COLOR", "COLORTERM"):
        monkeypatch.delenv(name, raising=False)
    terminal, pipe, quiet = Terminal(), io.StringIO(), Terminal()
    render_text(data, terminal, width=100)
    assert "\x1b[" in terminal.getvalue()
    render_text(data, pipe, width=100)
    assert "\x1b[" not in pipe.getvalue()
    monkeypatch.setenv("NO_COLOR", "1")
    render_text(data, quiet, width=100)
    assert "\x1b[3" not in quiet.getvalue()


def test_an_ascii_stream_gets_ascii():
    raw = io.BytesIO()
    out = io.TextIOWrapper(raw, encoding="ascii")
    render_text(lowtide.report(gpt(2), dropping(gpt(2), 0.5)).to_dict(), out)
    out.flush()
    assert b"baseline  " in raw.getvalue()


@pytest.mark.parametrize("word", ["[red]x[/red]", ":boom:", "\x1b[31mred", "a\nb"])
def test_names_are_shown_as_they_are(word):
    step = renamed(gpt(2), word)
    text = str(lowtide.report(step))
    assert "\x1b" not in text
    assert printable(word) in text.replace("\n", "")


def test_sparkline_reaches_its_top_only_at_the_top():
    assert sparkline([0, 1, 99, 100], 100) == " ▁▇█"


def test_lines_fit_the_width():
    text = str(lowtide.report(*everything(gpt(6))))
    assert max(map(len, text.splitlines())) <= 88
    assert not any(line.endswith(" ") for line in text.splitlines())

"""Drives the `lowtide` command as a user does: through a pipe, or a real terminal.

Golden files hold what commands print. They are read as prose before they are changed;
write them again with `LOWTIDE_WRITE_GOLDEN=1 pytest tests -k golden`.
"""

from __future__ import annotations

import fcntl
import os
import pty
import re
import shlex
import struct
import subprocess
import sys
import termios
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from tempfile import TemporaryFile
from typing import IO

from tests.warm import Warm

LOWTIDE = (sys.executable, "-m", "lowtide")
GOLDEN = Path(__file__).with_name("golden")
_ESCAPES = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]|\x1b\][^\x07]*\x07")


@dataclass(frozen=True)
class Done:
    """What a command left behind."""

    code: int
    out: str
    err: str = ""

    @property
    def lines(self) -> list[str]:
        """Standard output by line."""
        return self.out.splitlines()

    @property
    def plain(self) -> str:
        """The output without color and without what was drawn over."""
        return visible(self.out)


def environment(**changes: str | None) -> dict[str, str]:
    """This process's environment, with changes; None removes a name."""
    found = {**os.environ, "PYTHONUNBUFFERED": "", "OMP_NUM_THREADS": "1"}
    for name in ("NO_COLOR", "FORCE_COLOR", "COLUMNS", "TERM"):
        found.pop(name, None)
    for name, value in changes.items():
        found.pop(name, None)
        if value is not None:
            found[name] = value
    return found


# These always need torch, and the others for a target that is not a file.
_TORCH_VERBS = "batch bench demo doctor fits verify".split()
_PLAIN_VERBS = "models planners export diff".split()
_IMPORTS = ("lowtide.cli", "lowtide.planners.auto", "rich.progress", "rich.table")


@cache
def _warm(with_torch: bool) -> Warm:
    return Warm(*_IMPORTS, *(["lowtide.engine.api"] if with_torch else []))


def _warm_for(words: list[str]) -> Warm:
    """The process with the imports that a command is likely to need."""
    verb, target = (*words, "", "")[:2]
    is_model = target and target[0] != "-" and not target.endswith(".json")
    is_model = is_model and verb not in _PLAIN_VERBS
    return _warm(verb in _TORCH_VERBS or bool(is_model))


def run(
    *words: object, cwd: Path, stdout: IO[str] | None = None, **changes: str | None
) -> Done:
    """Run a command without a terminal, with `stdout` in an open file if given."""
    if words[:1] == ("run",):  # a script sees which modules are loaded
        return _run_cold(*words, cwd=cwd, **changes)
    texts = [str(word) for word in words]
    with (
        TemporaryFile("w+") as out,
        TemporaryFile("w+") as err,
        Path(os.devnull).open() as nothing,
    ):
        files = [nothing, out if stdout is None else stdout, err]
        warm = _warm_for(texts)
        warm.start(texts, cwd, environment(**changes), [f.fileno() for f in files])
        code = warm.wait()
        out.seek(0)
        err.seek(0)
        return Done(code, out.read(), err.read())


def _run_cold(*words: object, cwd: Path, **changes: str | None) -> Done:
    done = subprocess.run(
        [*LOWTIDE, *map(str, words)],
        cwd=cwd,
        env=environment(**changes),
        capture_output=True,
        text=True,
        timeout=200,
        check=False,
    )
    return Done(done.returncode, done.stdout, done.stderr)


def check_golden(name: str, text: str) -> None:
    """Compare a text with the golden file of this name."""
    path = GOLDEN / name
    if os.environ.get("LOWTIDE_WRITE_GOLDEN"):
        path.write_text(text)
    assert text == path.read_text()


def transcript(
    *commands: str, cwd: Path, show: Callable[[str], str] = str, **changes: str | None
) -> str:
    """What a user sees who types these commands: errors, output, exit codes.

    How long a stage took is only said where the machine is slow, and so left out.
    """
    parts = []
    for command in commands:
        done = run(*shlex.split(command), cwd=cwd, COLUMNS="80", **changes)
        err = re.sub(r"^  (took|\d+ of) .*\n", "", done.err, flags=re.MULTILINE)
        code = f"(exit code {done.code})\n" if done.code else ""
        parts.append(f"$ lowtide {command}\n{show(err + done.out)}{code}")
    return "\n".join(parts)


def without_numbers(text: str) -> str:
    """The text without what differs from run to run: measured numbers.

    With them go their units, the width of columns, where paragraphs wrap, and the "-"
    of what was too small to measure.
    """
    text = re.sub(r"[+-]?\d[\d.,]*(e-?\d+)?(?<![.,])(\+(cpu|cu\d+)\b)?", "N", text)
    text = re.sub(r"\bN (%|(([KMG]i)?B|ms|us|s|min)\b)", "N", text)
    text = re.sub(r"(?<= )-(?= |\n)", "N", text)
    text = re.sub(r"(?m)^([A-Z](?:(?!  ).)*)\n(?=[a-z][a-z']* (?! ))", r"\1 ", text)
    return re.sub(r" {2,}", "  ", text)


def run_in_terminal(
    *words: object, cwd: Path, columns: int = 80, **changes: str | None
) -> Done:
    """Run a command whose standard output and error are a terminal."""
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 24, columns, 0, 0))
    texts = [str(word) for word in words]
    env = environment(**{"TERM": "xterm-256color", **changes})
    warm = _warm_for(texts)
    warm.start(texts, cwd, env, [theirs] * 3)
    os.close(theirs)
    try:
        text = _read_all(ours)
    finally:
        code = warm.wait()
        os.close(ours)
    return Done(code, text)


def _read_all(descriptor: int) -> str:
    found = bytearray()
    while True:
        try:
            part = os.read(descriptor, 65536)
        except OSError:  # Linux says so when the other side has closed
            break
        if not part:
            break
        found += part
    return found.decode(errors="replace").replace("\r\n", "\n")


def visible(text: str) -> str:
    """Text as it stays on the screen: no escapes, and only the last of each line."""
    lines = _ESCAPES.sub("", text).split("\n")
    return "\n".join(line.rsplit("\r", 1)[-1].rstrip() for line in lines)


def start(*words: object, cwd: Path) -> subprocess.Popen[str]:
    """Start a command, to be interrupted.

    A shell's background jobs ignore interrupts, and what they start inherits that, the
    tests included; so the command first listens again, as one typed by hand would.
    """
    listen = (
        "import os, signal, sys; signal.signal(signal.SIGINT, signal.SIG_DFL); "
        "os.execv(sys.argv[1], sys.argv[1:])"
    )
    return subprocess.Popen(
        [sys.executable, "-c", listen, *LOWTIDE, *map(str, words)],
        cwd=cwd,
        env=environment(),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )

"""Drives the `lowtide` command as a user does: through a pipe, or a real terminal.

Golden files hold what commands print. They are read as prose before they are changed;
write them again with `LOWTIDE_WRITE_GOLDEN=1 pytest tests -k golden`.
"""

from __future__ import annotations

import fcntl
import os
import pty
import re
import select
import shlex
import struct
import subprocess
import sys
import termios
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

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


def run(
    *words: object, cwd: Path, stdout: object = None, **changes: str | None
) -> Done:
    """Run a command with its output in pipes, or `stdout` in an open file."""
    done = subprocess.run(
        [*LOWTIDE, *map(str, words)],
        cwd=cwd,
        env=environment(**changes),
        stdout=subprocess.PIPE if stdout is None else stdout,
        stderr=subprocess.PIPE,
        text=True,
        timeout=200,
        check=False,
    )
    return Done(done.returncode, done.stdout or "", done.stderr)


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
    text = re.sub(r"[+-]?\d[\d.,]*(e-?\d+)?(?<![.,])", "N", text)
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
    process = subprocess.Popen(
        [*LOWTIDE, *map(str, words)],
        cwd=cwd,
        env=environment(**{"TERM": "xterm-256color", **changes}),
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
        close_fds=True,
    )
    os.close(theirs)
    try:
        text = _read_all(ours, process)
    finally:
        process.kill()
        os.close(ours)
    return Done(process.wait(), text)


def _read_all(descriptor: int, process: subprocess.Popen[bytes]) -> str:
    found = bytearray()
    stop = time.monotonic() + 200
    while time.monotonic() < stop:
        ready, _, _ = select.select([descriptor], [], [], 0.2)
        if ready:
            try:
                part = os.read(descriptor, 65536)
            except OSError:  # Linux says so when the other side has closed
                break
            if not part:
                break
            found += part
        elif process.poll() is not None:
            break
    process.wait(timeout=20)
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

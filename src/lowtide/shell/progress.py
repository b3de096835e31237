"""Progress of long work, on standard error: a bar on a terminal, else plain lines."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.text import Text

from lowtide.shell.page import console_for
from lowtide.step.format import format_seconds

Advance = Callable[[int, int], None]

# Without a terminal, one line for each of these parts of the work, if it takes long.
_PARTS = 4
_LONG_SECONDS = 5.0


@contextmanager
def stage(title: str, *, limit_seconds: float | None = None) -> Iterator[Advance]:
    """Shows that this stage is under way, and how far it is.

    Yields a function to be called with the number of parts done and their total. With
    `limit_seconds` the bar follows the clock instead.
    """
    if sys.stderr.isatty() and os.environ.get("TERM") != "dumb":
        yield from _on_terminal(title, limit_seconds)
    else:
        yield from _as_lines(title, limit_seconds)


def note(text: str) -> None:
    """One line about what is going on."""
    print(text, file=sys.stderr, flush=True)


def _on_terminal(title: str, limit_seconds: float | None) -> Iterator[Advance]:
    """A bar that goes away when its work is done."""
    from rich.live import Live
    from rich.progress_bar import ProgressBar
    from rich.table import Table

    console = console_for(sys.stderr)
    width = max(8, min(36, console.width - len(title) - 10))
    started = time.perf_counter()
    done, total = 0.0, limit_seconds

    def row() -> Table:
        spent = time.perf_counter() - started
        part = done if limit_seconds is None else min(spent, limit_seconds)
        line = Table.grid(padding=(0, 1, 0, 0))
        line.add_row(
            Text(title),
            ProgressBar(total, part, width=width, pulse=total is None),
            f"{spent:.0f} s",
        )
        return line

    def advance(parts_done: int, parts: int) -> None:
        nonlocal done, total
        if limit_seconds is None:
            done, total = parts_done, parts

    with Live(
        get_renderable=row,
        console=console,
        refresh_per_second=10,
        transient=True,
        redirect_stdout=False,
        redirect_stderr=False,
    ):
        yield advance


def _as_lines(title: str, limit_seconds: float | None) -> Iterator[Advance]:
    note(title + (f" (at most {limit_seconds:g} s)" if limit_seconds else ""))
    started = time.perf_counter()
    told = 0

    def advance(done: int, total: int) -> None:
        nonlocal told
        part = _PARTS * done // total if total else 0
        if part > told and part < _PARTS:
            told = part
            if time.perf_counter() - started > _LONG_SECONDS:
                note(f"  {done} of {total}")

    yield advance
    spent = time.perf_counter() - started
    if spent > _LONG_SECONDS:
        note(f"  took {format_seconds(spent)}")

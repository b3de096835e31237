"""Progress of long work, on standard error: a bar on a terminal, else plain lines."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, redirect_stdout
from typing import Any

from lowtide.reporting.text import console_for
from lowtide.step.format import format_seconds

Advance = Callable[[int, int], None]

# Without a terminal, work that takes longer than this is timed.
_LONG_SECONDS = 5.0


@contextmanager
def stage(title: str, *, limit_seconds: float | None = None) -> Iterator[Advance]:
    """Shows that this stage is under way, and how far along it is.

    Yields a function to be called with the number of parts done and their total. With
    `limit_seconds` the bar follows the clock instead. What the user's own code prints
    meanwhile goes to standard error, to keep it out of the result.
    """
    is_terminal = sys.stderr.isatty() and os.environ.get("TERM") != "dumb"
    with redirect_stdout(sys.stderr):
        yield from (_on_terminal if is_terminal else _as_lines)(title, limit_seconds)


def note(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def _on_terminal(title: str, limit_seconds: float | None) -> Iterator[Advance]:
    """A bar that goes away when its work is done."""
    from rich.progress import BarColumn, Progress, Task, TextColumn, TimeElapsedColumn

    class Bar(BarColumn):
        def render(self, task: Task) -> Any:
            if limit_seconds is not None:
                task.completed = min(task.elapsed or 0.0, limit_seconds)
            return super().render(task)

    console = console_for(sys.stderr)
    bar = Bar(bar_width=max(8, min(36, console.width - len(title) - 12)))
    columns = (TextColumn("{task.description}", markup=False), bar, TimeElapsedColumn())
    quiet: dict[str, Any] = {
        "redirect_stdout": False,
        "redirect_stderr": False,
        "transient": True,
    }
    with Progress(*columns, console=console, **quiet) as shown:
        task = shown.add_task(title, total=limit_seconds)

        def advance(done: int, total: int) -> None:
            if limit_seconds is None:
                shown.update(task, completed=done, total=total)

        yield advance


def _as_lines(title: str, limit_seconds: float | None) -> Iterator[Advance]:
    note(title + (f" (at most {limit_seconds:g} s)" if limit_seconds else ""))
    started = time.perf_counter()
    yield lambda done, total: None
    spent = time.perf_counter() - started
    if spent > _LONG_SECONDS:
        note(f"  took {format_seconds(spent)}")

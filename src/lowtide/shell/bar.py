"""The progress bar of a terminal, apart because it is slow to import."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import RenderableType
from rich.progress import Progress, ProgressColumn, Task, TextColumn
from rich.progress_bar import ProgressBar

from lowtide.shell.page import console_for


@contextmanager
def bar(
    title: str, limit_seconds: float | None
) -> Iterator[Callable[[int, int], None]]:
    """A bar that goes away when its work is done."""
    console = console_for(sys.stderr)
    width = max(8, min(36, console.width - len(title) - 10))
    with Progress(
        TextColumn("{task.description}", markup=False),
        _Bar(limit_seconds, width),
        _Elapsed(),
        console=console,
        transient=True,
        redirect_stdout=False,
        redirect_stderr=False,
    ) as progress:
        task = progress.add_task(title, total=None)
        yield lambda done, total: progress.update(task, completed=done, total=total)


class _Bar(ProgressColumn):
    """Follows the count of what is done, or the clock where there is a limit."""

    def __init__(self, limit_seconds: float | None, width: int) -> None:
        super().__init__()
        self.limit_seconds = limit_seconds
        self.width = width

    def render(self, task: Task) -> RenderableType:
        """The bar now."""
        if self.limit_seconds is not None:
            done = min(task.elapsed or 0.0, self.limit_seconds)
            return ProgressBar(self.limit_seconds, done, width=self.width)
        if task.total is None:
            return ProgressBar(None, width=self.width, pulse=True)
        return ProgressBar(task.total, task.completed, width=self.width)


class _Elapsed(ProgressColumn):
    def render(self, task: Task) -> RenderableType:
        """Seconds so far."""
        return f"{task.elapsed or 0.0:.0f} s"

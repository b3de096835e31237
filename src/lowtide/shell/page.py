"""Where a command's result goes: text for people, or one JSON document for programs."""

from __future__ import annotations

import json
import shlex
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, TextIO

from rich.console import Console
from rich.table import Table
from rich.text import Text

# What tables and long lines are laid out for where nobody looks at a terminal.
PIPE_WIDTH = 88
LEAST_WIDTH = 30


class Page:
    """The result of one command, on standard output.

    Text methods print nothing when the result is asked for as JSON, so a verb is
    written once for both.
    """

    as_json = False

    def __post_init__(self) -> None:
        self.out = sys.stdout
        self.console = console_for(self.out)

    def line(self, text: str = "", style: str = "") -> None:
        """One paragraph."""
        self._write(Text(printable(text), style=style))

    def heading(self, text: str) -> None:
        """A bold line, after an empty one."""
        self.line()
        self.line(text, "bold")

    def pairs(self, rows: Sequence[Sequence[str]]) -> None:
        """Names with their values, and optionally what they mean."""
        table = Table(box=None, show_header=False, padding=(0, 2, 0, 0))
        for place in range(max(map(len, rows))):
            table.add_column(no_wrap=place == 0, overflow="fold")
        for name, *cells in rows:
            table.add_row(
                Text(name, style="dim"), *(Text(printable(cell)) for cell in cells)
            )
        self._write(table)

    def table(self, headings: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
        """A table. Columns are numbers, but for the first and those marked with `<`."""
        table = Table(box=None, header_style="dim", padding=(0, 2, 0, 0))
        for place, heading in enumerate(headings):
            is_number = place > 0 and not heading.startswith("<")
            table.add_column(
                heading.lstrip("<"),
                justify="right" if is_number else "left",
                no_wrap=is_number,
                overflow="fold",
            )
        for row in rows:
            table.add_row(*(Text(printable(cell)) for cell in row))
        self._write(table)

    def text(self, text: str) -> None:
        """Lines that are laid out already: not wrapped, cut or colored."""
        if not self.as_json:
            self.out.write(printable(text, keep="\n") + "\n")

    def result(self, data: Any) -> None:
        """The whole result as data; printed only if JSON was asked for."""
        if self.as_json:
            self.out.write(json.dumps(data, indent=1, default=str) + "\n")

    def command(self, text: str) -> None:
        """The next command, on one line, so that it can be copied."""
        line = Text("next: ", style="dim").append(printable(text), style="bold")
        self._write(line, no_wrap=True, crop=False, overflow="ignore")

    def _write(self, thing: Any, **options: Any) -> None:
        if self.as_json:
            return
        with self.console.capture() as capture:
            self.console.print(thing, **options)
        # Tables pad their last column; a text that is kept in a file should not.
        lines = capture.get().removesuffix("\n").split("\n")
        self.out.writelines(f"{line.rstrip()}\n" for line in lines)


def command_line(*words: str) -> str:
    """A command as it is typed."""
    return " ".join(
        word if word.startswith("...") else shlex.quote(word) for word in words
    )


def console_for(out: TextIO) -> Console:
    """A console as wide as the terminal, without color where none is wanted.

    NO_COLOR, TERM=dumb and the like are honoured by rich.
    """
    console = Console(
        file=out,
        width=None if out.isatty() else PIPE_WIDTH,
        highlight=False,
        markup=False,
        emoji=False,
        legacy_windows=False,
    )
    if console.width < LEAST_WIDTH:
        console.width = LEAST_WIDTH
    return console


def printable(text: str, keep: str = "") -> str:
    """The text with control characters shown, not obeyed."""
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() or c in keep else repr(c)[1:-1] for c in text)


@contextmanager
def user_prints_elsewhere() -> Iterator[None]:
    """Sends what the user's own code prints to standard error, out of the result."""
    before, sys.stdout = sys.stdout, sys.stderr
    try:
        yield
    finally:
        sys.stdout = before

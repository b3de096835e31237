"""Text for people: lines, pairs and tables, for a terminal or for a file."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TextIO

from rich.console import Console
from rich.table import Table
from rich.text import Text

from lowtide.step.names import printable

# What tables and long lines are laid out for where nobody looks at a terminal.
PIPE_WIDTH = 88
LEAST_WIDTH = 30


def console_for(
    out: TextIO, *, width: int | None = None, color: bool | None = None
) -> Console:
    """A console as wide as the terminal, without color where none is wanted.

    NO_COLOR, TERM=dumb and the like are honoured by rich.
    """
    console = Console(
        file=out,
        width=width or (None if out.isatty() else PIPE_WIDTH),
        color_system=None if color is False else "auto",
        highlight=False,
        markup=False,
        emoji=False,
        legacy_windows=False,
    )
    if console.width < LEAST_WIDTH:
        console.width = LEAST_WIDTH
    return console


class Sheet:
    """Writes to a console. Names may hold anything: they are shown, never obeyed."""

    def __init__(self, console: Console) -> None:
        self.console = console

    def line(self, text: str = "", style: str = "") -> None:
        """One paragraph."""
        self.write(Text(printable(text), style=style))

    def heading(self, text: str) -> None:
        """A bold line, after an empty one."""
        self.line()
        self.line(text, "bold")

    def pairs(self, rows: Sequence[Sequence[str]]) -> None:
        """Names with their values, and optionally what they mean."""
        table = Table(box=None, show_header=False, padding=(0, 2, 0, 0))
        for place in range(max(map(len, rows))):
            table.add_column(no_wrap=place == 0, overflow="fold")
        for name, value, *details in rows:
            table.add_row(
                Text(name, style="dim"),
                Text(printable(value)),
                *(Text(printable(detail), style="dim") for detail in details),
            )
        self.write(table)

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
        self.write(table)

    def write(self, thing: Any, **options: Any) -> None:
        """Anything that rich can print."""
        with self.console.capture() as capture:
            self.console.print(thing, **options)
        # Tables pad their last column; a text that is kept in a file should not.
        lines = capture.get().removesuffix("\n").split("\n")
        self.console.file.writelines(f"{line.rstrip()}\n" for line in lines)

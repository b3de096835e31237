"""Where a command's result goes: text for people, or one JSON document for programs."""

from __future__ import annotations

import json
import shlex
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from rich.text import Text

from lowtide.reporting.sheet import Sheet
from lowtide.reporting.sheet import console_for as console_for
from lowtide.step.names import printable as printable


class Page(Sheet):
    """The result of one command, on standard output.

    Text methods print nothing when the result is asked for as JSON, so a verb is
    written once for both.
    """

    as_json = False

    def __post_init__(self) -> None:
        self.out = sys.stdout
        super().__init__(console_for(self.out))

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
        self.write(line, no_wrap=True, crop=False, overflow="ignore")

    def write(self, thing: Any, **options: Any) -> None:
        """Anything that rich can print."""
        if not self.as_json:
            super().write(thing, **options)


def command_line(*words: str) -> str:
    """A command as it is typed."""
    return " ".join(
        word if word.startswith("...") else shlex.quote(word) for word in words
    )


@contextmanager
def user_prints_elsewhere() -> Iterator[None]:
    """Sends what the user's own code prints to standard error, out of the result."""
    before, sys.stdout = sys.stdout, sys.stderr
    try:
        yield
    finally:
        sys.stdout = before

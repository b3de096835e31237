"""The frame around every verb: its options, its result, its files, its last line.

A verb is a function whose first parameter is a `Frame`. Where a parameter's type is a
dataclass, such as the frame itself, the command line has one option for each field of
it; so options that belong together are declared once and arrive together.
"""

from __future__ import annotations

import functools
import inspect
import json
import os
import shlex
import sys
from collections.abc import Callable
from dataclasses import dataclass, field, is_dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from rich.text import Text

from lowtide.errors import (
    BudgetTooSmallError,
    InvalidArgumentError,
    OutputError,
    fitting,
)
from lowtide.reporting.text import Sheet, console_for
from lowtide.shell.options import flag
from lowtide.step.files import refuse_foreign, write_whole
from lowtide.step.names import printable
from lowtide.step.plan import Plan

if TYPE_CHECKING:
    from lowtide.reporting.report import Report
    from lowtide.step.graph import StepGraph

PICTURES = (".png", ".svg", ".pdf")
Content = str | bytes | dict[str, Any]


@dataclass(eq=False)
class Frame(Sheet):
    """The result of one command, on standard output, and how it ends.

    Text is not printed when the result is asked for as JSON, so a verb is written once
    for both.
    """

    as_json: Annotated[bool, flag("--json", "Print the result as JSON.")] = False
    saved: list[Path] = field(default_factory=list, init=False)

    def __post_init__(self) -> None:
        self.out = sys.stdout
        super().__init__(console_for(self.out))

    def write(self, thing: Any, **options: Any) -> None:
        if not self.as_json:
            super().write(thing, **options)

    def text(self, text: str) -> None:
        """Lines that are laid out already: not wrapped, cut or colored."""
        if not self.as_json:
            self.out.write(printable(text, keep="\n") + "\n")

    def result(self, data: Any) -> None:
        """The whole result as data; printed only if JSON was asked for."""
        if self.as_json:
            self.out.write(json.dumps(data, indent=1, default=str) + "\n")

    def report(self, *things: Any, is_short: bool = False) -> None:
        """Show the text form of a report, or its beginning."""
        if self.as_json:
            return
        from lowtide.reporting.report import report
        from lowtide.reporting.text import render_text

        data, width = report(*things).data, self.console.width
        render_text(data, self.out, width=width, is_short=is_short)

    def assumed(self, step: StepGraph) -> None:
        """Say what an estimate for another device takes for granted."""
        from lowtide.step.analysis.summary import assumption

        if text := assumption(step):
            self.line(text, "dim")

    def next(self, *words: str, program: str = "lowtide") -> None:
        """End with the files that were written and the command most likely wanted.

        The command is on one line, so that it can be copied.
        """
        self.line()
        for path in self.saved:
            self.pairs([("saved", str(path))])
        command = printable(shlex.join((program, *words)))
        line = Text("next: ", style="dim").append(command, style="bold")
        self.write(line, no_wrap=True, crop=False, overflow="ignore")


@dataclass(eq=False)
class SavingFrame(Frame):
    """The frame of a verb that writes the files it is asked for."""

    force: Annotated[bool, flag("--force", "Replace files that exist.")] = False

    def will_save(self, path: Path | None, *endings: str) -> None:
        """Raise before the work begins if this file could not be written after it.

        What only shows while writing, such as a disk that fills up, is found then.
        """
        if path is None:
            return
        if endings and path.suffix not in endings:
            raise InvalidArgumentError(
                f"-o {path}",
                "this ending names no form",
                f"End the name in {', '.join(endings[:-1])} or {endings[-1]}",
            )
        refuse_foreign(path, force=self.force)
        name, folder = str(path), path.parent
        if not folder.is_dir():
            raise OutputError(name, f"there is no folder {folder}", "Create it first")
        if not path.exists() and not os.access(folder, os.W_OK | os.X_OK):
            found = f"you may not write to the folder {folder}"
            raise OutputError(name, found, "Choose another, or change its permissions")

    def save(
        self, path: Path | None, content: Content | Callable[[str], Content]
    ) -> None:
        """Write a file, if one was asked for; data becomes JSON.

        Content that takes long to make is given as a function of the file's ending.
        """
        if path is None:
            return
        made = content(path.suffix) if callable(content) else content
        if isinstance(made, dict):
            made = json.dumps(made, indent=1) + "\n"
        self.saved.append(write_whole(path, made, force=self.force))


def by_ending(
    data: dict[str, Any],
    draw: Callable[[dict[str, Any], str], bytes],
    page: Callable[[], Report] | None = None,
) -> Callable[[str], Content]:
    """What a result is as a file: data, a page, or a picture in one of its forms."""

    def content(ending: str) -> Content:
        if ending == ".json":
            return data
        if page and ending == ".html":
            return page().to_html()
        return draw(data, ending[1:])

    return content


def interrupted(*plans: Plan) -> bool:
    """Whether the user stopped the search of one of these plans."""
    return any(plan.proof.stopped_by == "interrupted" for plan in plans)


def framed(verb: Callable[..., None]) -> Callable[..., None]:
    """The verb as typer takes it: one parameter for each option.

    In its help, its own options stand first, and those of all verbs last.
    """
    declared = inspect.signature(verb, eval_str=True).parameters
    groups: dict[str, Any] = {
        name: parameter.annotation
        for name, parameter in declared.items()
        if is_dataclass(parameter.annotation)
    }
    members = {
        name: inspect.signature(group, eval_str=True).parameters.values()
        for name, group in groups.items()
    }
    own = [parameter for name, parameter in declared.items() if name not in groups]
    options = [*own, *(each for group in reversed(members.values()) for each in group)]

    @functools.wraps(verb)
    def run(**given: Any) -> None:
        for name, parameters in members.items():
            values = {each.name: given.pop(each.name) for each in parameters}
            given[name] = groups[name](**values)
        try:
            verb(**given)
        except BudgetTooSmallError as error:
            if source := given.get("source"):
                words = (*source.words, "--budget", fitting(error.floor_bytes))
                error.add_note(f"next: {shlex.join(('lowtide', 'plan', *words))}")
            raise

    by_name = [each.replace(kind=inspect.Parameter.KEYWORD_ONLY) for each in options]
    run.__signature__ = inspect.Signature(by_name)  # type: ignore[attr-defined]
    run.__annotations__ = {each.name: each.annotation for each in options}
    return run

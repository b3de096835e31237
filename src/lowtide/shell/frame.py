"""The frame around every verb: its options, its result, its files, its last line.

A verb is a function whose first parameter is a `Frame`. Where a parameter's type is a
dataclass, such as the frame itself, the command line has one option for each field of
it; so options that belong together are declared once and arrive together.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from dataclasses import dataclass, field, is_dataclass
from pathlib import Path
from typing import Annotated, Any

from lowtide.errors import InvalidArgumentError
from lowtide.shell import files
from lowtide.shell.options import flag
from lowtide.shell.page import Page, command_line
from lowtide.step.plan import Plan

PICTURES = (".png", ".svg", ".pdf")
Content = str | bytes | dict[str, Any]


@dataclass(eq=False)
class Frame(Page):
    """The result of one command, and how it ends."""

    as_json: Annotated[bool, flag("--json", "Print the result as JSON.")] = False
    saved: list[Path] = field(default_factory=list, init=False)

    def next(self, *words: str, program: str = "lowtide") -> None:
        """End with the files that were written and the command most likely wanted."""
        self.line()
        for path in self.saved:
            self.pairs([("saved", str(path))])
        self.command(command_line(program, *words))

    def report(self, *things: Any) -> None:
        """Show the text form of a report."""
        if self.as_json:
            return
        from lowtide.reporting.report import report
        from lowtide.reporting.text import render_text

        render_text(report(*things).data, self.out, width=self.console.width)


@dataclass(eq=False)
class SavingFrame(Frame):
    """The frame of a verb that writes the files it is asked for."""

    force: Annotated[bool, flag("--force", "Replace files that exist.")] = False

    def will_save(self, path: Path | None, *endings: str) -> None:
        """Raise before the work begins if this file could not be written after it."""
        if path is not None and endings and path.suffix not in endings:
            raise InvalidArgumentError(
                f"-o {path}",
                "this ending names no form",
                f"End the name in {', '.join(endings[:-1])} or {endings[-1]}",
            )
        files.refuse_early(path, force=self.force)

    def save(
        self, path: Path | None, content: Content | Callable[[str], Content]
    ) -> None:
        """Write a file, if one was asked for.

        Content that takes long to make is given as a function of the file's ending.
        """
        if path is None:
            return
        made = content(path.suffix) if callable(content) else content
        self.saved.append(files.write(path, made, force=self.force))


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
        verb(**given)

    by_name = [each.replace(kind=inspect.Parameter.KEYWORD_ONLY) for each in options]
    run.__signature__ = inspect.Signature(by_name)  # type: ignore[attr-defined]
    run.__annotations__ = {each.name: each.annotation for each in options}
    return run

"""What went wrong, for a person: one message, no traceback, an exit code."""

from __future__ import annotations

import errno
import json
import linecache
import os
import sys
import sysconfig
import traceback
from collections.abc import Iterator
from pathlib import Path

from rich.text import Text

from lowtide import errors
from lowtide.reporting.text import console_for
from lowtide.step.names import printable

_NO_ROOM = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO)
OK, FAILURE, USAGE, BUDGET_TOO_SMALL, NOT_VERIFIED, INTERRUPTED = 0, 1, 2, 3, 4, 130


_CODES: dict[type[BaseException], int] = {
    KeyboardInterrupt: INTERRUPTED,
    errors.BudgetTooSmallError: BUDGET_TOO_SMALL,
    errors.VerificationError: NOT_VERIFIED,
    errors.BudgetFormatError: USAGE,
    errors.InvalidArgumentError: USAGE,
}


def show_error(error: BaseException, *, as_json: bool = False) -> int:
    """Print an error on standard error, and as JSON if asked; returns the exit code."""
    code = next((c for t, c in _CODES.items() if isinstance(error, t)), FAILURE)
    if isinstance(error, KeyboardInterrupt):
        say("error", "interrupted; nothing was written")
    elif isinstance(error, errors.LowtideError):
        say("error", str(error))
        for line in _user_lines(error):
            print(f"  {line}", file=sys.stderr)
        for note in getattr(error, "__notes__", ()):
            print(note, file=sys.stderr)
    elif isinstance(error, OSError) and error.errno in _NO_ROOM:
        say("error", f"cannot write the result: {error.strerror}")
    else:  # lowtide did not foresee this: its traceback is what is needed
        traceback.print_exception(error, file=sys.stderr)
        say(
            "error",
            f"lowtide did not expect this ({type(error).__name__}). Please report it "
            "with the lines above and the output of `lowtide doctor`.",
        )
    if as_json:
        known = {"type": type(error).__name__, "message": str(error), "exit_code": code}
        facts = {k: v for k, v in vars(error).items() if not k.startswith("_")}
        print(json.dumps({"error": {**known, **facts}}, indent=1, default=str))
    return code


def say(label: str, text: str) -> None:
    """One labelled paragraph on standard error."""
    style = "red bold" if label == "error" else "yellow"
    line = Text(f"{label}: ", style=style).append(printable(text), style="default")
    if sys.stderr.isatty():
        console_for(sys.stderr).print(line)
    else:
        print(line.plain, file=sys.stderr)


def target_error(target: str, error: BaseException) -> errors.TargetError:
    """The user's own error, with the last of their lines that it passed through."""
    said = str(error).strip().splitlines()
    raised = type(error).__name__ + (f": {said[0]}" if said else "")
    if isinstance(error, SyntaxError) and error.filename:
        place = (shown(error.filename), error.lineno or 0, (error.text or "").strip())
    else:
        place = user_place(error)
    if place is None:
        return errors.TargetError(target, raised)
    file, line, code = place
    return errors.TargetError(target, raised, location=f"{file}:{line}", code=code)


def user_place(error: BaseException) -> tuple[str, int, str] | None:
    """The last place in the user's own files that an error passed through."""
    found: tuple[str, int, str] | None = None
    for link in errors.causes_of(error):
        for file, line in errors.places_of(link):
            if _is_users(file):
                found = (shown(file), line, linecache.getline(file, line).strip())
        if found is not None:
            return found
    return None


def _user_lines(error: errors.LowtideError) -> Iterator[str]:
    """Where in the user's code a capture failed, and what was raised there."""
    if not isinstance(error, errors.CaptureError):
        return
    place = user_place(error)
    if place is not None and not error.location:
        file, line, code = place
        yield f"at {file}:{line}" + (f": {code}" if code else "")
    for root in reversed(list(errors.causes_of(error))[1:]):
        said = str(root).strip().splitlines()
        if said and not said[0].startswith(_WRAPPERS) and said[0] not in str(error):
            yield f"{type(root).__name__}: {said[0]}"
            return


_WRAPPERS = ("RuntimeError when making fake", "backend=", "Dynamo failed")


_NOT_THE_USERS = tuple(
    str(Path(folder)) + os.sep
    for folder in {
        Path(__file__).parents[1],
        sysconfig.get_path("purelib"),
        sysconfig.get_path("platlib"),
        sysconfig.get_path("stdlib"),
    }
)


def _is_users(file: str) -> bool:
    return not file.startswith(("<", *_NOT_THE_USERS)) and Path(file).is_file()


def shown(file: str) -> str:
    """A path as short as it can be said from here."""
    try:
        return str(Path(file).relative_to(Path.cwd()))
    except ValueError:
        return file

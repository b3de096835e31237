"""Run a Python program as `python` would, with its training steps under a budget."""

from __future__ import annotations

import builtins
import io
import os
import runpy
import sys
from importlib.machinery import SourceFileLoader
from types import ModuleType, TracebackType

from lowtide.errors import InvalidArgumentError, LowtideError
from lowtide.integrations import register
from lowtide.integrations._imports import when_imported


def run_under_budget(words: list[str], *, is_module: bool) -> None:
    """Run a script or module whose models are planned when they are first trained.

    `words` are its file or name, and the arguments for it. The budget is that of
    `LOWTIDE_BUDGET`. Ends as the program does, also with its `SystemExit`.
    """
    register()
    when_imported("torch", _watch)
    try:
        (_run_module if is_module else _run_file)(words)
    except (SystemExit, LowtideError):
        raise
    except BaseException as error:
        error.__traceback__ = _without_us(error.__traceback__)
        sys.excepthook(type(error), error, error.__traceback__)
        interrupted = isinstance(error, KeyboardInterrupt)
        raise SystemExit(130 if interrupted else 1) from None


def _watch(torch: ModuleType) -> None:
    from lowtide.integrations.roots import plan_what_is_trained

    plan_what_is_trained()


def names_of_planned() -> list[str]:
    """The classes of the models that were planned, without importing torch for it."""
    roots = sys.modules.get("lowtide.integrations.roots")
    return [] if roots is None else list(roots.planned_names)


def _run_file(words: list[str]) -> None:
    path = os.path.abspath(words[0])
    try:
        with io.open_code(path) as file:
            source = file.read()
    except OSError as error:
        raise InvalidArgumentError(
            f"lowtide run {words[0]}",
            f"it cannot be read ({error.strerror})",
            "Name a Python file, or a module with -m",
        ) from None
    sys.argv[:] = words
    sys.path[0] = os.path.dirname(path)
    main = ModuleType("__main__")
    main.__file__ = path
    main.__loader__ = SourceFileLoader("__main__", path)
    vars(main)["__builtins__"] = builtins
    sys.modules["__main__"] = main
    exec(compile(source, path, "exec"), vars(main))


def _run_module(words: list[str]) -> None:
    sys.argv[:] = words
    sys.path[0] = os.getcwd()
    runpy.run_module(words[0], run_name="__main__", alter_sys=True)


def _without_us(trace: TracebackType | None) -> TracebackType | None:
    """The part of a traceback that is the program's own."""
    ours = (__file__, runpy.__file__, "<frozen runpy>")
    while trace is not None and trace.tb_frame.f_code.co_filename in ours:
        trace = trace.tb_next
    return trace

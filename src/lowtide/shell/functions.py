"""The user's own function, from the text that names it."""

from __future__ import annotations

import ast
import os
import sys
from collections.abc import Callable
from importlib import import_module, util
from pathlib import Path
from typing import Any

from lowtide.errors import InvalidArgumentError, LowtideError
from lowtide.shell.failures import target_error

FORMS = (
    "a built-in model (`lowtide models` lists them), file.py:function or "
    "package.module:function, or a saved .step.json or .plan.json"
)


def load_function(text: str) -> Callable[..., Any]:
    """The function that `file.py:name` or `package.module:name` stands for."""
    where, _, name = text.rpartition(":")
    if not where or not name.isidentifier():
        raise InvalidArgumentError(
            f"target {text!r}", "it names no function", f"A target is {FORMS}"
        )
    try:
        if where.endswith(".py"):
            module = _import_file(Path(where))
        else:
            module = _import_name(where)
    except LowtideError:
        raise
    except Exception as error:
        raise target_error(text, error) from error
    found = getattr(module, name, None)
    if not callable(found):
        file = getattr(module, "__file__", None)
        raise InvalidArgumentError(
            f"target {text!r}",
            f"{where} has no function {name}",
            "Check the name" + (functions_in(Path(file)) if file else ""),
        )
    return found


def _import_file(path: Path) -> Any:
    if not path.is_file():
        raise InvalidArgumentError(
            str(path), "there is no such file", f"A target is {FORMS}"
        )
    _importable(str(path.resolve().parent))
    # Under its own name, so that child processes can import it, unless that is taken.
    name = path.stem
    known = util.find_spec(name) if name.isidentifier() else None
    if known is None or known.origin != str(path.resolve()):
        name = f"lowtide_target_{path.stem}"
    spec = util.spec_from_file_location(name, path)
    assert spec is not None
    assert spec.loader is not None
    module = util.module_from_spec(spec)
    sys.modules[name] = module
    try:
        spec.loader.exec_module(module)
    except BaseException:
        del sys.modules[name]
        raise
    return module


def _import_name(name: str) -> Any:
    _importable(str(Path.cwd()))
    try:
        return import_module(name)
    except ModuleNotFoundError as error:
        if error.name is None or not (name + ".").startswith(error.name + "."):
            raise
        raise InvalidArgumentError(
            f"target module {name!r}",
            f"there is no module {error.name}",
            "Run from the folder that holds it, or write file.py:function",
        ) from error


def _importable(folder: str) -> None:
    """Lets this process, and those it starts, import from a folder."""
    if folder not in sys.path:
        sys.path.insert(0, folder)
    known = os.environ.get("PYTHONPATH", "").split(os.pathsep)
    if folder not in known:
        os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [folder, *known]))


def functions_in(path: Path) -> str:
    """What a Python file defines, as a hint for a message."""
    try:
        body = ast.parse(path.read_text()).body
    except (OSError, SyntaxError, ValueError):
        return ""
    names = [n.name for n in body if isinstance(n, ast.FunctionDef)]
    return f"; it defines {', '.join(names[:8])}" if names else ""

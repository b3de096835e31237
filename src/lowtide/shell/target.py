"""TARGET: what a command works on, from its text to a model or a step."""

from __future__ import annotations

import ast
import inspect
import logging
import os
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, redirect_stdout
from dataclasses import dataclass, replace
from functools import cache, cached_property
from importlib import import_module, util
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from lowtide import models
from lowtide.errors import InvalidArgumentError, LowtideError
from lowtide.shell import files, options
from lowtide.shell.failures import target_error
from lowtide.shell.progress import stage
from lowtide.step.graph import StepGraph

if TYPE_CHECKING:
    from lowtide.models import Example


FORMS = (
    "a built-in model (`lowtide models` lists them), file.py:function or "
    "package.module:function, or a saved .step.json or .plan.json"
)


@dataclass(frozen=True)
class Target:
    """What the user named, before any of it is loaded, with its options.

    Raises:
        InvalidArgumentError: There is no such thing, or it takes no such options.
    """

    text: options.TargetText
    batch: options.Batch = None
    model_options: options.ModelOptions = None

    def __post_init__(self) -> None:
        has_options = bool(self.options) or self.batch is not None
        if self.kind == "file" and has_options:
            raise InvalidArgumentError(
                f"{self.text} with --batch or --option",
                "a saved step has the batch and the options it was profiled with",
                "Profile the model again with others",
            )

    @cached_property
    def kind(self) -> Literal["model", "function", "file"]:
        if self.text.endswith(".json"):
            return "file"
        if ":" in self.text:
            return "function"
        if self.text.endswith(".py"):
            raise InvalidArgumentError(
                self.text,
                "a file alone does not say which function makes the step",
                f"Write {self.text}:FUNCTION" + functions_in(self.path),
            )
        try:
            models.describe(self.text)
        except InvalidArgumentError as error:
            raise InvalidArgumentError(
                f"target {self.text!r}",
                str(error).split(": ", 1)[1].split(". There are:")[0],
                f"A target is {FORMS}",
            ) from None
        return "model"

    @cached_property
    def options(self) -> Mapping[str, str]:
        """The model's options by name."""
        found: dict[str, str] = {}
        for option in self.model_options or ():
            key, equals, value = option.partition("=")
            if not equals or not key.strip():
                raise InvalidArgumentError(
                    f"--option {option}",
                    "it is not KEY=VALUE",
                    "Write --option layers=4",
                )
            found[key.strip()] = value.strip()
        return found

    @property
    def path(self) -> Path:
        return Path(self.text)

    @property
    def name(self) -> str:
        if self.kind == "file":
            return files.stem_of(self.path)
        return self.text.rpartition(":")[2]

    @property
    def words(self) -> tuple[str, ...]:
        """The target as it was typed, with its options."""
        batch = () if self.batch is None else ("--batch", str(self.batch))
        pairs = self.options.items()
        words = (word for k, v in pairs for word in ("--option", f"{k}={v}"))
        return (self.text, *batch, *words)


@dataclass(frozen=True)
class StepSource(Target):
    """A target whose step is read from a file or profiled now."""

    how: options.How = "measure"
    device: options.Device = None
    step_file: options.StepFile = None
    mesh: options.Mesh = None

    @property
    def words(self) -> tuple[str, ...]:
        """The same options as they are typed, for the next command."""
        how = ("--how", self.how) if self.how != "measure" else ()
        device = ("--device", self.device) if self.device else ()
        mesh = ("--mesh", self.mesh) if self.mesh else ()
        named = options.step_words(self.step_file)
        return (*super().words, *how, *device, *mesh, *named)

    def step(self, *, refresh: bool = False) -> StepGraph:
        """The step of the target; a plan's is looked for beside it, unless named."""
        if self.kind == "file":
            return files.step_and_plan(self.path, self.step_file)[0]
        how = "estimate" if self.mesh else self.how
        example = build(self, fake=how == "estimate")
        given = {"refresh": refresh, "mesh": self.mesh}
        return profile(self, example, how, self.device, **given)


def target_of_words(words: list[str]) -> Target:
    flags = list(zip(words[1::2], words[2::2], strict=False))
    batch = next((int(value) for key, value in flags if key == "--batch"), None)
    return Target(words[0], batch, [value for key, value in flags if key == "--option"])


def build(target: Target, *, fake: bool = False) -> Example:
    """The model, its batch and its loss. With `fake`, built-in models take no memory.

    Raises:
        TargetError: The user's file or function raised.
    """
    if target.kind == "file":
        raise InvalidArgumentError(
            target.text,
            "a saved file holds no model, and this command runs one",
            "Give the model or function that the step was profiled from",
        )
    with redirect_stdout(sys.stderr):
        if target.kind == "model":
            option = models.describe(target.text).option
            given = {k: option(k).parse(v) for k, v in target.options.items()}
            make = models.build_fake if fake else models.build
            return make(target.text, batch=target.batch, **given)
        function = load_function(target.text)
        arguments = _arguments(function, target)
        with _users_code(target.text):
            made = function(**arguments)
    return _as_example(target.text, made)


@contextmanager
def _users_code(text: str) -> Iterator[None]:
    """Tell of what the user's own code raises as such."""
    try:
        yield
    except LowtideError:
        raise
    except Exception as error:
        raise target_error(text, error) from error


def _arguments(function: Callable[..., Any], target: Target) -> dict[str, Any]:
    """What the command line gives to the user's function, by its parameters."""
    given: dict[str, Any] = {k: _value(v) for k, v in target.options.items()}
    if target.batch is not None:
        given["batch"] = target.batch
    taken = inspect.signature(function).parameters
    takes_any = any(p.kind is p.VAR_KEYWORD for p in taken.values())
    for key in given:
        if key not in taken and not takes_any:
            flag = "--batch" if key == "batch" else f"--option {key}=..."
            raise InvalidArgumentError(
                f"{flag} for {target.text}",
                f"the function takes no argument {key!r}",
                f"Give it one: def {target.name}({key}=...)",
            )
    return given


def _value(text: str) -> Any:
    try:
        return ast.literal_eval(text)
    except (ValueError, SyntaxError):
        return {"true": True, "false": False}.get(text.lower(), text)


def _as_example(text: str, made: Any) -> Example:
    if all(hasattr(made, part) for part in ("model", "batch", "loss")):
        return models.Example(made.model, made.batch, made.loss)
    if isinstance(made, tuple) and len(made) in (2, 3):
        model, batch = made[:2]
        loss = made[2] if len(made) == 3 else None
        if callable(model) and (loss is None or callable(loss)):
            return models.Example(model, batch, loss)  # pyright: ignore
    kind = type(made).__name__
    if isinstance(made, tuple):
        kind += " of (" + ", ".join(type(part).__name__ for part in made) + ")"
    raise InvalidArgumentError(
        f"target {text!r}",
        f"the function returned a {kind}",
        "Return (model, batch) or (model, batch, loss), where loss(output) is a scalar",
    )


def load_function(text: str) -> Callable[..., Any]:
    """The function that `file.py:name` or `package.module:name` stands for."""
    where, _, name = text.rpartition(":")
    if not where or not name.isidentifier():
        raise InvalidArgumentError(
            f"target {text!r}", "it names no function", f"A target is {FORMS}"
        )
    with _users_code(text):
        is_file = where.endswith(".py")
        module = _import_file(Path(where)) if is_file else _import_name(where)
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


def profile(
    target: Target,
    example: Example,
    how: str,
    device: str | None,
    *,
    refresh: bool = False,
    mesh: str | None = None,
) -> StepGraph:
    """The step of an example, with progress; remembers where it came from."""
    api = load_api()
    title = "measuring ops" if how == "measure" else "estimating ops"
    with stage(f"capturing and {title}") as advance:
        step = api.profile(
            example.model,
            example.batch,
            loss=example.loss,
            how=how,
            device=device,
            name=target.name,
            cache="refresh" if refresh else True,
            progress=advance,
            mesh=mesh,
        )
    facts = {**step.facts, "target": list(target.words)}
    return replace(step, facts=facts)


@cache
def load_api() -> Any:
    """The part of lowtide that needs torch, with progress: it takes seconds to load.

    Without --verbose torch says nothing of its own: lowtide's errors say what matters.
    """
    with stage("loading torch"):
        from lowtide.engine import api
        from lowtide.engine.costs import machine
    is_quiet = logging.getLogger("lowtide").level > logging.INFO
    if is_quiet and "TORCH_LOGS" not in os.environ:
        machine.silence_torch()
    return api

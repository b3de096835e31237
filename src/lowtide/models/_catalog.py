"""Which models there are, and which options each one takes. Imports no torch.

The models are listed in `catalog.toml`.
"""

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from importlib.resources import files
from typing import Any

from lowtide.errors import InvalidArgumentError

ALIASES: Mapping[str, str] = {"vit_small": "vit", "mobilenet": "mobilenet_v3_large"}
_DTYPE_SHORT = {
    "fp32": "float32",
    "bf16": "bfloat16",
    "fp16": "float16",
    "half": "float16",
    "fp64": "float64",
}
# Libraries disagree on the word for the size of the residual stream; accept both.
_OPTION_SYNONYMS = {"hidden": "width"}
_FLAGS = {"true": True, "yes": True, "1": True, "false": False, "no": False, "0": False}


@dataclass(frozen=True, slots=True)
class Option:
    """One setting of a built-in model.

    A `default` of None is worked out from the other options. `least` bounds a whole
    number from below.
    """

    name: str
    default: int | float | bool | str | None
    help: str
    kind: type
    choices: tuple[str, ...] = ()
    least: int = 1

    def parse(self, text: str) -> int | float | bool | str:
        """The value written as `text`, as it comes from a command line."""
        try:
            return _FLAGS[text.lower()] if self.kind is bool else self.kind(text)
        except (ValueError, KeyError):
            raise self._error(text) from None

    def check(self, value: Any) -> int | float | bool | str | None:
        """`value` if this option can take it, in its plain form."""
        if value is None:
            return self.default
        if self.name in ("dtype", "device"):
            # torch.bfloat16 and torch.device("meta") may stand for their names.
            value = str(value).removeprefix("torch.")
        if self.name == "dtype":
            value = _DTYPE_SHORT.get(value, value)
        if self.kind is float and type(value) is int:
            value = float(value)
        if type(value) is not self.kind or not self._admits(value):
            raise self._error(value)
        return value

    def _admits(self, value: Any) -> bool:
        if self.choices:
            return value in self.choices
        if self.kind is float:
            return 0 <= value <= 1
        return self.kind is not int or value >= self.least

    def _error(self, value: object) -> InvalidArgumentError:
        if self.choices:
            expected = "one of " + ", ".join(self.choices)
        elif self.kind is int:
            expected = f"a whole number from {self.least} up"
        else:
            expected = {bool: "true or false", float: "a number from 0 to 1"}.get(
                self.kind, "a word"
            )
        return InvalidArgumentError(
            f"{self.name}={value!r}",
            f"{self.name} ({self.help}) cannot be this",
            f"Use {expected}; the default is {self.default}",
        )


@dataclass(frozen=True, slots=True)
class Description:
    """What a built-in model is: its origin, its size and its options.

    `num_parameters` holds at the default options. `maker` is `module:function` within
    this package.
    """

    name: str
    summary: str
    library: str
    num_parameters: int
    options: tuple[Option, ...]
    maker: str

    def option(self, name: str) -> Option:
        """The option of this name, or of the name it is a synonym for."""
        for option in self.options:
            if option.name in (name, _OPTION_SYNONYMS.get(name)):
                return option
        known = ", ".join(f"{option.name}={option.default}" for option in self.options)
        raise InvalidArgumentError(
            f"option {name!r} of model {self.name!r}",
            "there is no such option",
            f"Its options and their defaults are: {known}",
        )

    def resolve(self, given: Mapping[str, Any]) -> dict[str, Any]:
        """All options by name: the given ones checked, the others at their default."""
        values: dict[str, Any] = {o.name: o.default for o in self.options}
        seen: dict[str, str] = {}
        for name, value in given.items():
            option = self.option(name)
            if option.name in seen:
                raise InvalidArgumentError(
                    f"{seen[option.name]} and {name} of model {self.name!r}",
                    "these are two words for one option",
                    "Give one of them",
                )
            seen[option.name] = name
            values[option.name] = option.check(value)
        return values


def available() -> tuple[str, ...]:
    """The names of all built-in models."""
    return tuple(_CATALOG)


def describe(name: str) -> Description:
    """What the named model is and which options it takes.

    Example:
        >>> describe("resnet50").num_parameters
        25557032
    """
    found = _CATALOG.get(ALIASES.get(name, name))
    if found is None:
        close = get_close_matches(name, (*_CATALOG, *ALIASES), n=1)
        aliases = ", ".join(f"{alias} = {full}" for alias, full in ALIASES.items())
        raise InvalidArgumentError(
            f"model {name!r}",
            "no built-in model has this name"
            + (f" (did you mean {close[0]}?)" if close else ""),
            f"There are: {', '.join(_CATALOG)} (also: {aliases})",
        )
    return found


def transformer_data(name: str) -> dict[str, Any]:
    """How transformers calls a model, its configuration and the options in it."""
    data = _DATA["transformers"][name]
    return {**data, "words": {**_DATA["words"], **data.get("words", {})}}


def _read_catalog(data: dict[str, Any]) -> dict[str, Description]:
    found: dict[str, Description] = {}
    for name, model in data["models"].items():
        library = data["libraries"][model["library"]]
        own = [library.get("before"), model.get("options"), library.get("after")]
        defaults: dict[str, Any] = {}
        for part in (*own, data["shared"]):
            defaults |= part or {}
        words, least = data["help"] | model.get("help", {}), model.get("least", {})
        found[name] = Description(
            name=name,
            summary=model["summary"],
            library=model["library"],
            num_parameters=model["num_parameters"],
            options=tuple(
                _option(each, default, words[each], least.get(each, 1))
                for each, default in defaults.items()
            ),
            maker=model.get("maker", library["maker"]).format(name),
        )
    return found


def _option(name: str, default: Any, help: str, least: int) -> Option:
    if isinstance(default, list):
        return Option(name, default[0], help, str, tuple(default))
    if default == "":
        return Option(name, None, help, str if name == "device" else int)
    least = 0 if name == "seed" else least
    return Option(name, default, help, type(default), least=least)


_DATA = tomllib.loads((files("lowtide.models") / "catalog.toml").read_text("utf-8"))
_CATALOG: Mapping[str, Description] = _read_catalog(_DATA)

"""What a built-in model is described by: its options and their values. No torch."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from lowtide.errors import InvalidArgumentError

DTYPES = ("float32", "bfloat16", "float16", "float64")
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

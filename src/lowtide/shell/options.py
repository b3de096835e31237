"""Options that several verbs share, so that a word means the same everywhere."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Annotated, Any

import typer

from lowtide.shell import complete
from lowtide.shell.target import Target, read_target, step_of
from lowtide.step.graph import StepGraph
from lowtide.step.units import to_bytes


def argument(help: str, complete: Any = None, metavar: str | None = None) -> Any:
    """A word that is told by its place."""
    return typer.Argument(
        metavar=metavar, help=help, autocompletion=complete, show_default=False
    )


def option(help: str, metavar: str, *names: str, **more: Any) -> Any:
    """An option that is left out by default."""
    return typer.Option(
        *names, metavar=metavar, help=help, **{"show_default": False, **more}
    )


def saved_as(help: str = "Where to write it.") -> Any:
    """The option that names the file to write."""
    return option(help, "FILE", "--output", "-o")


def flag(name: str, help: str) -> Any:
    """An option without a value."""
    return typer.Option(name, help=help)


TargetText = Annotated[
    str,
    argument(
        "A built-in model, file.py:function, package.module:function, or a saved "
        ".step.json or .plan.json.",
        complete.targets,
        "TARGET",
    ),
]
Batch = Annotated[
    int | None, option("Samples in a batch.", "N", "--batch", "-b", min=1)
]
ModelOptions = Annotated[
    list[str] | None,
    option(
        "An option of the built-in model or function; may be repeated.",
        "KEY=VALUE",
        "--option",
        "-O",
    ),
]
How = Annotated[
    str,
    typer.Option(
        help="How op times are found: measure (run each op here) or estimate (run and "
        "allocate nothing).",
        metavar="measure|estimate",
        autocompletion=lambda: ["measure", "estimate"],
    ),
]
Device = Annotated[
    str | None,
    option(
        "For an estimate: the device, such as a100-80gb.",
        "NAME",
        autocompletion=complete.devices,
    ),
]
Budget = Annotated[
    str | None,
    option(
        "Peak of the whole step: 6GiB, 6GB, or 60% of the peak without a plan.",
        "SIZE",
        envvar="LOWTIDE_BUDGET",
    ),
]
Planner = Annotated[
    str,
    typer.Option(
        metavar="NAME",
        help="One of `lowtide planners`.",
        envvar="LOWTIDE_PLANNER",
        autocompletion=complete.planners,
    ),
]
TimeLimit = Annotated[
    float, typer.Option(min=0.0, metavar="SECONDS", help="For the search of a plan.")
]
Output = Annotated[Path | None, saved_as()]
StepFile = Annotated[
    Path | None,
    option(
        "The step of the plan; by default looked for beside the plan.", "FILE", "--step"
    ),
]


@dataclass(frozen=True)
class ModelOrFile:
    """The options of a verb that works on what TARGET names."""

    target: TargetText
    batch: Batch = None
    model_options: ModelOptions = None

    @cached_property
    def asked(self) -> Target:
        """What the words name; raises `InvalidArgumentError` if there is none."""
        return read_target(self.target, self.batch, self.model_options)


@dataclass(frozen=True)
class StepSource(ModelOrFile):
    """The options of a verb that works on a step, read from a file or profiled now."""

    how: How = "measure"
    device: Device = None
    step_file: StepFile = None

    def step(self, *, refresh: bool = False) -> StepGraph:
        """The step of the target."""
        return step_of(
            self.asked,
            how=self.how,
            device=self.device,
            step_file=self.step_file,
            refresh=refresh,
        )


def read_budget(text: str) -> str | int:
    """A budget as typed, checked before anything slow begins.

    A whole number is one of bytes.
    """
    text = text.strip()
    value = int(text) if text.isdecimal() and text.isascii() else text
    to_bytes(value, baseline_bytes=1 << 40)
    return value


def words_of(text: str) -> list[str]:
    """The parts of a list with commas between."""
    return [part.strip() for part in text.split(",") if part.strip()]

"""Options that several verbs share, so that a word means the same everywhere."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from lowtide.errors import InvalidArgumentError
from lowtide.shell import complete
from lowtide.step.units import to_bytes


def argument(help: str, complete: Any = None, metavar: str | None = None) -> Any:
    """A word that is known by its place."""
    return typer.Argument(
        metavar=metavar, help=help, autocompletion=complete, show_default=False
    )


def option(help: str, metavar: str, *names: str, **settings: Any) -> Any:
    return typer.Option(*names, metavar=metavar, help=help, **settings)


def saved_as(help: str = "Where to write it.") -> Any:
    """The option that names the file to write."""
    return option(help, "FILE", "--output", "-o")


def flag(name: str, help: str) -> Any:
    return typer.Option(name, help=help)


_TARGET = (
    "A built-in model, file.py:function, package.module:function, or a saved "
    ".step.json or .plan.json."
)
_OPTION = "An option of the built-in model or function; may be repeated."
_HOW = (
    "How op times are found: measure (run each op here) or estimate (run and allocate "
    "nothing)."
)
_DEVICE = "For an estimate: the device, such as a100-80gb."
_MESH = (
    "Plan for one of many ranks that need not be there: dp=128,tp=8. dp of them divide "
    "parameters, gradients and optimizer state, tp the layers (sp: the sequence as "
    "well)."
)
_BUDGET = "Peak of the whole step: 6GiB, 6GB, or 60% of the peak without a plan."
_STEP = "The step of the plan; by default looked for beside the plan."

_MODEL = "A built-in model, file.py:function or package.module:function."
ModelText = Annotated[str, argument(_MODEL, complete.targets, "TARGET")]
TargetText = Annotated[str, argument(_TARGET, complete.targets, "TARGET")]
Batch = Annotated[
    int | None, option("Samples in a batch.", "N", "--batch", "-b", min=1)
]
ModelOptions = Annotated[
    list[str] | None, option(_OPTION, "KEY=VALUE", "--option", "-O")
]
_ways = ["measure", "estimate"]
How = Annotated[str, option(_HOW, "|".join(_ways), autocompletion=lambda: _ways)]
Device = Annotated[str | None, option(_DEVICE, "NAME", autocompletion=complete.devices)]
Mesh = Annotated[str | None, option(_MESH, "dp=N,tp=M")]
Budget = Annotated[str | None, option(_BUDGET, "SIZE", envvar="LOWTIDE_BUDGET")]
by_planner: dict[str, Any] = {
    "envvar": "LOWTIDE_PLANNER",
    "autocompletion": complete.planners,
}
Planner = Annotated[str, option("One of `lowtide planners`.", "NAME", **by_planner)]
TimeLimit = Annotated[
    float, option("Seconds to spend searching for a plan.", "SECONDS", min=0.0)
]
Output = Annotated[Path | None, saved_as()]
StepFile = Annotated[Path | None, option(_STEP, "FILE", "--step")]


def read_budget(text: str) -> str:
    """A budget as typed, checked before anything slow begins."""
    to_bytes(text, baseline_bytes=1 << 40)
    return text.strip()


def step_words(step_file: Path | None) -> tuple[str, ...]:
    """The option that names the step, if it was given."""
    return ("--step", str(step_file)) if step_file else ()


def planner_words(planner: str) -> tuple[str, ...]:
    """The option that names the planner, if it is not the usual one."""
    return () if planner == "auto" else ("--planner", planner)


def words_of(text: str) -> list[str]:
    """The parts of a list with commas between."""
    return [part.strip() for part in text.split(",") if part.strip()]


def check_one_of(verb: str, given: dict[str, Any], why: str, examples: str) -> None:
    """Raise unless exactly one of these options was given."""
    said = [f"{name} {value}" for name, value in given.items() if value is not None]
    if len(said) > 1:
        fix = "Give one of them (LOWTIDE_BUDGET counts as --budget)"
        raise InvalidArgumentError(" and ".join(said), why, fix)
    if not said:
        found = f"neither {' nor '.join(given)} was given"
        raise InvalidArgumentError(f"lowtide {verb}", found, f"Write {examples}")

"""Options that several verbs share, so that a word means the same everywhere."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from lowtide.shell.complete import devices, models, planners, plans, targets

TargetText = Annotated[
    str,
    typer.Argument(
        metavar="TARGET",
        help="A built-in model, file.py:function, package.module:function, or a saved "
        ".step.json or .plan.json.",
        autocompletion=targets,
        show_default=False,
    ),
]
Batch = Annotated[
    int | None,
    typer.Option(
        "--batch",
        "-b",
        min=1,
        metavar="N",
        help="Samples in a batch.",
        show_default=False,
    ),
]
ModelOptions = Annotated[
    list[str] | None,
    typer.Option(
        "--option",
        "-O",
        metavar="KEY=VALUE",
        help="An option of the built-in model or function; may be repeated.",
        show_default=False,
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
    typer.Option(
        metavar="NAME",
        help="For an estimate: the device, such as a100-80gb.",
        autocompletion=devices,
        show_default=False,
    ),
]
Budget = Annotated[
    str | None,
    typer.Option(
        metavar="SIZE",
        help="Peak of the whole step: 6GiB, 6GB, or 60% of the peak without a plan.",
        envvar="LOWTIDE_BUDGET",
        show_default=False,
    ),
]
Planner = Annotated[
    str,
    typer.Option(
        metavar="NAME",
        help="One of `lowtide planners`.",
        envvar="LOWTIDE_PLANNER",
        autocompletion=planners,
    ),
]
TimeLimit = Annotated[
    float, typer.Option(min=0.0, metavar="SECONDS", help="For the search of a plan.")
]
Output = Annotated[
    Path | None,
    typer.Option(
        "--output",
        "-o",
        metavar="FILE",
        help="Where to write it.",
        show_default=False,
    ),
]
StepFile = Annotated[
    Path | None,
    typer.Option(
        "--step",
        metavar="FILE",
        help="The step of the plan; by default looked for beside the plan.",
        show_default=False,
    ),
]
PlanFile = Annotated[
    Path,
    typer.Argument(
        metavar="PLAN",
        help="A saved .plan.json.",
        autocompletion=plans,
        show_default=False,
    ),
]
Force = Annotated[bool, typer.Option("--force", help="Replace any file.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print the result as JSON.")]
ModelName = Annotated[
    str | None,
    typer.Argument(
        metavar="[NAME]",
        help="A built-in model.",
        autocompletion=models,
        show_default=False,
    ),
]

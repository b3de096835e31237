"""`lowtide sweep`: what each budget would cost."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from lowtide.errors import InvalidArgumentError
from lowtide.shell import files
from lowtide.shell.failures import say
from lowtide.shell.options import (
    AsJson,
    Batch,
    Device,
    Force,
    How,
    ModelOptions,
    Planner,
    StepFile,
    TargetText,
    TimeLimit,
)
from lowtide.shell.page import Page
from lowtide.shell.progress import stage
from lowtide.shell.steps import interrupted
from lowtide.shell.target import read_target, step_of
from lowtide.shell.verbs.plan import checked_budget
from lowtide.step.format import format_bytes, format_percent, format_seconds

if TYPE_CHECKING:
    from lowtide.planners._sweep import Frontier


def sweep(
    target: TargetText,
    budgets: Annotated[
        str,
        typer.Option(
            help="How many, or a list such as 4GiB,5GiB,60%.", metavar="N|LIST"
        ),
    ] = "12",
    output: Annotated[
        Path | None,
        typer.Option(
            "--output",
            "-o",
            metavar="FILE",
            help="Where to write it: .html, .svg, .png or .json.",
            show_default=False,
        ),
    ] = None,
    planner: Planner = "auto",
    time_limit: TimeLimit = 30.0,
    step_file: StepFile = None,
    batch: Batch = None,
    option: ModelOptions = None,
    how: How = "measure",
    device: Device = None,
    force: Force = False,
    as_json: AsJson = False,
) -> None:
    """Show the whole trade between peak and time, one plan for each budget."""
    from lowtide.planners import load
    from lowtide.planners._sweep import sweep as sweep_step

    page = Page(as_json=as_json)
    wanted = read_budgets(budgets)
    load(planner)
    _check_output(output, force=force)
    asked = read_target(target, batch, option)
    step = step_of(asked, how=how, device=device, step_file=step_file)
    with stage(f"planning with {planner}", limit_seconds=time_limit):
        found = sweep_step(step, budgets=wanted, planner=planner, time_limit=time_limit)
    if any(interrupted(point.plan) for point in found.points):
        say("note", "interrupted: these are the best plans found so far")
    if output is not None:
        save(output, step, found, force=force)
    page.result(frontier_data(found))
    show(page, step.name, found)
    page.line()
    if output is not None:
        page.pairs([("saved", str(output))])
    knee = str(found.knee.budget_bytes)
    page.next("lowtide", "plan", *asked.words, "--budget", knee)


def read_budgets(text: str) -> int | list[str | int]:
    """A count of budgets, or the budgets themselves."""
    if text.strip().isdecimal() and int(text) < 1000:
        return int(text)
    return [checked_budget(part) for part in text.split(",") if part.strip()]


def _check_output(output: Path | None, *, force: bool) -> None:
    if output is not None and output.suffix not in (".html", ".svg", ".png", ".json"):
        raise InvalidArgumentError(
            f"-o {output}",
            "this ending says nothing about the form",
            "End the name in .html, .svg, .png or .json",
        )
    files.refuse_early(output, force=force)


def save(output: Path, step: Any, frontier: Frontier, *, force: bool) -> None:
    """Write the frontier in the form that the file's name says."""
    from lowtide.reporting import report

    match output.suffix:
        case ".json":
            files.write(output, frontier_data(frontier), force=force)
        case ".html":
            made = report(step, frontier.knee.plan, frontier)
            files.write(output, made.to_html(), force=force)
        case _:
            made = report(step, frontier.knee.plan, frontier)
            save_picture(made, "frontier", output, force=force)


def save_picture(made: Any, name: str, output: Path, *, force: bool) -> None:
    """Write one chart of a report as a picture."""
    import tempfile

    with tempfile.TemporaryDirectory() as folder:
        pictures = made.save_plots(folder, form=output.suffix[1:])
        (chosen,) = [path for path in pictures if path.stem == name]
        files.write(output, chosen.read_bytes(), force=force)


def frontier_data(frontier: Frontier) -> dict[str, Any]:
    """A frontier as plain data, without the schedules of its plans."""
    return {
        "lowtide": "frontier",
        "planner": frontier.planner,
        "baseline_peak_bytes": frontier.baseline_peak_bytes,
        "baseline_seconds": frontier.baseline_seconds,
        "floor_bytes": frontier.floor_bytes,
        "unreachable": list(frontier.unreachable),
        "knee_budget_bytes": frontier.knee.budget_bytes,
        "points": [
            {
                "budget_bytes": p.budget_bytes,
                "peak_bytes": p.peak_bytes,
                "seconds": p.seconds,
                "overhead": p.overhead,
                "gap": p.plan.proof.gap,
                "planner": p.plan.planner,
            }
            for p in frontier.points
        ],
    }


def show(page: Page, name: str, frontier: Frontier) -> None:
    """The frontier as a table with bars, the largest budget first."""
    page.line(
        f"{name}: {format_bytes(frontier.baseline_peak_bytes)} and "
        f"{format_seconds(frontier.baseline_seconds)} without a plan",
        "bold",
    )
    most = max((p.overhead for p in frontier.points), default=0.0)
    bar_width = max(6, min(30, page.console.width - 52))
    rows = [
        (
            format_bytes(p.budget_bytes),
            format_bytes(p.peak_bytes),
            format_percent(p.peak_bytes / max(1, frontier.baseline_peak_bytes)),
            format_percent(p.overhead, signed=True),
            _bar(p.overhead, most, bar_width) + (" <- knee" * (p is frontier.knee)),
        )
        for p in reversed(frontier.points)
    ]
    page.table(("budget", "peak", "of baseline", "time", "<"), rows)
    for budget in reversed(frontier.unreachable):
        page.line(f"{format_bytes(budget)}: below the floor")
    page.line(
        f"The floor is {format_bytes(frontier.floor_bytes)}: {frontier.planner} finds "
        "no plan with a lower peak."
    )


def _bar(value: float, most: float, width: int) -> str:
    filled = round(width * max(0.0, value) / most) if most > 0 else 0
    return "|" + "#" * filled

"""`lowtide sweep`: what each budget would cost."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from lowtide.shell.failures import say
from lowtide.shell.frame import Content, SavingFrame, interrupted
from lowtide.shell.options import (
    Planner,
    StepSource,
    TimeLimit,
    read_budget,
    saved_as,
    words_of,
)
from lowtide.shell.progress import stage
from lowtide.step.format import format_bytes, format_percent, format_seconds
from lowtide.step.graph import StepGraph

if TYPE_CHECKING:
    from lowtide.planners._sweep import Frontier


def sweep(
    frame: SavingFrame,
    source: StepSource,
    budgets: Annotated[
        str,
        typer.Option(
            help="How many, or a list such as 4GiB,5GiB,60%.", metavar="N|LIST"
        ),
    ] = "12",
    output: Annotated[
        Path | None, saved_as("Where to write it: .html, .svg, .png or .json.")
    ] = None,
    planner: Planner = "auto",
    time_limit: TimeLimit = 30.0,
) -> None:
    """Show the whole trade between peak and time, one plan for each budget."""
    from lowtide.planners import load
    from lowtide.planners._sweep import sweep as sweep_step

    wanted = _read_budgets(budgets)
    load(planner)
    frame.will_save(output, ".html", ".svg", ".png", ".json")
    asked = source.asked
    step = source.step()
    with stage(f"planning with {planner}", limit_seconds=time_limit):
        found = sweep_step(step, budgets=wanted, planner=planner, time_limit=time_limit)
    if interrupted(*(point.plan for point in found.points)):
        say("note", "interrupted: these are the best plans found so far")
    frame.save(output, lambda ending: _content(ending, step, found))
    frame.result(_data(found))
    _show(frame, step.name, found)
    knee = str(found.knee.budget_bytes)
    frame.next("plan", *asked.words, "--budget", knee)


def _read_budgets(text: str) -> int | list[str | int]:
    """A count of budgets, or the budgets themselves."""
    if text.strip().isdecimal() and int(text) < 1000:
        return int(text)
    return [read_budget(part) for part in words_of(text)]


def _content(ending: str, step: StepGraph, frontier: Frontier) -> Content:
    if ending == ".json":
        return _data(frontier)
    from lowtide.reporting.report import report

    made = report(step, frontier.knee.plan, frontier)
    if ending == ".html":
        return made.to_html()
    with tempfile.TemporaryDirectory() as folder:
        pictures = made.save_plots(folder, form=ending[1:])
        (chosen,) = [path for path in pictures if path.stem == "frontier"]
        return chosen.read_bytes()


def _data(frontier: Frontier) -> dict[str, Any]:
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


def _show(frame: SavingFrame, name: str, frontier: Frontier) -> None:
    """The frontier as a table with bars, the largest budget first."""
    baseline = frontier.baseline_peak_bytes
    frame.line(
        f"{name}: {format_bytes(baseline)} and "
        f"{format_seconds(frontier.baseline_seconds)} without a plan",
        "bold",
    )
    most = max((p.overhead for p in frontier.points), default=0.0)
    width = max(6, min(30, frame.console.width - 52))
    rows = [
        (
            format_bytes(p.budget_bytes),
            format_bytes(p.peak_bytes),
            format_percent(p.peak_bytes / max(1, baseline)),
            format_percent(p.overhead, signed=True),
            _bar(p.overhead, most, width) + (" <- knee" * (p is frontier.knee)),
        )
        for p in reversed(frontier.points)
    ]
    frame.table(("budget", "peak", "of baseline", "time", "<"), rows)
    for budget in reversed(frontier.unreachable):
        frame.line(f"{format_bytes(budget)}: below the floor")
    frame.line(
        f"The floor is {format_bytes(frontier.floor_bytes)}: {frontier.planner} finds "
        "no plan with a lower peak."
    )


def _bar(value: float, most: float, width: int) -> str:
    filled = round(width * max(0.0, value) / most) if most > 0 else 0
    return "|" + "#" * filled

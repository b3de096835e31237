"""`lowtide sweep`: what each budget would cost."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from lowtide.errors import fitting
from lowtide.shell import options
from lowtide.shell.failures import say
from lowtide.shell.frame import SavingFrame, by_ending, interrupted
from lowtide.shell.options import option, read_budget, saved_as, words_of
from lowtide.shell.progress import stage
from lowtide.shell.target import StepSource
from lowtide.step.format import format_bytes, format_percent, format_seconds
from lowtide.step.graph import StepGraph

if TYPE_CHECKING:
    from lowtide.planners._sweep import Frontier

_BUDGETS = "How many, or a list such as 4GiB,5GiB,60%."
_OUTPUT = "Where to write it: .html, .svg, .png or .json."


def sweep(
    frame: SavingFrame,
    source: StepSource,
    budgets: Annotated[str, option(_BUDGETS, "N|LIST")] = "12",
    output: Annotated[Path | None, saved_as(_OUTPUT)] = None,
    planner: options.Planner = "auto",
    time_limit: options.TimeLimit = 30.0,
) -> None:
    """Show the whole trade between peak and time, one plan for each budget."""
    from lowtide.planners import load
    from lowtide.planners._sweep import sweep as sweep_step
    from lowtide.reporting.pictures.charts import chart_picture
    from lowtide.reporting.report import report

    wanted = _read_budgets(budgets)
    load(planner)
    frame.will_save(output, ".html", ".svg", ".png", ".json")
    step = source.step()
    with stage(f"planning with {planner}", limit_seconds=time_limit):
        found = sweep_step(step, budgets=wanted, planner=planner, time_limit=time_limit)
    if interrupted(*(point.plan for point in found.points)):
        say("note", "interrupted: these are the best plans found so far")
    data, page = _data(found), partial(report, step, found.knee.plan, found)

    def draw(_: Any, form: str) -> bytes:
        return chart_picture("frontier", page().data, form)

    frame.save(output, by_ending(data, draw, page))
    frame.result(data)
    _show(frame, step, found)
    frame.assumed(step)
    words = (*source.words, "--budget", fitting(found.knee.budget_bytes))
    frame.next("plan", *words, *options.planner_words(planner))


def _read_budgets(text: str) -> int | list[str]:
    if text.strip().isdecimal() and int(text) < 1000:
        return int(text)
    return [read_budget(part) for part in words_of(text)]


def _data(frontier: Frontier) -> dict[str, Any]:
    """A frontier as plain data, without the schedules of its plans."""
    names = ("budget_bytes", "peak_bytes", "seconds", "overhead")
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
                **{name: getattr(point, name) for name in names},
                "gap": point.plan.proof.gap,
                "planner": point.plan.planner,
            }
            for point in frontier.points
        ],
    }


def _show(frame: SavingFrame, step: StepGraph, frontier: Frontier) -> None:
    """The frontier as a table with bars, the largest budget first."""
    peak = step.eager_peak_bytes
    seconds = format_seconds(frontier.baseline_seconds)
    title = f"{step.name}: {format_bytes(peak)} and {seconds} without a plan"
    frame.line(title, "bold")
    most = max((p.overhead for p in frontier.points), default=0.0)
    width = max(6, min(30, frame.console.width - 52))
    rows = [
        (
            format_bytes(p.budget_bytes),
            format_bytes(p.peak_bytes),
            format_percent(p.peak_bytes / max(1, peak)),
            format_percent(p.overhead, signed=True),
            _bar(p.overhead, most, width) + (" <- knee" * (p is frontier.knee)),
        )
        for p in reversed(frontier.points)
    ]
    frame.table(("budget", "peak", "share", "time", "<"), rows)
    for budget in reversed(frontier.unreachable):
        frame.line(f"{format_bytes(budget)}: below the floor")
    frame.line(
        f"The floor is {format_bytes(frontier.floor_bytes)}: {frontier.planner} finds "
        "no plan with a lower peak."
    )


def _bar(value: float, most: float, width: int) -> str:
    filled = round(width * max(0.0, value) / most) if most > 0 else 0
    return "|" + "#" * filled

"""`lowtide plan`: the fastest plan within a budget, or the lowest within a time."""

from __future__ import annotations

import time
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer

from lowtide.errors import BudgetTooSmallError, InvalidArgumentError
from lowtide.shell import complete, files
from lowtide.shell.failures import say
from lowtide.shell.options import (
    AsJson,
    Batch,
    Budget,
    Device,
    Force,
    How,
    ModelOptions,
    Output,
    StepFile,
    TargetText,
    TimeLimit,
)
from lowtide.shell.page import Page
from lowtide.shell.progress import stage
from lowtide.shell.steps import beside, interrupted, plan_rows
from lowtide.shell.target import Target, read_target, step_of
from lowtide.step.format import format_bytes, format_percent, format_seconds
from lowtide.step.graph import StepGraph
from lowtide.step.plan import Plan
from lowtide.step.units import to_bytes, to_fraction


def plan(
    target: TargetText,
    budget: Budget = None,
    max_overhead: Annotated[
        str | None,
        typer.Option(
            metavar="PERCENT",
            help="Instead of a budget: the extra time allowed, such as 10%.",
            show_default=False,
        ),
    ] = None,
    output: Output = None,
    planner: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME",
            help="One of `lowtide planners`, or all; may be repeated. The best plan "
            "is taken.  [default: auto]",
            envvar="LOWTIDE_PLANNER",
            autocompletion=complete.planners,
            show_default=False,
        ),
    ] = None,
    time_limit: TimeLimit = 10.0,
    step_file: StepFile = None,
    batch: Batch = None,
    option: ModelOptions = None,
    how: How = "measure",
    device: Device = None,
    force: Force = False,
    as_json: AsJson = False,
) -> None:
    """Find the fastest plan whose peak stays within a budget."""
    page = Page(as_json=as_json)
    wish = Wish.read(budget, max_overhead, time_limit)
    names = _names(planner)
    asked = read_target(target, batch, option)
    step_output = _step_output(asked, output)
    for path in (output, step_output):
        files.refuse_early(path, force=force)
    step = step_of(asked, how=how, device=device, step_file=step_file)
    tries = [_try(step, name, wish) for name in names]
    best = _best(tries, wish)
    if output is not None:
        files.write(output, best.to_dict(), force=force)
    if step_output is not None:
        files.write_compact(step_output, step.to_dict(), force=force)
    page.result(best.to_dict())
    _show(page, step, tries, best)
    page.line()
    for path in (output, step_output):
        if path is not None:
            page.pairs([("saved", str(path))])
    if output is None:
        flags = ("--budget", budget) if budget else ("--max-overhead", max_overhead)
        words = (*asked.words, *(flag for flag in flags if flag))
        page.next("lowtide", "plan", *words, "-o", f"{asked.name}.plan.json")
    else:
        page.next("lowtide", "report", str(output))


@dataclass(frozen=True, slots=True)
class Wish:
    """What the plan is to keep to: a budget, or extra time."""

    budget: str | int | None
    max_overhead: float | None
    time_limit: float

    @classmethod
    def read(
        cls, budget: str | None, max_overhead: str | None, time_limit: float
    ) -> Wish:
        """Checked before anything slow begins."""
        if budget is not None and max_overhead is not None:
            raise InvalidArgumentError(
                f"--budget {budget} and --max-overhead {max_overhead}",
                "a plan keeps to one of the two",
                "Give one of them (LOWTIDE_BUDGET counts as --budget)",
            )
        if budget is None and max_overhead is None:
            raise InvalidArgumentError(
                "lowtide plan",
                "neither --budget nor --max-overhead was given",
                "Write --budget 6GiB, --budget 60% or --max-overhead 10%",
            )
        if max_overhead is not None:
            return cls(
                None, to_fraction(max_overhead, name="--max-overhead"), time_limit
            )
        return cls(checked_budget(budget), None, time_limit)


def checked_budget(budget: str | None) -> str | int:
    """A budget as typed: a whole number is one of bytes."""
    text = (budget or "").strip()
    value = int(text) if text.isdecimal() and text.isascii() else text
    to_bytes(value, baseline_bytes=1 << 40)
    return value


@dataclass(frozen=True, slots=True)
class Try:
    """What one planner made of the wish."""

    planner: str
    plan: Plan | None
    seconds: float
    error: BudgetTooSmallError | None = None


def _names(planner: list[str] | None) -> list[str]:
    from lowtide.planners import available, load

    names = [part for each in planner or ["auto"] for part in each.split(",") if part]
    if "all" in names:
        return list(available())
    for name in names:
        load(name)
    return list(dict.fromkeys(names))


def _step_output(asked: Target, output: Path | None) -> Path | None:
    """Where to leave the step, so that the plan can be shown and explained later."""
    if output is None or asked.kind == "file":
        return None
    return beside(output, files.STEP_ENDING)


def _try(step: StepGraph, name: str, wish: Wish) -> Try:
    from lowtide.planners._request import plan as make_plan

    started = time.perf_counter()
    with stage(f"planning with {name}", limit_seconds=wish.time_limit):
        try:
            found = make_plan(
                step,
                budget=wish.budget,
                max_overhead=wish.max_overhead,
                planner=name,
                time_limit=wish.time_limit,
            )
        except BudgetTooSmallError as error:
            return Try(name, None, time.perf_counter() - started, error)
    if interrupted(found):
        say("note", "interrupted: this is the best plan found so far")
    return Try(name, found, time.perf_counter() - started)


def _best(tries: list[Try], wish: Wish) -> Plan:
    plans = [t.plan for t in tries if t.plan is not None]
    if not plans:
        errors = [t.error for t in tries if t.error is not None]
        raise min(errors, key=lambda error: error.floor_bytes)
    if wish.max_overhead is not None:
        return min(plans, key=lambda p: (p.peak_bytes, p.seconds))
    return min(plans, key=lambda p: (p.seconds, p.peak_bytes))


def _show(page: Page, step: StepGraph, tries: list[Try], best: Plan) -> None:
    page.line(f"{step.name}, planned by {best.planner}", "bold")
    if len(tries) > 1:
        page.table(
            ("planner", "peak", "overhead", "gap", "search", "<"),
            [_row(t, best) for t in tries],
        )
        page.line()
    page.pairs(plan_rows(step, best))


def _row(attempt: Try, best: Plan) -> tuple[str, ...]:
    seconds = format_seconds(attempt.seconds)
    if attempt.plan is None:
        floor = attempt.error.floor_bytes if attempt.error else 0
        return (attempt.planner, format_bytes(floor), "-", "-", seconds, "too high")
    found = attempt.plan
    return (
        attempt.planner,
        format_bytes(found.peak_bytes),
        format_percent(found.overhead, signed=True),
        format_percent(found.proof.gap),
        seconds,
        "<- chosen" if found is best else "",
    )

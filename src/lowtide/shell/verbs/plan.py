"""`lowtide plan`: the fastest plan within a budget, or the lowest within a time."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Annotated

from lowtide.errors import BudgetTooSmallError, InvalidArgumentError
from lowtide.shell import complete, files
from lowtide.shell.failures import say
from lowtide.shell.frame import SavingFrame, interrupted
from lowtide.shell.options import (
    Budget,
    Output,
    StepSource,
    TimeLimit,
    option,
    read_budget,
    words_of,
)
from lowtide.shell.progress import stage
from lowtide.step.format import (
    format_bytes,
    format_count,
    format_percent,
    format_seconds,
)
from lowtide.step.graph import StepGraph
from lowtide.step.names import short_target
from lowtide.step.plan import Plan
from lowtide.step.units import to_fraction


def plan(
    frame: SavingFrame,
    source: StepSource,
    budget: Budget = None,
    max_overhead: Annotated[
        str | None,
        option("Instead of a budget: the extra time allowed, such as 10%.", "PERCENT"),
    ] = None,
    output: Output = None,
    planner: Annotated[
        list[str] | None,
        option(
            "One of `lowtide planners`, or all; may be repeated. The best plan is "
            "taken.  [default: auto]",
            "NAME",
            envvar="LOWTIDE_PLANNER",
            autocompletion=complete.planners,
        ),
    ] = None,
    time_limit: TimeLimit = 10.0,
) -> None:
    """Find the fastest plan whose peak stays within a budget."""
    limit = Limit.read(budget, max_overhead)
    names = _names(planner)
    asked = source.asked
    # The step is left beside the plan, so that the plan can be explained later.
    step_output = None
    if output is not None and asked.kind != "file":
        step_output = files.beside(output, files.STEP_ENDING)
    for path in (output, step_output):
        frame.will_save(path)
    step = source.step()
    attempts = [_attempt(step, name, limit, time_limit) for name in names]
    best = _best(attempts, limit)
    frame.save(output, best.to_dict())
    frame.save(step_output, lambda _: files.compact(step.to_dict()))
    frame.result(best.to_dict())
    frame.line(f"{step.name}, planned by {best.planner}", "bold")
    if len(attempts) > 1:
        frame.table(
            ("planner", "peak", "overhead", "gap", "search", "<"),
            [_row(attempt, best) for attempt in attempts],
        )
        frame.line()
    frame.pairs(list(_summary(step, best)))
    if output is None:
        words = (*asked.words, *limit.words, "-o", f"{asked.name}.plan.json")
        frame.next("plan", *words)
    else:
        frame.next("report", str(output))


@dataclass(frozen=True, slots=True)
class Limit:
    """What a plan keeps to: a budget, or extra time. `words` is how it was typed."""

    budget: str | int | None
    max_overhead: float | None
    words: tuple[str, str]

    @classmethod
    def read(cls, budget: str | None, max_overhead: str | None) -> Limit:
        """Checked before anything slow begins."""
        if budget is not None and max_overhead is not None:
            raise InvalidArgumentError(
                f"--budget {budget} and --max-overhead {max_overhead}",
                "a plan keeps to one of the two",
                "Give one of them (LOWTIDE_BUDGET counts as --budget)",
            )
        if budget is not None:
            return cls(read_budget(budget), None, ("--budget", budget))
        if max_overhead is not None:
            share = to_fraction(max_overhead, name="--max-overhead")
            return cls(None, share, ("--max-overhead", max_overhead))
        raise InvalidArgumentError(
            "lowtide plan",
            "neither --budget nor --max-overhead was given",
            "Write --budget 6GiB, --budget 60% or --max-overhead 10%",
        )


@dataclass(frozen=True, slots=True)
class Attempt:
    """What one planner found, and in what time."""

    planner: str
    seconds: float
    plan: Plan | None
    error: BudgetTooSmallError | None = None


def _names(planner: list[str] | None) -> list[str]:
    from lowtide.planners import available, load

    names = [name for each in planner or ["auto"] for name in words_of(each)]
    if "all" in names:
        return list(available())
    for name in names:
        load(name)
    return list(dict.fromkeys(names))


def _attempt(step: StepGraph, name: str, limit: Limit, time_limit: float) -> Attempt:
    from lowtide.planners._request import plan as make_plan

    started = time.perf_counter()
    with stage(f"planning with {name}", limit_seconds=time_limit):
        try:
            found = make_plan(
                step,
                budget=limit.budget,
                max_overhead=limit.max_overhead,
                planner=name,
                time_limit=time_limit,
            )
        except BudgetTooSmallError as error:
            return Attempt(name, time.perf_counter() - started, None, error)
    if interrupted(found):
        say("note", "interrupted: this is the best plan found so far")
    return Attempt(name, time.perf_counter() - started, found)


def _best(attempts: list[Attempt], limit: Limit) -> Plan:
    plans = [attempt.plan for attempt in attempts if attempt.plan is not None]
    if not plans:
        errors = [attempt.error for attempt in attempts if attempt.error is not None]
        raise min(errors, key=lambda error: error.floor_bytes)
    if limit.max_overhead is not None:
        return min(plans, key=lambda p: (p.peak_bytes, p.seconds))
    return min(plans, key=lambda p: (p.seconds, p.peak_bytes))


def _row(attempt: Attempt, best: Plan) -> tuple[str, ...]:
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


def _summary(step: StepGraph, plan: Plan) -> Iterator[tuple[str, str, str]]:
    """A plan in a few lines: what it promises and what it costs."""
    baseline = plan.baseline_peak_bytes
    share = plan.budget_bytes / max(1, baseline)
    below = format_percent(1.0 - plan.peak_bytes / max(1, baseline))
    yield (
        "budget",
        format_bytes(plan.budget_bytes),
        f"{format_percent(share)} of the peak without a plan",
    )
    yield (
        "peak",
        format_bytes(plan.peak_bytes),
        f"{below} below {format_bytes(baseline)}",
    )
    yield (
        "time",
        format_percent(plan.overhead, signed=True),
        f"{format_seconds(plan.baseline_seconds)} to {format_seconds(plan.seconds)}",
    )
    yield ("proven", *_proof(plan))
    yield ("recompute", *_recomputed(step, plan))


def _proof(plan: Plan) -> tuple[str, str]:
    if plan.proof.gap <= 0:
        return "optimal", "no plan for this budget is faster"
    least = plan.proof.bound_seconds / max(plan.baseline_seconds, 1e-30) - 1
    known = "no bound is known but the time without a plan"
    if least > 0:
        extra = format_percent(least, signed=True)
        known = f"no plan for this budget takes less than {extra} time"
    return f"gap {format_percent(plan.proof.gap)}", known


def _recomputed(step: StepGraph, plan: Plan) -> tuple[str, str]:
    """How many runs are extra, what they take, and which kinds of ops lead."""
    from lowtide.step.analysis import extra_runs
    from lowtide.step.walk import walk

    found = extra_runs(walk(step, plan.schedule), lambda op: short_target(op.target))
    kinds = sorted(found, key=lambda name: (-found[name].num_runs, name))
    leading = [f"{name} {found[name].num_runs}" for name in kinds[:4]]
    leading += ["..."] if len(kinds) > 4 else []
    seconds = format_seconds(sum(extra.seconds for extra in found.values()))
    num_runs = sum(extra.num_runs for extra in found.values())
    text = ": ".join(filter(None, (seconds, ", ".join(leading))))
    return format_count(num_runs, "extra run"), text

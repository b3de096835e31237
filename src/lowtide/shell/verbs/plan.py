"""`lowtide plan`: the fastest plan within a budget, or the lowest within a time."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Annotated, Any

from lowtide.errors import BudgetTooSmallError
from lowtide.shell import files, options
from lowtide.shell.failures import say
from lowtide.shell.frame import SavingFrame, interrupted
from lowtide.shell.options import check_one_of, option, step_words
from lowtide.shell.progress import stage
from lowtide.shell.target import StepSource, Target
from lowtide.step.format import format_bytes, format_percent, format_seconds
from lowtide.step.graph import StepGraph
from lowtide.step.plan import Plan
from lowtide.step.records import json_of
from lowtide.step.units import to_fraction

_OVERHEAD = "Instead of a budget: the extra time allowed, such as 10%."
_PLANNERS = (
    "One of `lowtide planners`, or all; may be repeated. The best plan is taken.  "
    "[default: auto]"
)
_TIME_LIMIT = 10.0
_CARDS = ("budget", "peak", "time", "gap", "recomputed")


def plan(
    frame: SavingFrame,
    source: StepSource,
    budget: options.Budget = None,
    max_overhead: Annotated[str | None, option(_OVERHEAD, "PERCENT")] = None,
    output: options.Output = None,
    planner: Annotated[
        list[str] | None, option(_PLANNERS, "NAME", **options.by_planner)
    ] = None,
    time_limit: options.TimeLimit = _TIME_LIMIT,
) -> None:
    """Find the fastest plan whose peak stays within a budget."""
    limit = _read_limit(budget, max_overhead)
    names = _names(planner)
    # The step is left beside the plan, so that the plan can be explained later.
    step_output = None
    if output is not None and source.kind != "file":
        step_output = files.beside(output, files.STEP_ENDING)
    for path in (output, step_output):
        frame.will_save(path)
    step = source.step()
    attempts: list[Attempt] = []
    for name in names:
        try:
            attempts.append(_attempt(step, name, limit, time_limit))
        except KeyboardInterrupt:
            if not any(isinstance(attempt.outcome, Plan) for attempt in attempts):
                raise
            say("note", "interrupted: this is the best plan found so far")
            break
    best = _best(attempts, limit)
    frame.save(output, json_of(best))
    frame.save(step_output, lambda _: json_of(step))
    frame.result(best.to_dict())
    frame.line(f"{step.name}, planned by {best.planner}", "bold")
    if len(attempts) > 1:
        frame.table(
            ("planner", "peak", "overhead", "gap", "search", "<"),
            [_row(attempt, best) for attempt in attempts],
        )
        frame.line()
    _show(frame, step, best)
    frame.assumed(step)
    if step.facts.get("mesh"):
        _show_rank(frame, step, best)
    if source.mesh:
        named = Target(source.text, None, source.model_options).words
        words = [*named, "--device", source.device or "h100", "--mesh", source.mesh]
        words += ["--budget", str(budget or "70GiB")]
        frame.next("batch", *words, "--batches", "1,2,4")
        return
    if output is None:
        share = repr(budget or best.peak_bytes)
        frame.text(f"train with it: lowtide.optimize(model, budget={share})")
        within = ("--budget", budget) if budget else ("--max-overhead", max_overhead)
        search = [word for name in planner or () for word in ("--planner", name)]
        if time_limit != _TIME_LIMIT:
            search += ["--time-limit", f"{time_limit:g}"]
        words = (*source.words, *map(str, within), *search)
        frame.next("plan", *words, "-o", f"{source.name}.plan.json")
    else:
        where = f"lowtide.Plan.load({str(output)!r})"
        frame.text(f"train with it: lowtide.apply(model, {where})")
        frame.next("report", str(output), *step_words(source.step_file))


def _read_limit(budget: str | None, max_overhead: str | None) -> dict[str, Any]:
    """What the plan has to keep to, checked before anything slow begins."""
    given = {"--budget": budget, "--max-overhead": max_overhead}
    examples = "--budget 6GiB, --budget 60% or --max-overhead 10%"
    check_one_of("plan", given, "a plan keeps to one of the two", examples)
    if budget is not None:
        return {"budget": options.read_budget(budget)}
    return {"max_overhead": to_fraction(max_overhead, name="--max-overhead")}


@dataclass(frozen=True, slots=True)
class Attempt:
    """What one planner found, and how long it took."""

    planner: str
    seconds: float
    outcome: Plan | BudgetTooSmallError


def _names(planner: list[str] | None) -> list[str]:
    from lowtide.planners import available, load

    names = [name for each in planner or ["auto"] for name in options.words_of(each)]
    if "all" in names:
        return list(available())
    for name in names:
        load(name)
    return list(dict.fromkeys(names))


def _attempt(
    step: StepGraph, name: str, limit: dict[str, Any], time_limit: float
) -> Attempt:
    from lowtide.planners._request import plan as make_plan

    started = time.perf_counter()
    with stage(f"planning with {name}", limit_seconds=time_limit):
        try:
            outcome = make_plan(step, planner=name, time_limit=time_limit, **limit)
        except BudgetTooSmallError as error:
            outcome = error
    if isinstance(outcome, Plan) and interrupted(outcome):
        say("note", f"interrupted: this is the best plan of {name} so far")
    return Attempt(name, time.perf_counter() - started, outcome)


def _best(attempts: list[Attempt], limit: dict[str, Any]) -> Plan:
    outcomes = [attempt.outcome for attempt in attempts]
    plans = [outcome for outcome in outcomes if isinstance(outcome, Plan)]
    if not plans:
        errors = [o for o in outcomes if isinstance(o, BudgetTooSmallError)]
        raise min(errors, key=lambda error: error.floor_bytes)
    if "max_overhead" in limit:
        return min(plans, key=lambda p: (p.peak_bytes, p.seconds))
    return min(plans, key=lambda p: (p.seconds, p.peak_bytes))


def _row(attempt: Attempt, best: Plan) -> tuple[str, ...]:
    name, seconds = attempt.planner, format_seconds(attempt.seconds)
    found = attempt.outcome
    if isinstance(found, BudgetTooSmallError):
        return (name, format_bytes(found.floor_bytes), "-", "-", seconds, "too high")
    return (
        name,
        format_bytes(found.peak_bytes),
        format_percent(found.overhead, signed=True),
        format_percent(found.proof.gap),
        seconds,
        "<- chosen" if found is best else "",
    )


def _show(frame: SavingFrame, step: StepGraph, plan: Plan) -> None:
    """A plan in a few lines, from the numbers that its report shows."""
    from lowtide.reporting.cards import headline, plan_cards
    from lowtide.reporting.inputs import sort_things
    from lowtide.step.schedule import walk_baseline
    from lowtide.step.walk import walk

    inputs = sort_things((step, plan))
    walks = (walk(step, plan.schedule), walk_baseline(step))
    cards = {card["id"]: card for card in plan_cards(inputs, plan, walks)}
    frame.line(headline(inputs, plan))
    frame.cards([cards[name] for name in _CARDS])


def _show_rank(frame: SavingFrame, step: StepGraph, plan: Plan) -> None:
    """What one of many ranks has in memory at its peak, by kind."""
    from lowtide.step.analysis.peak import peak_of
    from lowtide.step.names import KIND_NAMES
    from lowtide.step.walk import walk

    held = peak_of(walk(step, plan.schedule)).by_kind()
    rows = [(KIND_NAMES[kind], format_bytes(nbytes)) for kind, nbytes in held.items()]
    frame.line()
    frame.table(("at the peak of a rank", "bytes"), rows)
    for note in step.notes[-1:]:
        frame.text(note)

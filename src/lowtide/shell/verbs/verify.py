"""`lowtide verify`: that a planned step computes the very same numbers."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from lowtide.errors import InvalidArgumentError, PlanMismatchError
from lowtide.shell import complete, files, options
from lowtide.shell.failures import NOT_VERIFIED, say
from lowtide.shell.frame import Frame
from lowtide.shell.options import check_one_of, option, read_budget
from lowtide.shell.progress import stage
from lowtide.shell.target import Target, build, load_api, profile, target_of_words
from lowtide.step.format import format_bytes, format_percent, format_seconds
from lowtide.step.graph import StepGraph
from lowtide.step.plan import Plan

if TYPE_CHECKING:
    from lowtide.engine.checks.verify import Verification

_EQUAL = ("loss_equal", "gradients_equal", "buffers_equal", "rng_equal")
_OF_PLAN = ("planner", "fingerprint", "budget_bytes")
_LINES = 8


def verify(
    frame: Frame,
    source: Target,
    plan: Annotated[
        Path | None,
        option("The plan to check.", "FILE", autocompletion=complete.plans),
    ] = None,
    budget: options.Budget = None,
    planner: options.Planner = "auto",
) -> None:
    """Run the step with and without the plan and compare every number, bit for bit."""
    chosen, wanted, asked = _what(source, plan, budget)
    api = load_api()
    example = build(asked)
    call = {"plan": chosen, "budget": wanted, "loss": example.loss, "planner": planner}
    try:
        with stage("running the step both ways"):
            verified = api.verify(example.model, example.batch, **call)
    except PlanMismatchError as error:
        planned = chosen and files.step_if_known(chosen, plan or source.path)
        if planned is None:
            raise
        step = profile(asked, example, "estimate", None)
        prints = (error.plan_fingerprint, error.step_fingerprint)
        raise PlanMismatchError(*prints, _inputs_differ(planned, step)) from None
    frame.result(_data(verified))
    _show(frame, verified)
    if not verified.ok:
        frame.next("doctor")
        say("error", f"verification failed: {verified.differences[0]}")
        raise typer.Exit(NOT_VERIFIED)
    if wanted is None:
        frame.next("report", str(plan or source.path))
    else:
        words = (*asked.words, "--budget", wanted, *options.planner_words(planner))
        frame.next("plan", *words, "-o", f"{asked.name}.plan.json")


def _inputs_differ(planned: StepGraph, step: StepGraph) -> str:
    """The shapes of what goes into two steps, if they are not the same."""
    shapes = [
        ["x".join(map(str, s.shape)) for s in each.storages if s.kind == "input"]
        for each in (planned, step)
    ]
    first, second = (", ".join(each) for each in shapes)
    return f"the plan is for inputs of {first}, these are {second}" * (first != second)


def _what(
    asked: Target, plan: Path | None, budget: str | None
) -> tuple[Plan | None, str | None, Target]:
    """The plan or the budget to verify, and the model to verify it on."""
    if asked.kind == "file":
        if plan is not None:
            raise InvalidArgumentError(
                f"{asked.text} --plan {plan}",
                "the target of verify is the model, and this is a file",
                "Give the model or function that the plan was made for",
            )
        return _from_file(asked)
    given = {"--plan": plan, "--budget": budget}
    examples = "--plan NAME.plan.json or --budget 60%"
    check_one_of("verify", given, "a plan has a budget of its own", examples)
    if plan is not None:
        return files.load_plan(plan), None, asked
    return None, read_budget(str(budget)), asked


def _from_file(asked: Target) -> tuple[Plan | None, None, Target]:
    """A plan file alone: its step says which built-in model it was made from.

    Code named in a file is not run; only the user's own words do that.
    """
    thing = files.load(asked.path)
    step = thing
    if isinstance(thing, Plan):
        step = files.step_if_known(thing, asked.path)
    words = list(step.facts.get("target", ())) if isinstance(step, StepGraph) else []
    if isinstance(thing, Plan) and words:
        origin = target_of_words(words)
        if origin.kind == "model":
            return thing, None, origin
    name = words[0] if words else "TARGET"
    raise InvalidArgumentError(
        asked.text,
        "a saved file holds no model, and verify runs one",
        f"Write `lowtide verify {name} --plan {asked.text}`",
    )


def _data(verified: Verification) -> dict[str, Any]:
    plan, measured = verified.plan, verified.measured
    own = ("ok", *_EQUAL, "num_gradients", "differences", "origin")
    return {
        **{name: getattr(verified, name) for name in own},
        **{name: getattr(plan, name) for name in _OF_PLAN},
        "predicted_peak_bytes": plan.peak_bytes,
        "measured_peak_bytes": verified.measured_peak_bytes or None,
        "predicted_seconds": plan.seconds,
        "measured_seconds": measured.seconds if measured else None,
        "measured_baseline_seconds": measured.baseline_seconds if measured else None,
    }


def _show(frame: Frame, verified: Verification) -> None:
    verdicts = ["DIFFERENT", "equal, bit by bit"]
    loss, gradients, buffers, rng = (verdicts[getattr(verified, n)] for n in _EQUAL)
    plan, measured = verified.plan, verified.measured
    peak = (
        f"predicted {format_bytes(plan.peak_bytes)}, measured "
        f"{format_bytes(verified.measured_peak_bytes)}, budget "
        f"{format_bytes(plan.budget_bytes)}"
    )
    rows = [
        ("loss", loss),
        ("gradients", f"{gradients} ({verified.num_gradients} of them)"),
        ("buffers", buffers),
        ("random numbers", rng),
        ("peak", peak),
    ]
    if measured is not None:
        time = (
            f"predicted {format_percent(plan.overhead, signed=True)}, measured "
            f"{format_percent(measured.ratio - 1, signed=True)} "
            f"({format_seconds(measured.baseline_seconds)} to "
            f"{format_seconds(measured.seconds)})"
        )
        rows.append(("time", time))
    frame.pairs(rows)
    for difference in verified.differences[:_LINES]:
        frame.line(f"  {difference}")
    if len(verified.differences) > _LINES:
        frame.line(f"  and {len(verified.differences) - _LINES} more")
    if verified.origin:
        frame.line(f"  The difference arises at {verified.origin}.")

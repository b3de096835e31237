"""`lowtide verify`: that a planned step computes the very same numbers."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from lowtide.errors import InvalidArgumentError
from lowtide.shell import complete, files
from lowtide.shell.failures import NOT_VERIFIED, say
from lowtide.shell.frame import Frame
from lowtide.shell.options import Budget, ModelOrFile, Planner, option, read_budget
from lowtide.shell.page import user_prints_elsewhere
from lowtide.shell.progress import stage
from lowtide.shell.target import Target, build, load_api, target_of_words
from lowtide.step.format import format_bytes, format_percent, format_seconds
from lowtide.step.graph import StepGraph
from lowtide.step.plan import Plan


def verify(
    frame: Frame,
    source: ModelOrFile,
    plan: Annotated[
        Path | None,
        option("The plan to check.", "FILE", autocompletion=complete.plans),
    ] = None,
    budget: Budget = None,
    planner: Planner = "auto",
) -> None:
    """Run the step with and without the plan and compare every number, bit for bit."""
    chosen, wanted, asked = _what(source.asked, plan, budget)
    api = load_api()
    example = build(asked)
    with stage("running the step both ways"), user_prints_elsewhere():
        found = api.verify(
            example.model,
            example.batch,
            plan=chosen,
            budget=wanted,
            loss=example.loss,
            planner=planner,
        )
    frame.result(_data(found))
    _show(frame, found)
    if not found.ok:
        frame.next("doctor")
        say("error", f"verification failed: {found.differences[0]}")
        raise typer.Exit(NOT_VERIFIED)
    if plan is not None:
        frame.next("report", str(plan))
    else:
        words = (*asked.words, "--budget", str(wanted or "60%"))
        frame.next("plan", *words, "-o", f"{asked.name}.plan.json")


def _what(
    asked: Target, plan: Path | None, budget: str | None
) -> tuple[Plan | None, str | int | None, Target]:
    """The plan or the budget to verify, and the model to verify it on."""
    if asked.kind == "file":
        if plan is not None:
            raise InvalidArgumentError(
                f"{asked.text} --plan {plan}",
                "the target of verify is the model, and this is a file",
                "Give the model or function that the plan was made for",
            )
        return _from_file(asked)
    if plan is not None and budget is not None:
        raise InvalidArgumentError(
            f"--plan {plan} --budget {budget}",
            "a plan has a budget of its own",
            "Give one of them (LOWTIDE_BUDGET counts as --budget)",
        )
    if plan is not None:
        return files.load_plan(plan), None, asked
    if budget is None:
        raise InvalidArgumentError(
            "lowtide verify",
            "neither --plan nor --budget was given",
            "Write --plan NAME.plan.json or --budget 60%",
        )
    return None, read_budget(budget), asked


def _from_file(asked: Target) -> tuple[Plan | None, None, Target]:
    """A plan file alone: its step says which built-in model it was made from.

    Code named in a file is not run; only the user's own words do that.
    """
    thing = files.load(asked.path)
    step = thing
    if isinstance(thing, Plan):
        step = files.step_beside(thing, asked.path)
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


def _data(found: Any) -> dict[str, Any]:
    """A verification as plain data."""
    measured = found.measured
    return {
        "ok": found.ok,
        "loss_equal": found.loss_equal,
        "gradients_equal": found.gradients_equal,
        "buffers_equal": found.buffers_equal,
        "rng_equal": found.rng_equal,
        "num_gradients": found.num_gradients,
        "differences": list(found.differences),
        "planner": found.plan.planner,
        "fingerprint": found.plan.fingerprint,
        "budget_bytes": found.plan.budget_bytes,
        "predicted_peak_bytes": found.predicted_peak_bytes,
        "measured_peak_bytes": found.measured_peak_bytes or None,
        "predicted_seconds": found.plan.seconds,
        "measured_seconds": measured.seconds if measured else None,
        "measured_baseline_seconds": measured.baseline_seconds if measured else None,
    }


def _show(frame: Frame, found: Any) -> None:
    """A verification in a few lines."""

    def verdict(is_equal: bool) -> str:
        return "equal, bit by bit" if is_equal else "DIFFERENT"

    plan = found.plan
    count = found.num_gradients
    rows = [
        ("loss", verdict(found.loss_equal)),
        ("gradients", f"{verdict(found.gradients_equal)} ({count} of them)"),
        ("buffers", verdict(found.buffers_equal)),
        ("random numbers", verdict(found.rng_equal)),
        (
            "peak",
            f"predicted {format_bytes(plan.peak_bytes)}, measured "
            f"{format_bytes(found.measured_peak_bytes)}, budget "
            f"{format_bytes(plan.budget_bytes)}",
        ),
    ]
    if found.measured is not None:
        measured = found.measured
        extra = measured.seconds / max(measured.baseline_seconds, 1e-30) - 1
        rows.append(
            (
                "time",
                f"predicted {format_percent(plan.overhead, signed=True)}, measured "
                f"{format_percent(extra, signed=True)} "
                f"({format_seconds(measured.baseline_seconds)} to "
                f"{format_seconds(measured.seconds)})",
            )
        )
    frame.pairs(rows)
    for difference in found.differences[:8]:
        frame.line(f"  {difference}")
    if len(found.differences) > 8:
        frame.line(f"  and {len(found.differences) - 8} more")

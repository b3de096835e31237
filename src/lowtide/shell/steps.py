"""Parts of the text that several verbs show about steps and plans."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from lowtide.shell.page import Page
from lowtide.step.analysis import extra_runs
from lowtide.step.format import (
    format_bytes,
    format_count,
    format_percent,
    format_seconds,
)
from lowtide.step.graph import StepGraph
from lowtide.step.names import short_target
from lowtide.step.plan import Plan
from lowtide.step.walk import walk


def show_report(page: Page, *things: Any, command: str = "") -> None:
    """The text form of a report."""
    if page.as_json:
        return
    from lowtide.reporting import report
    from lowtide.reporting.text import render_text

    render_text(
        report(*things, command=command).data, page.out, width=page.console.width
    )


def plan_rows(step: StepGraph | None, plan: Plan) -> list[tuple[str, str, str]]:
    """A plan in a few lines: what it promises and what it costs."""
    saved = 1.0 - plan.peak_bytes / max(1, plan.baseline_peak_bytes)
    rows = [
        ("budget", format_bytes(plan.budget_bytes), _share(plan)),
        (
            "peak",
            format_bytes(plan.peak_bytes),
            f"{format_percent(saved)} below {format_bytes(plan.baseline_peak_bytes)}",
        ),
        (
            "time",
            format_percent(plan.overhead, signed=True),
            f"{format_seconds(plan.baseline_seconds)} to "
            f"{format_seconds(plan.seconds)}",
        ),
        ("proven", *_proof(plan)),
    ]
    if step is not None:
        rows.append(("recompute", *recomputed(step, plan)))
    return rows


def _share(plan: Plan) -> str:
    share = plan.budget_bytes / max(1, plan.baseline_peak_bytes)
    return f"{format_percent(share)} of the peak without a plan"


def _proof(plan: Plan) -> tuple[str, str]:
    if plan.proof.gap <= 0:
        return "optimal", "no plan for this budget is faster"
    bound = plan.proof.bound_seconds / max(plan.baseline_seconds, 1e-30) - 1
    known = "no bound is known but the time without a plan"
    if bound > 0:
        extra = format_percent(bound, signed=True)
        known = f"no plan for this budget takes less than {extra} time"
    return f"gap {format_percent(plan.proof.gap)}", known


def recomputed(step: StepGraph, plan: Plan) -> tuple[str, str]:
    """How many runs are extra, what they take, and which kinds of ops lead."""
    found = extra_runs(walk(step, plan.schedule), lambda op: short_target(op.target))
    leading = sorted(found, key=lambda name: (-found[name].num_runs, name))
    names = ", ".join(f"{name} {found[name].num_runs}" for name in leading[:4])
    more = ", ..." if len(leading) > 4 else ""
    seconds = format_seconds(sum(extra.seconds for extra in found.values()))
    return (
        format_count(sum(extra.num_runs for extra in found.values()), "extra run"),
        f"{seconds}: {names}{more}" if names else seconds,
    )


def interrupted(plan: Plan) -> bool:
    """Whether the user stopped the search."""
    return plan.proof.stopped_by == "interrupted"


def beside(path: Path, ending: str) -> Path:
    """A file of the same name with another ending."""
    from lowtide.shell.files import stem_of

    return path.with_name(stem_of(path) + ending)

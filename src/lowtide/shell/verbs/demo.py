"""`lowtide demo`: the main job in one command."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated, Any

import typer

from lowtide.shell import files
from lowtide.shell.failures import NOT_VERIFIED, say
from lowtide.shell.options import AsJson, Force
from lowtide.shell.page import Page
from lowtide.shell.progress import stage
from lowtide.shell.target import load_api
from lowtide.shell.verbs.plan import checked_budget
from lowtide.step.format import format_bytes, format_percent, format_seconds


def demo(
    budget: Annotated[
        str, typer.Option(metavar="SIZE", help="Peak of the whole step.")
    ] = "60%",
    output: Annotated[
        Path,
        typer.Option(
            "--output", "-o", metavar="FILE", help="Where to write the report."
        ),
    ] = Path("demo.html"),
    steps: Annotated[
        int, typer.Option(min=2, metavar="N", help="Training steps of each run.")
    ] = 8,
    force: Force = False,
    as_json: AsJson = False,
) -> None:
    """Train a small model with and without a budget, and write the report."""
    page = Page(as_json=as_json)
    wanted = checked_budget(budget)
    files.refuse_early(output, force=force)
    page.line(
        "A GPT of four blocks learns to add, twice from the same start: as it is,"
    )
    page.line(f"and with lowtide.optimize(model, budget={wanted!r}).")
    page.line()
    found = run(wanted, steps)
    report = _report(found, output, force=force)
    page.result({**data_of(found, wanted), "report": str(report)})
    _show(page, found)
    page.line()
    page.pairs([("saved", f"{report} (open it in a browser)")])
    page.line("On a model of yours, write `import lowtide` and, before training,")
    page.line('    lowtide.optimize(model, budget="6 GiB")')
    page.next("lowtide", "profile", "train.py:make_step")
    if not found["ok"]:
        say("error", "the two runs differ: please report this with the file above")
        raise typer.Exit(NOT_VERIFIED)


def run(budget: str | int, num_steps: int) -> dict[str, Any]:
    """Both trainings, the plan between them, and the measurements of both."""
    # One thread, here and in the processes that measure: steps this small gain nothing
    # from more, and times are steadier on a busy machine.
    os.environ["OMP_NUM_THREADS"] = "1"
    _api = load_api()
    from lowtide.planners._request import plan as make_plan
    from lowtide.shell import training

    batches = training.make_batches(num_steps)
    inputs, targets = batches[0]
    loss = training.NextCharacter(targets)
    plain, planned = training.make_model(), training.make_model()
    with stage("training as it is") as advance:
        before = training.train(plain, batches, advance)
    with stage("capturing the step and timing its ops") as advance:
        step = _api.profile(plain, inputs, loss=loss, name="demo", progress=advance)
    with stage("planning", limit_seconds=5.0):
        plan = make_plan(step, budget=budget, time_limit=5.0)
    _api.apply(planned, plan)
    with stage("training with the plan") as advance:
        after = training.train(planned, batches, advance)
    with stage("measuring both") as advance:
        measured = {"baseline": _api.measure(plain, inputs, loss=loss, steps=3)}
        advance(1, 2)
        measured["planned"] = _api.measure(planned, inputs, loss=loss, steps=3)
    losses, weights = training.same_bits(before, after)
    return {
        "step": step,
        "plan": plan,
        "before": before,
        "after": after,
        "measured": measured,
        "num_equal_losses": losses,
        "num_equal_weights": weights,
        "ok": losses == num_steps and weights == len(before.weights),
    }


def data_of(found: dict[str, Any], budget: str | int) -> dict[str, Any]:
    """The demo as plain data."""
    plain, planned = found["measured"]["baseline"], found["measured"]["planned"]
    return {
        "ok": found["ok"],
        "budget": budget,
        "budget_bytes": found["plan"].budget_bytes,
        "losses": [float(loss) for loss in found["after"].losses],
        "num_steps": len(found["before"].losses),
        "num_equal_losses": found["num_equal_losses"],
        "num_weights": len(found["before"].weights),
        "num_equal_weights": found["num_equal_weights"],
        "predicted_peak_bytes": found["plan"].peak_bytes,
        "predicted_overhead": found["plan"].overhead,
        "baseline_peak_bytes": plain.peak_bytes,
        "planned_peak_bytes": planned.peak_bytes,
        "baseline_rss_peak_bytes": plain.rss_peak_bytes,
        "planned_rss_peak_bytes": planned.rss_peak_bytes,
        "baseline_seconds": planned.baseline_seconds,
        "planned_seconds": planned.seconds,
    }


def _report(found: dict[str, Any], output: Path, *, force: bool) -> Path:
    from lowtide.reporting import report

    made = report(
        found["step"],
        found["plan"],
        found["measured"],
        title="lowtide demo",
        command="lowtide demo",
    )
    return files.write(output, made.to_html(), force=force)


def _show(page: Page, found: dict[str, Any]) -> None:
    before, after = found["before"], found["after"]
    count = len(before.losses)
    page.table(
        ("step", "loss as it is", "loss with the budget", "<"),
        [
            (
                str(number),
                f"{float(a):.9f}",
                f"{float(b):.9f}",
                "same bits" if bool((a == b).item()) else "DIFFERENT",
            )
            for number, (a, b) in enumerate(
                zip(before.losses, after.losses, strict=True), 1
            )
        ],
    )
    page.line()
    page.table(("", "as it is", "with the budget", "change"), _rows(found))
    page.line()
    page.line(
        f"{found['num_equal_losses']} of {count} losses and "
        f"{found['num_equal_weights']} of {len(before.weights)} trained weights are "
        "equal, bit by bit."
    )


def _rows(found: dict[str, Any]) -> list[tuple[str, ...]]:
    plain, planned = found["measured"]["baseline"], found["measured"]["planned"]
    rows = [_row("peak, allocated", plain.peak_bytes, planned.peak_bytes, format_bytes)]
    if plain.rss_peak_bytes and planned.rss_peak_bytes:
        rows.append(
            _row(
                "peak, as the system saw",
                plain.rss_peak_bytes,
                planned.rss_peak_bytes,
                format_bytes,
            )
        )
    rows.append(
        _row(
            "time of a step",
            planned.baseline_seconds,
            planned.seconds,
            format_seconds,
        )
    )
    return rows


def _row(name: str, first: float, second: float, show: Any) -> tuple[str, ...]:
    change = format_percent(second / first - 1, signed=True) if first else ""
    return (name, show(first), show(second), change)

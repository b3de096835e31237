"""`lowtide demo`: the main job in one command."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from lowtide.shell.failures import NOT_VERIFIED, say
from lowtide.shell.frame import SavingFrame
from lowtide.shell.options import option, read_budget, saved_as
from lowtide.shell.progress import stage
from lowtide.shell.target import load_api
from lowtide.step.format import format_bytes, format_percent, format_seconds

if TYPE_CHECKING:
    from lowtide.engine.jobs.demo import Demo


def demo(
    frame: SavingFrame,
    budget: Annotated[str, option("Peak of the whole step.", "SIZE")] = "60%",
    output: Annotated[Path, saved_as("Where to write the report.")] = Path("demo.html"),
    steps: Annotated[int, option("Training steps of each run.", "N", min=2)] = 8,
) -> None:
    """Train a small model with and without a budget, and write the report."""
    wanted = read_budget(budget)
    frame.will_save(output)
    frame.line("A GPT of four blocks learns to add, twice from the same start: once")
    frame.line(f"plain, once with lowtide.optimize(model, budget={wanted!r}).")
    frame.line()
    # One thread, here and in the processes that measure: steps this small gain nothing
    # from more, and times are steadier on a busy machine.
    os.environ["OMP_NUM_THREADS"] = "1"
    load_api()
    from lowtide.engine.jobs.demo import run_demo
    from lowtide.reporting.report import report

    done = run_demo(wanted, steps, stage)
    name = "lowtide demo"
    found = {"baseline": done.baseline, "planned": done.planned}, done.verification
    made = report(done.step, done.plan, *found, title=name, command=name)
    frame.save(output, made.to_html())
    frame.result({**done.to_dict(), "budget": wanted, "report": str(output)})
    _show(frame, done)
    frame.line()
    frame.line("On a model of yours, write `import lowtide` and, before training,")
    frame.line('    lowtide.optimize(model, budget="6 GiB")')
    frame.next("profile", "train.py:make_step")
    if not done.ok:
        say("error", "the two runs differ: please report this with the file above")
        raise typer.Exit(NOT_VERIFIED)


def _show(frame: SavingFrame, done: Demo) -> None:
    frame.table(
        ("step", "loss, plain", "loss, with the budget", "<"),
        [
            (str(n), f"{a:.9f}", f"{b:.9f}", "same bits" if is_equal else "DIFFERENT")
            for n, (a, b, is_equal) in enumerate(done.losses, 1)
        ],
    )
    plain, planned = done.baseline, done.planned
    seen = (plain.rss_peak_bytes, planned.rss_peak_bytes)
    times = (planned.baseline_seconds, planned.seconds)
    peaks = (plain.peak_bytes, planned.peak_bytes)
    rows: list[tuple[str, ...]] = [
        ("budget", "", format_bytes(done.plan.budget_bytes), ""),
        _row("peak, allocated", *peaks, format_bytes),
    ]
    if all(seen):
        rows.append(_row("peak, seen by the system", *seen, format_bytes))
    rows.append(_row("time of a step", *times, format_seconds))
    frame.line()
    frame.table(("", "plain", "with the budget", "change"), rows)
    frame.line()
    frame.line(
        f"{done.num_equal_losses} of {len(done.losses)} losses and "
        f"{done.num_equal_weights} of {len(done.weights)} trained weights are "
        "equal, bit by bit."
    )


def _row(
    name: str, first: float, second: float, show: Callable[..., str]
) -> tuple[str, ...]:
    change = format_percent(second / first - 1, signed=True) if first else ""
    return (name, show(first), show(second), change)

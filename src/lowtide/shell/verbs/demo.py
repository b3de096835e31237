"""`lowtide demo`: the main job in one command."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from lowtide.shell.failures import NOT_VERIFIED, say
from lowtide.shell.frame import SavingFrame
from lowtide.shell.options import read_budget, saved_as
from lowtide.shell.progress import stage
from lowtide.shell.target import load_api
from lowtide.step.format import format_bytes, format_percent, format_seconds

if TYPE_CHECKING:
    from lowtide.engine.demo import Demo


def demo(
    frame: SavingFrame,
    budget: Annotated[
        str, typer.Option(metavar="SIZE", help="Peak of the whole step.")
    ] = "60%",
    output: Annotated[
        Path, saved_as("Where to write the report.  [default: demo.html]")
    ] = Path("demo.html"),
    steps: Annotated[
        int, typer.Option(min=2, metavar="N", help="Training steps of each run.")
    ] = 8,
) -> None:
    """Train a small model with and without a budget, and write the report."""
    wanted = read_budget(budget)
    frame.will_save(output)
    frame.line(
        "A GPT of four blocks learns to add, twice from the same start: as it is,"
    )
    frame.line(f"and with lowtide.optimize(model, budget={wanted!r}).")
    frame.line()
    # One thread, here and in the processes that measure: steps this small gain nothing
    # from more, and times are steadier on a busy machine.
    os.environ["OMP_NUM_THREADS"] = "1"
    load_api()
    from lowtide.engine.demo import run_demo

    found = run_demo(wanted, steps, stage)
    frame.save(output, lambda _: _report(found))
    frame.result({**found.to_dict(), "budget": wanted, "report": str(output)})
    _show(frame, found)
    frame.line()
    frame.line("On a model of yours, write `import lowtide` and, before training,")
    frame.line('    lowtide.optimize(model, budget="6 GiB")')
    frame.next("profile", "train.py:make_step")
    if not found.ok:
        say("error", "the two runs differ: please report this with the file above")
        raise typer.Exit(NOT_VERIFIED)


def _report(found: Demo) -> str:
    from lowtide.reporting.report import report

    measured = {"baseline": found.baseline, "planned": found.planned}
    title = command = "lowtide demo"
    made = report(found.step, found.plan, measured, title=title, command=command)
    return made.to_html()


def _show(frame: SavingFrame, found: Demo) -> None:
    frame.table(
        ("step", "loss as it is", "loss with the budget", "<"),
        [
            (str(n), f"{a:.9f}", f"{b:.9f}", "same bits" if is_equal else "DIFFERENT")
            for n, (a, b, is_equal) in enumerate(found.losses, 1)
        ],
    )
    plain, planned = found.baseline, found.planned
    peaks = ("peak, allocated", plain.peak_bytes, planned.peak_bytes)
    seen = ("peak, as the system saw", plain.rss_peak_bytes, planned.rss_peak_bytes)
    rows = [_row(*peaks, format_bytes)]
    if plain.rss_peak_bytes and planned.rss_peak_bytes:
        rows.append(_row(*seen, format_bytes))
    times = ("time of a step", planned.baseline_seconds, planned.seconds)
    rows.append(_row(*times, format_seconds))
    frame.line()
    frame.table(("", "as it is", "with the budget", "change"), rows)
    frame.line()
    frame.line(
        f"{found.num_equal_losses} of {len(found.losses)} losses and "
        f"{found.num_equal_weights} of {len(found.before.weights)} trained weights are "
        "equal, bit by bit."
    )


def _row(
    name: str, first: float, second: float, show: Callable[..., str]
) -> tuple[str, ...]:
    change = format_percent(second / first - 1, signed=True) if first else ""
    return (name, show(first), show(second), change)

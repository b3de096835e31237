"""What a planned call tells its user: the plan in the log, a report, one warning."""

from __future__ import annotations

import logging
import os
import warnings
from pathlib import Path

from lowtide.errors import LowtideError, LowtideWarning
from lowtide.reporting.report import report
from lowtide.step.format import format_bytes, format_percent, format_seconds
from lowtide.step.graph import StepGraph
from lowtide.step.plan import Plan

log = logging.getLogger("lowtide.run")


def announce(step: StepGraph, plan: Plan, seconds: float) -> None:
    """Log a new plan, and write a report where `LOWTIDE_REPORT` says."""
    log.info(
        "lowtide: %s -> %s, %s time, planned in %s",
        format_bytes(step.eager_peak_bytes),
        format_bytes(plan.peak_bytes),
        format_percent(plan.overhead, signed=True),
        format_seconds(seconds),
    )
    asked = os.environ.get("LOWTIDE_REPORT")
    if asked:
        _write_report(asked, step, plan)


def _write_report(asked: str, step: StepGraph, plan: Plan) -> None:
    """Beside what is there already. Training goes on if it cannot be written."""
    path = first = Path(asked)
    number = 1
    while path.exists():
        number += 1
        path = first.with_stem(f"{first.stem}-{number}")
    try:
        report(step, plan).save(path)
    except LowtideError as error:
        warn(f"LOWTIDE_REPORT={asked}: {error}")
    else:
        log.info("report written to %s", path)


def warn(text: str) -> None:
    """Warn the user; what was asked for is not happening."""
    warnings.warn(text, LowtideWarning, stacklevel=3)

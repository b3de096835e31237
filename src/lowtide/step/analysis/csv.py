"""The profile of a step as comma-separated tables."""

from __future__ import annotations

import csv
import io
from dataclasses import fields
from pathlib import Path
from typing import Any, Literal, TextIO

from lowtide.errors import InvalidArgumentError
from lowtide.step.analysis.breakdown import by_module
from lowtide.step.analysis.lifetimes import Lifetime, OpRecord, lifetimes, op_records
from lowtide.step.files import cell, write_whole
from lowtide.step.graph import StepGraph

Table = Literal["storages", "ops", "modules"]


def write_csv(step: StepGraph, out: TextIO, table: Table = "storages") -> None:
    """Write one row per storage, op or module."""
    writer = csv.writer(out, lineterminator="\n")
    match table:
        case "storages":
            names = [*_names(Lifetime), "bytes_per_second"]
            rows: Any = lifetimes(step)
        case "ops":
            names, rows = _names(OpRecord), op_records(step)
        case "modules":
            names = (
                "name count identical num_ops forward_seconds backward_seconds "
                "optimizer_seconds kept_bytes peak_bytes recompute_seconds"
            ).split()
            rows = by_module(step, depth=99)
        case _:
            raise InvalidArgumentError(
                f"table={table!r}",
                "there is no such table",
                'Use "storages", "ops" or "modules"',
            )
    writer.writerow(names)
    for row in rows:
        writer.writerow([cell(getattr(row, name)) for name in names])


def save_csv(
    step: StepGraph,
    path: str | Path,
    table: Table = "storages",
    *,
    force: bool = False,
) -> None:
    """Write a table into a file; see `write_whole` for what it may replace."""
    out = io.StringIO()
    write_csv(step, out, table)
    write_whole(path, out.getvalue(), force=force)


def _names(record: type[Lifetime] | type[OpRecord]) -> list[str]:
    return [f.name for f in fields(record)]

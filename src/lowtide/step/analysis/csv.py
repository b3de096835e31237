"""The profile of a step as comma-separated tables."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable, Sequence
from dataclasses import fields
from typing import Any, Literal

from lowtide.errors import InvalidArgumentError
from lowtide.step.analysis.ops import OpRecord, Share, by_module, op_records
from lowtide.step.analysis.storages import Lifetime, lifetimes
from lowtide.step.graph import StepGraph

Table = Literal["storages", "ops", "modules"]


def table_of(step: StepGraph, table: Table) -> str:
    """One row per storage, op or module."""
    rows: Sequence[Any]
    match table:
        case "storages":
            record, rows = Lifetime, lifetimes(step)
        case "ops":
            record, rows = OpRecord, op_records(step)
        case "modules":
            record, rows = Share, by_module(step, depth=99)
        case _:
            raise InvalidArgumentError(
                f"table={table!r}",
                "there is no such table",
                'Use "storages", "ops" or "modules"',
            )
    names = [field.name for field in fields(record)]
    names += ["bytes_per_second"] if record is Lifetime else []
    return as_csv(names, ([getattr(row, name) for name in names] for row in rows))


def as_csv(headings: Sequence[str], rows: Iterable[Sequence[Any]]) -> str:
    """A table of names and numbers that a spreadsheet shows as they are."""
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(headings)
    writer.writerows([inert(cell) for cell in row] for row in rows)
    return out.getvalue()


def inert(cell: Any) -> Any:
    """The cell, with a quote before a text that a spreadsheet would take for a formula.

    >>> inert("=1+1"), inert("-x"), inert("-2.5"), inert(-2.5), inert("conv1")
    ("'=1+1", "'-x", '-2.5', -2.5, 'conv1')
    """
    if not isinstance(cell, str) or not cell.startswith(
        ("=", "+", "-", "@", "\t", "\r")
    ):
        return cell
    try:
        float(cell)
    except ValueError:
        return f"'{cell}"
    return cell

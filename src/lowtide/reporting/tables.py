"""The report's tables: lifetimes, modules, what is alive at the peak, where time goes.

Storages have no module of their own; theirs is the module of the op that makes them.
Layers that do the same with the same bytes are one row.
"""

from __future__ import annotations

from collections import defaultdict
from typing import Any

from lowtide.reporting.tide import span
from lowtide.step.analysis.ops import extra_runs
from lowtide.step.analysis.peak import peak_of
from lowtide.step.analysis.storages import fates, maker
from lowtide.step.graph import StepGraph
from lowtide.step.names import (
    KIND_NAMES,
    NO_MODULE,
    collapse,
    pattern_of,
    short_target,
    titles,
)
from lowtide.step.walk import Walk

PEAK_LIMIT = 200
# What is narrower than this share of the peak is part of "others".
LEAST_SHARE = 0.002


def lifetimes(walk: Walk, *, limit: int) -> list[dict[str, Any]]:
    """When each of the largest storages lives, the largest first."""
    step, starts, names = walk.step, walk.starts(), titles(walk.step)
    largest = sorted(walk.stretches, key=lambda s: (-step.sizes[s], s))
    rows: list[dict[str, Any]] = []
    for s in largest[:limit]:
        bars = [
            {**span(starts, each.first, each.last + 1), "again": each.again}
            for each in walk.stretches[s]
        ]
        kind, op = step.storages[s].kind, _maker_id(step, s)
        placed = op >= 0 and step.ops[op].module
        name = names[op] if placed else step.storages[s].name
        row = {"storage": s, "name": name, "bytes": step.sizes[s]}
        rows.append({**row, "kind": kind, "op": op, "bars": bars})
    return rows


def _maker_id(step: StepGraph, storage: int) -> int:
    op = maker(step, storage)
    return -1 if op is None else op.id


def modules(walk: Walk, *, limit: int) -> list[dict[str, Any]]:
    """Kept and recomputed bytes by module, largest first, equal layers in one row.

    Listed are the storages that the forward leaves to the backward, and those that are
    made again; `limit` of them in all.
    """
    step = walk.step
    lines: dict[str, list[dict[str, Any]]] = defaultdict(list)
    for fate in fates(walk):
        op, storage = maker(step, fate.storage), step.storages[fate.storage]
        if op is None or fate.word not in ("kept", "recomputed", "both"):
            continue
        if fate.word != "recomputed" or op.phase == "forward":
            lines[op.module].append(
                {
                    "op": op.id,
                    "name": storage.name,
                    "shape": list(storage.shape),
                    "dtype": storage.dtype,
                    "bytes": step.sizes[fate.storage],
                    "fate": fate.word,
                    "times_made": fate.times_made,
                }
            )
    extra = {m: e.seconds for m, e in extra_runs(walk, lambda op: op.module).items()}
    groups: dict[tuple[Any, ...], list[str]] = defaultdict(list)
    for module in dict.fromkeys((*lines, *extra)):
        lines[module].sort(key=lambda line: line["op"])
        shape = tuple(
            (step.ops[line["op"]].target, line["bytes"], line["fate"])
            for line in lines[module]
        )
        ran = round(extra.get(module, 0.0), 12)
        groups[pattern_of(module), shape, ran if not shape else 0].append(module)
    rows: list[dict[str, Any]] = []
    for names in groups.values():
        shown = [line for name in names for line in lines[name]]
        again = sum(x["bytes"] for x in shown if x["fate"] == "recomputed")
        rows.append(
            {
                "label": collapse(names) or NO_MODULE,
                "num_modules": len(names),
                "kept_bytes": sum(line["bytes"] for line in shown) - again,
                "recomputed_bytes": again,
                "recompute_seconds": sum(extra.get(n, 0.0) for n in names),
                "num_storages": len(shown),
                "storages": sorted(
                    shown, key=lambda line: (-line["bytes"], line["op"])
                ),
            }
        )

    def order(row: dict[str, Any]) -> tuple[Any, ...]:
        first = min((line["op"] for line in row["storages"]), default=len(step.ops))
        return (-row["kept_bytes"] - row["recomputed_bytes"], first, row["label"])

    rows.sort(key=order)
    # Only the largest storages of each row, so that a page stays readable.
    for row in rows:
        del row["storages"][max(8, limit // len(rows)) :]
    return rows


def recompute_by_op(walk: Walk) -> list[dict[str, Any]]:
    """Where the extra time goes: by type of op, most first."""
    found = extra_runs(walk, lambda op: short_target(op.target))
    return [
        {"op": name, "num_runs": extra.num_runs, "seconds": extra.seconds}
        for name, extra in found.items()
    ]


def at_peak(walk: Walk) -> dict[str, Any]:
    """What is alive at the peak, largest first; the bytes sum to the peak."""
    step, peak = walk.step, peak_of(walk)
    places = _places(step)
    groups: dict[tuple[str, str, int, str], list[int]] = defaultdict(list)
    for s in peak.storages:
        if s.nbytes:
            key = (pattern_of(places[s.storage]), s.op_type, s.nbytes, s.kind)
            groups[key].append(s.storage)
    rows: list[dict[str, Any]] = []

    def add(label: str, made_by: str, kind: str, count: int, nbytes: int, op: int):
        keys = ("label", "made_by", "kind", "num_storages", "bytes", "op")
        row = (label, made_by, kind, count, nbytes, op)
        rows.append(dict(zip(keys, row, strict=True)))

    for (_, op_type, nbytes, kind), found in groups.items():
        label = collapse(places[s] for s in sorted(found))
        label = label or step.storages[found[0]].name
        count, first = len(found), _maker_id(step, min(found))
        add(label, op_type, kind, count, nbytes * count, first)
    if peak.scratch_bytes:
        label = f"scratch of {titles(step)[peak.op]}"
        add(label, "", "temporary", 1, peak.scratch_bytes, peak.op)
    rows.sort(key=lambda r: (-r["bytes"], r["label"], r["made_by"]))
    if rest := rows[PEAK_LIMIT:]:
        del rows[PEAK_LIMIT:]
        # One row for all the others, so that the sum still holds.
        count, nbytes = (sum(r[k] for r in rest) for k in ("num_storages", "bytes"))
        add(f"{len(rest)} smaller rows", "", "", count, nbytes, -1)
    where = {"op": peak.op, "run": walk.peak_run, "bytes": peak.peak_bytes}
    return {**where, "rows": rows if walk.runs else []}


def icicle(walk: Walk) -> dict[str, Any] | None:
    """The bytes at the peak as a tree: module within module, and kinds at the ends.

    Modules with one part are one box with it, and what is too narrow to see is one box
    of others, so the parts of a box sum to it.
    """
    if not walk.runs:
        return None
    peak, places = peak_of(walk), _places(walk.step)
    root = _box("the whole step")
    for s in peak.storages:
        path = places[s.storage].split(".")
        # A parameter's place is its name, which ends within its module.
        is_named = not s.op_type and places[s.storage] == s.name
        _pour(root, path[:-1] if is_named else path, s.kind, s.nbytes)
    op = walk.step.ops[peak.op]
    _pour(root, op.module.split("."), "temporary", peak.scratch_bytes)
    return _pruned(root, LEAST_SHARE * peak.peak_bytes)


def _box(name: str, kind: str = "") -> dict[str, Any]:
    return {"name": name, "kind": kind, "bytes": 0, "parts": {}}


def _pour(box: dict[str, Any], path: list[str], kind: str, nbytes: int) -> None:
    """Add bytes to a box and to the boxes along a path in it."""
    if not nbytes:
        return
    box["bytes"] += nbytes
    for name in filter(None, path):
        box = box["parts"].setdefault(name, _box(name))
        box["bytes"] += nbytes
    end = box["parts"].setdefault((kind,), _box(KIND_NAMES[kind], kind))
    end["bytes"] += nbytes


def _pruned(box: dict[str, Any], least: float) -> dict[str, Any]:
    parts = sorted(box["parts"].values(), key=lambda part: -part["bytes"])
    shown = [_pruned(part, least) for part in parts if part["bytes"] >= least]
    if rest := sum(part["bytes"] for part in parts if part["bytes"] < least):
        shown.append({**_box("others"), "bytes": rest, "parts": []})
    if len(shown) == 1 and not shown[0]["kind"]:
        (only,) = shown
        return {**only, "name": f"{box['name']}.{only['name']}"}
    return {**box, "parts": shown}


def _places(step: StepGraph) -> list[str]:
    """Where each storage belongs: the module that makes it, or that reads it first."""
    readers: dict[int, str] = {}
    for number in step.baseline:
        for s in step.ops[number].reads:
            readers.setdefault(s, step.ops[number].module)

    def place(s: int, name: str) -> str:
        op = maker(step, s)
        if op is not None:
            return op.module
        return name if "." in name else readers.get(s) or name

    return [place(s.id, s.name) for s in step.storages]

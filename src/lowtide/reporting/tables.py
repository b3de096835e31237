"""The report's tables: lifetimes, modules, what is alive at the peak, where time goes.

Storages have no module of their own; theirs is the module of the op that makes them.
Layers that do the same with the same bytes are one row.
"""

from __future__ import annotations

from collections import defaultdict
from typing import Any

from lowtide.reporting.walk import Walk
from lowtide.step.graph import Op, StepGraph
from lowtide.step.names import collapse, pattern_of, short_target
from lowtide.step.schedule import crossing

LIFETIME_LIMIT = 200
LINE_LIMIT = 2_000
PEAK_LIMIT = 200


def maker(step: StepGraph, storage: int) -> Op | None:
    """The op that first makes a storage, or None if it is resident."""
    made_by = step.producers[storage]
    if step.storages[storage].resident or not made_by:
        return None
    return step.ops[made_by[0]]


def lifetimes(walk: Walk) -> list[dict[str, Any]]:
    """When each of the largest storages lives, in order of birth."""
    step, starts = walk.step, [*walk.starts, walk.seconds]
    largest = sorted(walk.bars, key=lambda s: (-step.sizes[s], s))[:LIFETIME_LIMIT]
    rows: list[dict[str, Any]] = []
    for s in largest:
        op, storage, bars = maker(step, s), step.storages[s], walk.bars[s]
        rows.append(
            {
                "storage": s,
                "name": storage.name,
                "bytes": step.sizes[s],
                "kind": storage.kind,
                "op": -1 if op is None else op.id,
                "bars": [
                    {
                        "first_run": bar.first,
                        "end_run": bar.last + 1,
                        "start_seconds": starts[bar.first],
                        "end_seconds": starts[bar.last + 1],
                        "again": bar.again,
                    }
                    for bar in bars
                ],
            }
        )
    rows.sort(key=lambda r: (r["bars"][0]["first_run"], -r["bars"][0]["end_run"]))
    return rows


def fates(walk: Walk) -> dict[int, str]:
    """What happens to each forward storage that the backward reads.

    "kept": it lives over the turn to the backward. "recomputed": it is made again.
    "both": it lives over the turn, and is freed and made again later.
    """
    kept = frozenset(crossing(walk.step, walk.ops))
    again = {
        s for s, bars in walk.bars.items() if len(bars) > 1 and _is_forward(walk, s)
    }
    return {
        s: "both" if s in kept and s in again else "kept" if s in kept else "recomputed"
        for s in sorted(kept | again)
    }


def _is_forward(walk: Walk, storage: int) -> bool:
    op = maker(walk.step, storage)
    return op is not None and op.phase == "forward"


def modules(walk: Walk) -> list[dict[str, Any]]:
    """Kept and recomputed bytes by module, largest first, equal layers in one row."""
    step = walk.step
    lines: dict[str, list[tuple[Op, int, str]]] = defaultdict(list)
    for s, fate in fates(walk).items():
        op = maker(step, s)
        if op is not None:
            lines[op.module].append((op, s, fate))
    extra = _extra_seconds(walk)
    for module in extra:
        lines.setdefault(module, [])
    groups: dict[tuple[Any, ...], list[str]] = defaultdict(list)
    for module, found in lines.items():
        found.sort(key=lambda line: (line[0].id, line[1]))
        shape = tuple((o.target, step.sizes[s], fate) for o, s, fate in found)
        ran = round(extra.get(module, 0.0), 12)
        groups[pattern_of(module), shape, ran if not shape else 0].append(module)
    rows = [_module_row(walk, names, lines, extra) for names in groups.values()]
    rows.sort(
        key=lambda r: (-r["kept_bytes"] - r["recomputed_bytes"], r["order"], r["label"])
    )
    _limit_lines(rows)
    return rows


def _extra_seconds(walk: Walk) -> dict[str, float]:
    found: dict[str, float] = defaultdict(float)
    for run, number in enumerate(walk.ops):
        if walk.again[run]:
            found[walk.step.ops[number].module] += walk.step.ops[number].seconds
    return found


def _module_row(
    walk: Walk,
    names: list[str],
    lines: dict[str, list[tuple[Op, int, str]]],
    extra: dict[str, float],
) -> dict[str, Any]:
    step = walk.step
    total = {"kept": 0, "recomputed": 0}
    shown: list[dict[str, Any]] = []
    for name in names:
        for op, s, fate in lines[name]:
            total["kept" if fate == "both" else fate] += step.sizes[s]
            storage = step.storages[s]
            shown.append(
                {
                    "op": op.id,
                    "name": storage.name,
                    "shape": list(storage.shape),
                    "dtype": storage.dtype,
                    "bytes": step.sizes[s],
                    "fate": fate,
                    "times_made": len(walk.bars[s]),
                }
            )
    return {
        "label": collapse(names) or "(no module)",
        "num_modules": len(names),
        "kept_bytes": total["kept"],
        "recomputed_bytes": total["recomputed"],
        "recompute_seconds": sum(extra.get(n, 0.0) for n in names),
        "order": min((line["op"] for line in shown), default=len(step.ops)),
        "num_storages": len(shown),
        "storages": sorted(shown, key=lambda line: (-line["bytes"], line["op"])),
    }


def _limit_lines(rows: list[dict[str, Any]]) -> None:
    """Keep the largest storages of each row, so that a page stays readable."""
    share = max(8, LINE_LIMIT // max(1, len(rows)))
    for row in rows:
        del row["order"]
        del row["storages"][share:]


def recompute_by_op(walk: Walk) -> list[dict[str, Any]]:
    """Where the extra time goes: by kind of op, most first."""
    found: dict[str, list[float]] = defaultdict(lambda: [0, 0.0])
    for run, number in enumerate(walk.ops):
        if walk.again[run]:
            entry = found[short_target(walk.step.ops[number].target)]
            entry[0] += 1
            entry[1] += walk.step.ops[number].seconds
    rows = [{"op": k, "num_runs": n, "seconds": t} for k, (n, t) in found.items()]
    rows.sort(key=lambda r: (-r["seconds"], r["op"]))
    return rows


def at_peak(walk: Walk) -> dict[str, Any]:
    """What is alive at the peak, largest first; the bytes sum to the peak."""
    step = walk.step
    if not walk.ops:
        return {"op": -1, "run": 0, "rows": [], "bytes": walk.peak_bytes}
    run = walk.peak_run
    alive, moment_bytes = walk.alive_at(run)
    again = {
        s
        for s, bars in walk.bars.items()
        if any(b.again and b.first <= run <= b.last for b in bars)
    }
    readers = _first_readers(step)
    groups: dict[tuple[Any, ...], list[int]] = defaultdict(list)
    for s in alive:
        if step.sizes[s] == 0:
            continue
        op, storage = maker(step, s), step.storages[s]
        place = _place(step, s, readers)
        kind = "recomputed" if s in again and storage.kind == "activation" else ""
        target = "" if op is None else short_target(op.target)
        key = (pattern_of(place), target, step.sizes[s], kind or storage.kind)
        groups[key].append(s)
    rows = [_peak_row(step, key, found, readers) for key, found in groups.items()]
    if moment_bytes:
        rows.append(
            {
                "label": f"scratch of {step.ops[walk.ops[run]].name}",
                "made_by": "",
                "kind": "temporary",
                "num_storages": 1,
                "bytes": moment_bytes,
                "each_bytes": moment_bytes,
                "op": walk.ops[run],
            }
        )
    rows.sort(key=lambda r: (-r["bytes"], r["label"], r["made_by"]))
    return {
        "op": walk.ops[run],
        "run": run,
        "bytes": walk.peak_bytes,
        "rows": _with_rest(rows),
    }


def _first_readers(step: StepGraph) -> dict[int, str]:
    """For each storage, the module of the first op that reads it."""
    found: dict[int, str] = {}
    for number in step.baseline:
        for s in step.ops[number].reads:
            found.setdefault(s, step.ops[number].module)
    return found


def _place(step: StepGraph, storage: int, readers: dict[int, str]) -> str:
    """Where a storage belongs: the module that makes it, or that reads it first."""
    op, record = maker(step, storage), step.storages[storage]
    if op is not None:
        return op.module
    return record.name if "." in record.name else readers.get(storage) or record.name


def _peak_row(
    step: StepGraph, key: tuple[Any, ...], found: list[int], readers: dict[int, str]
) -> dict[str, Any]:
    _, target, nbytes, kind = key
    first = maker(step, min(found))
    names = [_place(step, s, readers) for s in sorted(found)]
    return {
        "label": collapse(names) or step.storages[found[0]].name,
        "made_by": target,
        "kind": kind,
        "num_storages": len(found),
        "bytes": nbytes * len(found),
        "each_bytes": nbytes,
        "op": -1 if first is None else first.id,
    }


def _with_rest(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The largest rows, and one row for all the others, so that sums still hold."""
    if len(rows) <= PEAK_LIMIT:
        return rows
    rest = rows[PEAK_LIMIT:]
    return [
        *rows[:PEAK_LIMIT],
        {
            "label": f"{len(rest)} smaller rows",
            "made_by": "",
            "kind": "",
            "num_storages": sum(r["num_storages"] for r in rest),
            "bytes": sum(r["bytes"] for r in rest),
            "each_bytes": 0,
            "op": -1,
        },
    ]

"""The report's tables: lifetimes, modules, what is alive at the peak, where time goes.

Storages have no module of their own; theirs is the module of the op that makes them.
Layers that do the same with the same bytes are one row.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from typing import Any

from lowtide.step.analysis import extra_runs, fates, maker, peak_of
from lowtide.step.graph import Op, StepGraph
from lowtide.step.names import NO_MODULE, collapse, pattern_of, short_target
from lowtide.step.walk import Walk

LIFETIME_LIMIT = 200
LINE_LIMIT = 2_000
PEAK_LIMIT = 200


def lifetimes(walk: Walk) -> list[dict[str, Any]]:
    """When each of the largest storages lives, in order of birth."""
    step, starts = walk.step, walk.starts()
    largest = sorted(walk.stretches, key=lambda s: (-step.sizes[s], s))
    rows: list[dict[str, Any]] = []
    for s in largest[:LIFETIME_LIMIT]:
        op, storage = maker(step, s), step.storages[s]
        rows.append(
            {
                "storage": s,
                "name": storage.name,
                "bytes": step.sizes[s],
                "kind": storage.kind,
                "op": -1 if op is None else op.id,
                "bars": [
                    {
                        "first_run": stretch.first,
                        "end_run": stretch.last + 1,
                        "start_seconds": starts[stretch.first],
                        "end_seconds": starts[stretch.last + 1],
                        "again": stretch.again,
                    }
                    for stretch in walk.stretches[s]
                ],
            }
        )
    rows.sort(key=lambda r: (r["bars"][0]["first_run"], -r["bars"][0]["end_run"]))
    return rows


@dataclass(frozen=True, slots=True)
class _Line:
    """A storage that the forward leaves to the backward, or that is made again."""

    op: Op
    storage: int
    fate: str
    times_made: int


def modules(walk: Walk) -> list[dict[str, Any]]:
    """Kept and recomputed bytes by module, largest first, equal layers in one row."""
    step = walk.step
    lines: dict[str, list[_Line]] = defaultdict(list)
    for fate in fates(walk):
        op = maker(step, fate.storage)
        if op is None or fate.word not in ("kept", "recomputed", "both"):
            continue
        if fate.word != "recomputed" or op.phase == "forward":
            line = _Line(op, fate.storage, fate.word, fate.times_made)
            lines[op.module].append(line)
    extra = {m: e.seconds for m, e in extra_runs(walk, lambda op: op.module).items()}
    for module in extra:
        lines.setdefault(module, [])
    groups: dict[tuple[Any, ...], list[str]] = defaultdict(list)
    for module, found in lines.items():
        found.sort(key=lambda line: (line.op.id, line.storage))
        shape = tuple((n.op.target, step.sizes[n.storage], n.fate) for n in found)
        ran = round(extra.get(module, 0.0), 12)
        groups[pattern_of(module), shape, ran if not shape else 0].append(module)
    rows = [
        _module_row(
            step, names, [line for name in names for line in lines[name]], extra
        )
        for names in groups.values()
    ]
    rows.sort(
        key=lambda r: (-r["kept_bytes"] - r["recomputed_bytes"], r["order"], r["label"])
    )
    _limit_lines(rows)
    return rows


def _module_row(
    step: StepGraph, names: list[str], lines: list[_Line], extra: dict[str, float]
) -> dict[str, Any]:
    total = {"kept": 0, "recomputed": 0}
    shown: list[dict[str, Any]] = []
    for line in lines:
        storage, nbytes = step.storages[line.storage], step.sizes[line.storage]
        total["kept" if line.fate == "both" else line.fate] += nbytes
        shown.append(
            {
                "op": line.op.id,
                "name": storage.name,
                "shape": list(storage.shape),
                "dtype": storage.dtype,
                "bytes": nbytes,
                "fate": line.fate,
                "times_made": line.times_made,
            }
        )
    return {
        "label": collapse(names) or NO_MODULE,
        "num_modules": len(names),
        "kept_bytes": total["kept"],
        "recomputed_bytes": total["recomputed"],
        "recompute_seconds": sum(extra.get(n, 0.0) for n in names),
        "order": min((line.op.id for line in lines), default=len(step.ops)),
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
    for (_, op_type, nbytes, kind), found in groups.items():
        first = maker(step, min(found))
        names = [places[s] for s in sorted(found)]
        rows.append(
            _peak_row(
                collapse(names) or step.storages[found[0]].name,
                op_type,
                kind,
                nbytes * len(found),
                num_storages=len(found),
                op=-1 if first is None else first.id,
            )
        )
    if peak.scratch_bytes:
        label = f"scratch of {step.ops[peak.op].name}"
        rows.append(_peak_row(label, "", "temporary", peak.scratch_bytes, op=peak.op))
    rows.sort(key=lambda r: (-r["bytes"], r["label"], r["made_by"]))
    if len(rows) > PEAK_LIMIT:
        # One row for all the others, so that the sum still holds.
        rest = rows[PEAK_LIMIT:]
        rows[PEAK_LIMIT:] = [
            _peak_row(
                f"{len(rest)} smaller rows",
                "",
                "",
                sum(r["bytes"] for r in rest),
                num_storages=sum(r["num_storages"] for r in rest),
            )
        ]
    return {
        "op": peak.op,
        "run": walk.peak_run,
        "bytes": peak.peak_bytes,
        "rows": rows if walk.runs else [],
    }


def _peak_row(
    label: str,
    made_by: str,
    kind: str,
    nbytes: int,
    *,
    num_storages: int = 1,
    op: int = -1,
) -> dict[str, Any]:
    return {
        "label": label,
        "made_by": made_by,
        "kind": kind,
        "num_storages": num_storages,
        "bytes": nbytes,
        "op": op,
    }


def _places(step: StepGraph) -> list[str]:
    """Where each storage belongs: the module that makes it, or that reads it first."""
    readers: dict[int, str] = {}
    for number in step.baseline:
        for s in step.ops[number].reads:
            readers.setdefault(s, step.ops[number].module)
    found: list[str] = []
    for s in step.storages:
        op = maker(step, s.id)
        if op is not None:
            found.append(op.module)
        else:
            found.append(s.name if "." in s.name else readers.get(s.id) or s.name)
    return found

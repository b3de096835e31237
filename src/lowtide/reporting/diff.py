"""What changed between two plans, or between two steps.

Plans of one step are compared storage by storage and op by op. Steps are compared by
module: what each keeps for the backward, and what its ops cost.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from lowtide.errors import InvalidArgumentError
from lowtide.step.analysis.ops import extra_runs, shares_by
from lowtide.step.format import aligned, format_bytes, format_percent, format_seconds
from lowtide.step.graph import StepGraph
from lowtide.step.names import NO_MODULE, collapse, pattern_of
from lowtide.step.plan import Plan
from lowtide.step.schedule import check_match
from lowtide.step.walk import Walk, walk

ROWS = 8
_SHOW: dict[str, Callable[[float], str]] = {
    "bytes": format_bytes,
    "seconds": format_seconds,
    "fraction": format_percent,
    "count": lambda value: f"{value:.0f}",
}


@dataclass(frozen=True, slots=True)
class Change:
    """One quantity in both, as a number and as people read it."""

    name: str
    first: float
    second: float
    unit: str

    @property
    def texts(self) -> tuple[str, str, str]:
        """Both values and the difference, ready to print."""
        show = _SHOW[self.unit]
        difference = self.second - self.first
        change = "+" * (difference > 0) + show(difference)
        if difference == 0:
            change = "equal"
        elif self.unit == "fraction":
            change = f"{100 * difference:+.1f} points"
        elif self.unit != "count" and self.first:
            change += f" ({format_percent(difference / self.first, signed=True)})"
        return show(self.first), show(self.second), change


@dataclass(frozen=True, slots=True)
class Part:
    """A table of what differs: headings and rows of text."""

    title: str
    headings: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]


@dataclass(frozen=True)
class Diff:
    """Two plans or two steps side by side. `str` is the text; `report` draws it."""

    first: Plan | StepGraph
    second: Plan | StepGraph
    names: tuple[str, str]
    changes: tuple[Change, ...]
    parts: tuple[Part, ...]
    steps: tuple[StepGraph | None, StepGraph | None] = (None, None)

    @property
    def is_empty(self) -> bool:
        return not self.parts and all(c.first == c.second for c in self.changes)

    def __str__(self) -> str:
        lines = aligned(
            ("", *self.names, "change"), [(c.name, *c.texts) for c in self.changes]
        )
        for part in self.parts:
            lines += ["", part.title, *aligned(part.headings, part.rows[:ROWS])]
            if len(part.rows) > ROWS:
                lines.append(f"and {len(part.rows) - ROWS} more")
        if self.is_empty:
            lines += ["", "Nothing differs."]
        return "\n".join(lines)

    def to_dict(self) -> dict[str, Any]:
        """Plain data: the names, the quantities and the tables."""
        return {
            "lowtide": "diff",
            "names": list(self.names),
            "changes": [asdict(change) for change in self.changes],
            "parts": [
                {
                    "title": part.title,
                    "headings": list(part.headings),
                    "rows": [list(row) for row in part.rows],
                }
                for part in self.parts
            ],
        }


def diff(
    first: Plan | StepGraph,
    second: Plan | StepGraph,
    *,
    step: StepGraph | None = None,
    names: tuple[str, str] | None = None,
) -> Diff:
    """What changed from the first to the second: two plans, or two steps.

    Args:
        first: A plan or a step.
        second: Another of the same type.
        step: The step of the plans; with it bytes, seconds and modules are shown, and
            the report draws both tides.
        names: What to call the two.

    Raises:
        PlanMismatchError: if a plan is not for `step`.
    """
    if isinstance(first, Plan) and isinstance(second, Plan):
        return _diff_plans(first, second, step, names)
    if isinstance(first, StepGraph) and isinstance(second, StepGraph):
        return _diff_steps(first, second, names)
    raise InvalidArgumentError(
        "lowtide.diff",
        f"a {type(first).__name__} and a {type(second).__name__} cannot be compared",
        "Give two plans, or two steps",
    )


def _labels(first: str, second: str) -> tuple[str, str]:
    return (first, second) if first != second else (f"{first} (A)", f"{second} (B)")


def _diff_plans(
    first: Plan, second: Plan, step: StepGraph | None, names: tuple[str, str] | None
) -> Diff:
    plans, labels = (first, second), names or _labels(first.planner, second.planner)
    changes = [
        Change("budget", *(p.budget_bytes for p in plans), unit="bytes"),
        Change("peak", *(p.peak_bytes for p in plans), unit="bytes"),
        Change("time", *(p.seconds for p in plans), unit="seconds"),
        Change("overhead", *(p.overhead for p in plans), unit="fraction"),
        Change("gap", *(p.proof.gap for p in plans), unit="fraction"),
        Change("storages kept", *(len(p.kept) for p in plans), unit="count"),
    ]
    if first.fingerprint != second.fingerprint:
        peaks = (p.baseline_peak_bytes for p in plans)
        changes.insert(0, Change("baseline peak", *peaks, unit="bytes"))
    if step is None:
        again = (len(p.recomputed) for p in plans)
        changes.append(Change("ops recomputed", *again, unit="count"))
        parts = tuple(_name_parts(first, second, labels))
    else:
        for plan in plans:
            check_match(step, plan)
        walks = [walk(step, plan.schedule) for plan in plans]
        again = (w.num_extra_runs for w in walks)
        changes.append(Change("extra runs", *again, unit="count"))
        parts = tuple(_plan_parts(step, plans, walks, labels))
    return Diff(first, second, labels, tuple(changes), parts, (step, step))


def _plan_parts(
    step: StepGraph,
    plans: Sequence[Plan],
    walks: Sequence[Walk],
    names: tuple[str, str],
) -> Iterable[Part]:
    for name, own, other in zip(names, plans, reversed(plans), strict=True):
        only = sorted(set(own.kept).difference(other.kept))
        makers = {s: step.ops[step.producers[s][0]] for s in only}
        rows = [(makers[s].module, 1, step.sizes[s]) for s in only]
        headings = ("module", "storages", "bytes")
        yield from _grouped(f"Kept only by {name}", headings, rows, format_bytes)
    extra = [extra_runs(w, lambda op: op.id) for w in walks]
    for name, own, other in zip(names, extra, reversed(extra), strict=True):
        only = sorted(set(own).difference(other))
        rows = [(step.ops[i].module, own[i].num_runs, own[i].seconds) for i in only]
        headings, title = ("module", "runs", "time"), f"Recomputed only by {name}"
        yield from _grouped(title, headings, rows, format_seconds)


def _name_parts(first: Plan, second: Plan, names: tuple[str, str]) -> Iterable[Part]:
    """What can be said without the step: names only."""
    for what in ("kept", "recomputed"):
        one, two = (frozenset(p.names.get(what, ())) for p in (first, second))
        for name, only in ((names[0], one - two), (names[1], two - one)):
            if only:
                rows = tuple((n,) for n in sorted(only))
                yield Part(f"{what.capitalize()} only by {name}", (what,), rows)


def _grouped(
    title: str,
    headings: tuple[str, ...],
    rows: Iterable[tuple[str, int, float]],
    show: Callable[[float], str],
) -> Iterable[Part]:
    """One row for each pattern of modules, the largest amount first.

    Rows are a module, a count and an amount.
    """
    groups: dict[str, list[tuple[str, int, float]]] = defaultdict(list)
    for row in rows:
        groups[pattern_of(row[0])].append(row)
    totals: list[tuple[float, str, int]] = []
    for group in groups.values():
        modules, counts, amounts = zip(*group, strict=True)
        totals.append((sum(amounts), collapse(modules) or NO_MODULE, sum(counts)))
    totals.sort(key=lambda total: -total[0])
    if totals:
        cells = tuple((name, str(count), show(n)) for n, name, count in totals)
        yield Part(title, headings, cells)


def _diff_steps(
    first: StepGraph, second: StepGraph, names: tuple[str, str] | None
) -> Diff:
    steps, labels = (first, second), names or _labels(first.name, second.name)
    shares = [shares_by(s, lambda op: pattern_of(op.module)) for s in steps]
    saved = [{share.name: share.kept_bytes for share in found} for found in shares]
    times = [{share.name: share.seconds for share in found} for found in shares]
    kept = (sum(each.values()) for each in saved)
    changes = (
        Change("ops", *(len(s.baseline) for s in steps), unit="count"),
        Change("baseline peak", *(s.baseline_peak_bytes for s in steps), unit="bytes"),
        Change("resident", *(s.resident_bytes for s in steps), unit="bytes"),
        Change("kept for the backward", *kept, unit="bytes"),
        Change("time", *(s.baseline_seconds for s in steps), unit="seconds"),
    )
    parts = (
        *_module_part("Kept for the backward", saved, format_bytes, labels),
        *_module_part("Time by module", times, format_seconds, labels),
    )
    return Diff(first, second, labels, changes, parts, steps)


def _module_part(
    title: str,
    amounts: Sequence[Mapping[str, float]],
    show: Callable[[float], str],
    names: tuple[str, str],
) -> Iterable[Part]:
    """What modules take in both, where it differs, the largest difference first."""
    one, two = amounts
    pairs = {m: (one.get(m, 0.0), two.get(m, 0.0)) for m in {*one, *two}}
    changed = [(b - a, m) for m, (a, b) in pairs.items() if a != b]
    changed.sort(key=lambda row: (-abs(row[0]), row[1]))
    if changed:
        rows = tuple(
            (m or NO_MODULE, *map(show, pairs[m]), "+" * (more > 0) + show(more))
            for more, m in changed
        )
        yield Part(title, ("module", *names, "change"), rows)

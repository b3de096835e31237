"""What changed between two plans, or between two steps.

Plans of one step are compared storage by storage and op by op. Steps are compared by
module: what each keeps for the backward, and what its ops cost.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass
from typing import Any

from lowtide.errors import InvalidArgumentError, PlanMismatchError
from lowtide.step.analysis import Share, extra_runs, shares_by
from lowtide.step.format import aligned, format_bytes, format_percent, format_seconds
from lowtide.step.graph import StepGraph
from lowtide.step.names import collapse, pattern_of
from lowtide.step.plan import Plan
from lowtide.step.schedule import crossing
from lowtide.step.walk import Walk, walk

ROWS = 8


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
        sign = "+" if difference > 0 else ""
        change = "equal" if difference == 0 else sign + show(difference)
        if self.unit == "fraction" and difference:
            change = f"{100 * difference:+.1f} points"
        if self.unit in ("bytes", "seconds") and self.first and difference:
            change += f" ({format_percent(difference / self.first, signed=True)})"
        return show(self.first), show(self.second), change


_SHOW: dict[str, Callable[[float], str]] = {
    "bytes": format_bytes,
    "seconds": format_seconds,
    "fraction": format_percent,
    "count": lambda value: f"{value:.0f}",
}


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
        """Whether nothing differs."""
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
                    "title": p.title,
                    "headings": list(p.headings),
                    "rows": [list(r) for r in p.rows],
                }
                for p in self.parts
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
        names: How to call the two.

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


def _two_names(first: str, second: str) -> tuple[str, str]:
    return (first, second) if first != second else (f"{first} (A)", f"{second} (B)")


def _diff_plans(
    first: Plan, second: Plan, step: StepGraph | None, names: tuple[str, str] | None
) -> Diff:
    for plan in (first, second):
        if step is not None and plan.fingerprint != step.fingerprint:
            raise PlanMismatchError(plan.fingerprint, step.fingerprint)
    again = Change(
        "ops recomputed", len(first.recomputed), len(second.recomputed), "count"
    )
    walks = None
    if step is not None:
        walks = walk(step, first.schedule), walk(step, second.schedule)
        runs = walks[0].num_extra_runs, walks[1].num_extra_runs
        again = Change("extra runs", *runs, "count")
    changes = [
        Change("budget", first.budget_bytes, second.budget_bytes, "bytes"),
        Change("peak", first.peak_bytes, second.peak_bytes, "bytes"),
        Change("time", first.seconds, second.seconds, "seconds"),
        Change("overhead", first.overhead, second.overhead, "fraction"),
        Change("gap", first.proof.gap, second.proof.gap, "fraction"),
        Change("storages kept", len(first.kept), len(second.kept), "count"),
        again,
    ]
    if first.fingerprint != second.fingerprint:
        changes.insert(
            0,
            Change(
                "baseline peak",
                first.baseline_peak_bytes,
                second.baseline_peak_bytes,
                "bytes",
            ),
        )
    labels = names or _two_names(first.planner, second.planner)
    parts = (
        _name_parts(first, second, labels)
        if walks is None
        else _plan_parts(*walks, labels)
    )
    return Diff(first, second, labels, tuple(changes), tuple(parts), (step, step))


def _plan_parts(first: Walk, second: Walk, names: tuple[str, str]) -> Iterable[Part]:
    step = first.step
    kept = [set(crossing(step, w.ops)) for w in (first, second)]
    for name, only in ((names[0], kept[0] - kept[1]), (names[1], kept[1] - kept[0])):
        rows = [
            (step.ops[step.producers[s][0]].module, 1, float(step.sizes[s]))
            for s in sorted(only)
        ]
        headings = ("module", "storages", "bytes")
        yield from _grouped(f"Kept only by {name}", headings, rows, format_bytes)
    extra = [extra_runs(w, lambda op: op.id) for w in (first, second)]
    for name, own, other in ((names[0], *extra), (names[1], *reversed(extra))):
        rows = [
            (step.ops[i].module, own[i].num_runs, own[i].seconds)
            for i in sorted(own)
            if i not in other
        ]
        headings = ("module", "runs", "time")
        title = f"Recomputed only by {name}"
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
    totals = [
        (
            collapse(module for module, _, _ in group) or "(no module)",
            sum(count for _, count, _ in group),
            sum(amount for _, _, amount in group),
        )
        for group in groups.values()
    ]
    totals.sort(key=lambda row: -row[2])
    if totals:
        cells = tuple((name, str(n), show(amount)) for name, n, amount in totals)
        yield Part(title, headings, cells)


def _diff_steps(
    first: StepGraph, second: StepGraph, names: tuple[str, str] | None
) -> Diff:
    one, two = _by_pattern(first), _by_pattern(second)
    saved = (
        {name: float(share.kept_bytes) for name, share in one.items()},
        {name: float(share.kept_bytes) for name, share in two.items()},
    )
    times = (
        {name: share.seconds for name, share in one.items()},
        {name: share.seconds for name, share in two.items()},
    )
    peaks = (first.baseline_peak_bytes, second.baseline_peak_bytes)
    kept = (sum(saved[0].values()), sum(saved[1].values()))
    changes = (
        Change("ops", len(first.baseline), len(second.baseline), "count"),
        Change("baseline peak", *peaks, "bytes"),
        Change("resident", first.resident_bytes, second.resident_bytes, "bytes"),
        Change("kept for the backward", *kept, "bytes"),
        Change("time", first.baseline_seconds, second.baseline_seconds, "seconds"),
    )
    labels = names or _two_names(first.name, second.name)
    parts = (
        *_module_part("Kept for the backward", *saved, format_bytes, labels),
        *_module_part("Time by module", *times, format_seconds, labels),
    )
    return Diff(first, second, labels, changes, parts, (first, second))


def _by_pattern(step: StepGraph) -> dict[str, Share]:
    found = shares_by(step, lambda op: pattern_of(op.module))
    return {share.name: share for share in found}


def _module_part(
    title: str,
    one: dict[str, float],
    two: dict[str, float],
    show: Callable[[float], str],
    names: tuple[str, str],
) -> Iterable[Part]:
    changed = [m for m in {*one, *two} if one.get(m, 0.0) != two.get(m, 0.0)]
    changed.sort(key=lambda m: (-abs(two.get(m, 0.0) - one.get(m, 0.0)), m))
    if changed:
        rows = tuple(
            (
                m or "(no module)",
                show(one.get(m, 0.0)),
                show(two.get(m, 0.0)),
                _signed(two.get(m, 0.0) - one.get(m, 0.0), show),
            )
            for m in changed
        )
        yield Part(title, ("module", *names, "change"), rows)


def _signed(value: float, show: Callable[[float], str]) -> str:
    return ("+" if value > 0 else "") + show(value)

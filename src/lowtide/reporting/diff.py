"""What changed between two plans, or between two steps.

Plans of one step are compared storage by storage and op by op. Steps are compared by
module: what each keeps for the backward, and what its ops cost.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

from lowtide.errors import InvalidArgumentError
from lowtide.step.format import format_bytes, format_percent, format_seconds
from lowtide.step.graph import StepGraph
from lowtide.step.names import collapse, pattern_of
from lowtide.step.plan import Plan
from lowtide.step.schedule import check_match, saved_by_baseline

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
        lines = _table(
            ("", *self.names, "change"), [(c.name, *c.texts) for c in self.changes]
        )
        for part in self.parts:
            lines += ["", part.title, *_table(part.headings, part.rows[:ROWS])]
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
            "changes": [
                {
                    "name": c.name,
                    "first": c.first,
                    "second": c.second,
                    "unit": c.unit,
                }
                for c in self.changes
            ],
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
        if step is not None:
            check_match(step, plan)
    changes = [
        Change("budget", first.budget_bytes, second.budget_bytes, "bytes"),
        Change("peak", first.peak_bytes, second.peak_bytes, "bytes"),
        Change("time", first.seconds, second.seconds, "seconds"),
        Change("overhead", first.overhead, second.overhead, "fraction"),
        Change("gap", first.proof.gap, second.proof.gap, "fraction"),
        Change("storages kept", len(first.kept), len(second.kept), "count"),
        Change(
            "ops recomputed", len(first.recomputed), len(second.recomputed), "count"
        ),
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
        _plan_parts(first, second, step, labels)
        if first.fingerprint == second.fingerprint
        else _name_parts(first, second, labels)
    )
    return Diff(first, second, labels, tuple(changes), tuple(parts), (step, step))


def _plan_parts(
    first: Plan, second: Plan, step: StepGraph | None, names: tuple[str, str]
) -> Iterable[Part]:
    if step is None:
        yield from _name_parts(first, second, names)
        return
    for title, ids in (
        (f"Kept only by {names[0]}", set(first.kept) - set(second.kept)),
        (f"Kept only by {names[1]}", set(second.kept) - set(first.kept)),
    ):
        found = {s: step.sizes[s] for s in ids}
        modules = {s: step.ops[step.producers[s][0]].module for s in ids}
        yield from _grouped(title, "storages", found, modules, format_bytes, "bytes")
    for title, ids in (
        (
            f"Recomputed only by {names[0]}",
            set(first.recomputed) - set(second.recomputed),
        ),
        (
            f"Recomputed only by {names[1]}",
            set(second.recomputed) - set(first.recomputed),
        ),
    ):
        times = {i: step.ops[i].seconds for i in ids}
        modules = {i: step.ops[i].module for i in ids}
        yield from _grouped(title, "ops", times, modules, format_seconds, "time")


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
    noun: str,
    amounts: dict[int, Any],
    modules: dict[int, str],
    show: Callable[[float], str],
    heading: str,
) -> Iterable[Part]:
    """One row for each pattern of modules, the largest amount first."""
    groups: dict[str, list[int]] = defaultdict(list)
    for number in sorted(amounts):
        groups[pattern_of(modules[number])].append(number)
    if not groups:
        return
    ranked = sorted(groups.values(), key=lambda ids: -sum(amounts[i] for i in ids))
    rows = tuple(
        (
            collapse(modules[i] for i in ids) or "(no module)",
            str(len(ids)),
            show(sum(amounts[i] for i in ids)),
        )
        for ids in ranked
    )
    yield Part(title, ("module", noun, heading), rows)


def _diff_steps(
    first: StepGraph, second: StepGraph, names: tuple[str, str] | None
) -> Diff:
    saved = [sum(s.sizes[i] for i in saved_by_baseline(s)) for s in (first, second)]
    changes = (
        Change("ops", len(first.baseline), len(second.baseline), "count"),
        Change(
            "baseline peak",
            first.baseline_peak_bytes,
            second.baseline_peak_bytes,
            "bytes",
        ),
        Change("resident", first.resident_bytes, second.resident_bytes, "bytes"),
        Change("kept for the backward", saved[0], saved[1], "bytes"),
        Change("time", first.baseline_seconds, second.baseline_seconds, "seconds"),
    )
    labels = names or _two_names(first.name, second.name)
    parts = [
        *_module_part(
            "Kept for the backward", first, second, _saved, format_bytes, labels
        ),
        *_module_part(
            "Time by module", first, second, _seconds, format_seconds, labels
        ),
    ]
    return Diff(first, second, labels, changes, tuple(parts), (first, second))


def _saved(step: StepGraph) -> dict[str, float]:
    found: dict[str, float] = defaultdict(float)
    for s in saved_by_baseline(step):
        found[pattern_of(step.ops[step.producers[s][0]].module)] += step.sizes[s]
    return found


def _seconds(step: StepGraph) -> dict[str, float]:
    found: dict[str, float] = defaultdict(float)
    for number in step.baseline:
        found[pattern_of(step.ops[number].module)] += step.ops[number].seconds
    return found


def _module_part(
    title: str,
    first: StepGraph,
    second: StepGraph,
    measure: Callable[[StepGraph], dict[str, float]],
    show: Callable[[float], str],
    names: tuple[str, str],
) -> Iterable[Part]:
    one, two = measure(first), measure(second)
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


def _table(headings: Iterable[str], rows: Iterable[Iterable[str]]) -> list[str]:
    """Aligned columns: the first to the left, the others to the right."""
    table = [list(headings), *(list(r) for r in rows)]
    widths = [max(len(r[c]) for r in table) for c in range(len(table[0]))]
    return [
        "  ".join(
            cell.rjust(w) if c else cell.ljust(w)
            for c, (cell, w) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in table
    ]

"""The frontier-stage model: which storages to carry from stage to stage.

Stage t ends with the first run of the baseline's t-th op. Before it, the stage may run
earlier ops again, each at most once and in the order of the step. The unknowns are what
is carried into each stage (`carry`), what is run again (`rerun`), what is freed after
which op (`free`), and the bytes alive after each op (`level`).

Given whole numbers for `carry`, the least `rerun` and the most `free` follow and are
whole as well, so only `carry` has to be declared integral (and `rerun` where several
ops can make the same storage).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from lowtide.step.graph import StepGraph
from lowtide.step.simulate import home_regions


@dataclass(slots=True)
class Rows:
    """A linear model under construction: columns with bounds and costs, sparse rows."""

    lower: list[float] = field(default_factory=list[float])
    upper: list[float] = field(default_factory=list[float])
    cost: list[float] = field(default_factory=list[float])
    integral: list[bool] = field(default_factory=list[bool])
    row_lower: list[float] = field(default_factory=list[float])
    row_upper: list[float] = field(default_factory=list[float])
    starts: list[int] = field(default_factory=lambda: [0])
    index: list[int] = field(default_factory=list[int])
    value: list[float] = field(default_factory=list[float])

    def column(
        self, lower: float, upper: float, *, cost: float = 0.0, integral: bool = False
    ) -> int:
        """Number of a new column."""
        self.lower.append(lower)
        self.upper.append(upper)
        self.cost.append(cost)
        self.integral.append(integral)
        return len(self.lower) - 1

    def row(self, lower: float, upper: float, terms: Mapping[int, float]) -> None:
        """Add lower <= sum of terms <= upper."""
        self.row_lower.append(lower)
        self.row_upper.append(upper)
        self.index.extend(terms.keys())
        self.value.extend(terms.values())
        self.starts.append(len(self.index))


class Frontier:
    """The stages of a step: what may be carried into them and run again in them."""

    def __init__(self, step: StepGraph) -> None:
        self.step = step
        self.held = frozenset(step.outputs).union(step.resident)
        self.stages = step.baseline
        count = len(step.storages)
        self.made = [-1 if s.resident else len(self.stages) for s in step.storages]
        self.need = [-1] * count
        place = {}
        for t, number in enumerate(self.stages):
            place[number] = t
            op = step.ops[number]
            for s in op.writes:
                self.made[s] = min(self.made[s], t)
            for s in op.reads:
                self.need[s] = t
        for op in reversed(step.ops):
            if not op.once:
                latest = max((self.need[s] for s in op.writes), default=-1)
                for s in op.reads:
                    self.need[s] = max(self.need[s], latest)
        regions = home_regions(step)
        self._piece = [
            step.regions[regions[i] - 1 if step.ops[i].opens > 0 else regions[i]].piece
            for i in self.stages
        ]
        again = [op for op in step.ops if not op.once]
        self.makers: list[list[int]] = [[] for _ in range(count)]
        for op in again:
            for s in op.writes:
                self.makers[s].append(op.id)
        self._ready_after = {op.id: self._ready(op.id, place) for op in again}

    def _ready(self, number: int, place: Mapping[int, int]) -> int:
        """The last stage in which this op cannot yet be run again."""
        op = self.step.ops[number]
        own = [place[number]] if number in place else []
        return max([*own, *(self.made[s] for s in (*op.reads, *op.writes))], default=-1)

    def reruns(self, t: int) -> list[int]:
        """Ops that may run again in a stage, in order."""
        return [
            i
            for i in self._ready_after
            if self.can_rerun(i, t)
            and any(self.need[s] >= t for s in self.step.ops[i].writes)
        ]

    def can_rerun(self, i: int, t: int) -> bool:
        """Whether an op that may run twice can run again in a stage."""
        return (
            self._ready_after[i] < t
            and i < self.stages[t]
            and self.step.ops[i].piece == self._piece[t]
        )

    def carried(self, t: int) -> list[int]:
        """Storages whose carrying into a stage is a choice."""
        return [
            s
            for s, made in enumerate(self.made)
            if made < t <= self.need[s] and s not in self.held
        ]

    def num_choices(self) -> int:
        """How many carry and rerun columns the model has, without building it."""
        ends = len(self.stages)
        carry = sum(
            max(0, self.need[s] - made)
            for s, made in enumerate(self.made)
            if s not in self.held
        )
        rerun = 0
        for i, ready in self._ready_after.items():
            latest = max((self.need[s] for s in self.step.ops[i].writes), default=-1)
            rerun += max(0, min(latest, ends - 1) - ready)
        return carry + rerun


class Model:
    """The linear model of all stages, in scaled bytes and seconds.

    With a budget the objective is the seconds of what is run again; without one it is
    the peak.
    """

    def __init__(
        self, frontier: Frontier, unit_bytes: float, budget_bytes: int | None
    ) -> None:
        self.frontier = frontier
        self.step = frontier.step
        self.rows = Rows()
        self.unit_bytes = unit_bytes
        self.size = [b / unit_bytes for b in self.step.sizes]
        self.unit_seconds = self.step.baseline_seconds / 1000 or 1.0
        self.by_time = budget_bytes is not None
        self.carry: list[dict[int, int]] = []
        self.rerun: list[dict[int, int]] = []
        ends = len(frontier.stages)
        for t in range(ends):
            self._columns(t)
        self.carry.append({})
        if budget_bytes is None:
            self.peak = self.rows.column(0.0, float("inf"), cost=1.0)
        else:
            limit = budget_bytes / unit_bytes
            self.peak = self.rows.column(limit, limit)
        for t in range(ends):
            _Stage(self, t).add()

    def _columns(self, t: int) -> None:
        frontier, rows = self.frontier, self.rows
        self.carry.append(
            {s: rows.column(0, 1, integral=True) for s in frontier.carried(t)}
        )
        self.rerun.append({})
        for i in frontier.reruns(t):
            op = self.step.ops[i]
            others = any(len(frontier.makers[s]) > 1 for s in op.writes)
            cost = op.seconds / self.unit_seconds if self.by_time else 0.0
            self.rerun[t][i] = rows.column(0, 1, cost=cost, integral=others)

    def start(self, sequence: Sequence[int]) -> tuple[list[int], list[float]]:
        """Columns and values of `carry` for a sequence of ops (a warm start)."""
        carried = carried_by(self.frontier, sequence)
        index: list[int] = []
        for t, columns in enumerate(self.carry):
            index.extend(columns[s] for s in columns)
            carried[t] &= columns.keys()
        value = [
            float(s in carried[t])
            for t, columns in enumerate(self.carry)
            for s in columns
        ]
        return index, value


class _Stage:
    """Adds the rows of one stage."""

    def __init__(self, model: Model, t: int) -> None:
        self.model, self.t = model, t
        self.frontier, self.rows, self.step = model.frontier, model.rows, model.step
        self.last = self.frontier.stages[t]
        self.order = [*model.rerun[t], self.last]
        self.carry, self.next = model.carry[t], model.carry[t + 1]
        self.runs = model.rerun[t]
        self.makers: dict[int, list[int]] = {}
        self.users: dict[int, list[int]] = {}
        for i in self.order:
            op = self.step.ops[i]
            for s in op.writes:
                if s not in self.frontier.held:
                    self.makers.setdefault(s, []).append(i)
            for s in dict.fromkeys((*op.reads, *op.writes)):
                if s not in self.frontier.held:
                    self.users.setdefault(s, []).append(i)

    def add(self) -> None:
        for i in self.order:
            self._needs(i)
        frees = self._frees()
        self._levels(frees)

    def _source(
        self, s: int, before: int | None = None
    ) -> tuple[dict[int, float], int]:
        """Terms and constant that say whether a storage is there."""
        terms: dict[int, float] = {}
        if s in self.carry:
            terms[self.carry[s]] = 1.0
        constant = 0
        for i in self.makers.get(s, ()):
            if before is not None and i >= before:
                continue
            if i == self.last:
                constant = 1
            else:
                terms[self.runs[i]] = 1.0
        return terms, constant

    def _needs(self, i: int) -> None:
        """What an op reads must be carried or run again before it."""
        for s in self.step.ops[i].reads:
            if s in self.frontier.held:
                continue
            terms, _ = self._source(s, before=i)
            if i == self.last:
                self.rows.row(1.0, float("inf"), terms)
            else:
                self.rows.row(0.0, float("inf"), {**terms, self.runs[i]: -1.0})

    def _frees(self) -> dict[int, list[tuple[int, int]]]:
        """Columns (storage, column) freed after each op, with what allows them."""
        found: dict[int, list[tuple[int, int]]] = {i: [] for i in self.order}
        for s in sorted({*self.users, *self.carry}):
            if s in self.frontier.held:
                continue
            there, constant = self._source(s)
            # Carried or made at most once. To carry what is made again is no use.
            if len(there) + constant > 1:
                self.rows.row(-float("inf"), 1.0 - constant, there)
            kept: dict[int, float] = {c: -1.0 for c in there}
            if s in self.next:
                kept[self.next[s]] = 1.0
            users = self.users.get(s, []) if self.model.size[s] > 0 else []
            for k, i in enumerate(users):
                later = users[k + 1 :]
                if i == self.last or self.last in later:
                    continue
                column = self.rows.column(0, 1)
                kept[column] = 1.0
                found[i].append((s, column))
                self.rows.row(-float("inf"), 0.0, {column: 1.0, self.runs[i]: -1.0})
                for j in later:
                    self.rows.row(-float("inf"), 1.0, {column: 1.0, self.runs[j]: 1.0})
            self.rows.row(-float("inf"), float(constant), kept)
        return found

    def _levels(self, frees: dict[int, list[tuple[int, int]]]) -> None:
        """Bytes alive while and after each op runs."""
        model, rows = self.model, self.rows
        size, made = model.size, self.frontier.made
        fixed = sum(size[s] for s in self.frontier.held if made[s] < self.t)
        terms = {c: size[s] for s, c in self.carry.items() if size[s] > 0}
        if len(self.order) > 1 and len(terms) > 1:
            terms = {self._level(terms): 1.0}
        for i in self.order:
            op = self.step.ops[i]
            # A held storage made again exists twice for the moment.
            copies = sum(
                size[s]
                for s in op.writes
                if s in self.frontier.held and made[s] < self.t
            )
            fresh = sum(size[s] for s in op.writes) - copies
            busy = fresh + copies + op.scratch_bytes / model.unit_bytes
            if i == self.last:
                rows.row(-float("inf"), -fixed - busy, {**terms, model.peak: -1.0})
                return
            run = self.runs[i]
            rows.row(-float("inf"), -fixed, {**terms, run: busy, model.peak: -1.0})
            change = {run: fresh}
            change.update({c: -size[s] for s, c in frees[i]})
            if any(change.values()):
                terms = {self._level({**terms, **change}): 1.0}

    def _level(self, terms: dict[int, float]) -> int:
        column = self.rows.column(-float("inf"), float("inf"))
        self.rows.row(0.0, 0.0, {**terms, column: -1.0})
        return column


def carried_by(frontier: Frontier, sequence: Sequence[int]) -> list[set[int]]:
    """What a sequence of ops carries into each stage, and after the last one."""
    step = frontier.step
    stage = 0
    place: list[int] = []
    for number in sequence:
        place.append(stage)
        if stage < len(frontier.stages) and number == frontier.stages[stage]:
            stage += 1
    carried: list[set[int]] = [set() for _ in range(len(frontier.stages) + 1)]
    born: dict[int, int] = {}
    for number, t in zip(sequence, place, strict=True):
        op = step.ops[number]
        for s in op.reads:
            for u in range(born.get(s, t) + 1, t + 1):
                carried[u].add(s)
            born[s] = t
        for s in op.writes:
            born[s] = t
    return carried


def sequence_of(
    frontier: Frontier,
    carried: Sequence[set[int]],
    runs: Sequence[set[int]] = (),
) -> list[int]:
    """The least sequence of ops that carries this into the stages.

    What is carried but not there is made again, by an op of `runs` if one is named for
    that stage, else by the fastest that can.
    """
    step = frontier.step
    sequence: list[int] = []
    for t, number in enumerate(frontier.stages):
        op = step.ops[number]
        ready = {s for s in carried[t] if frontier.made[s] < t}
        preferred = runs[t] if runs else set[int]()
        stack = [*op.reads, *(carried[t + 1].difference(op.writes))]
        cone: set[int] = set()
        seen: set[int] = set()
        while stack:
            s = stack.pop()
            if s in ready or s in seen or s in frontier.held:
                continue
            seen.add(s)
            makers = [i for i in frontier.makers[s] if frontier.can_rerun(i, t)]
            if not makers:
                # It cannot be made here, so it was carried after all.
                continue
            again = min(
                makers, key=lambda i: (i not in preferred, step.ops[i].seconds, i)
            )
            cone.add(again)
            stack.extend(step.ops[again].reads)
        sequence.extend(sorted(cone))
        sequence.append(number)
    return sequence

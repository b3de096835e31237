"""The linear model of the stages: which storages to carry from stage to stage.

The unknowns are what is carried into each stage (`carry`), what is run again (`rerun`),
what is freed after which op (`free`), and the bytes alive after each op (`level`).

Given whole numbers for `carry`, the least `rerun` and the most `free` follow and are
whole as well, so only `carry` has to be declared integral (and `rerun` where several
ops can make the same storage).
"""

from __future__ import annotations

from collections.abc import Sequence

from lowtide.planners._checkmate.stages import Stages, carried_by
from lowtide.planners._linear import Program, Start


class Model:
    """The linear model of all stages, in scaled bytes and seconds.

    With a budget the objective is the seconds of what is run again; without one it is
    the peak.
    """

    def __init__(
        self, stages: Stages, unit_bytes: float, budget_bytes: int | None
    ) -> None:
        self.stages = stages
        self.step = stages.step
        self.program = Program()
        self.unit_bytes = unit_bytes
        self.size = [b / unit_bytes for b in self.step.sizes]
        self.unit_seconds = self.step.baseline_seconds / 1000 or 1.0
        self.by_time = budget_bytes is not None
        self.carry: list[dict[int, int]] = []
        self.rerun: list[dict[int, int]] = []
        ends = len(stages.ends)
        for t in range(ends):
            self._columns(t)
        self.carry.append({})
        if budget_bytes is None:
            self.peak = self.program.column(0.0, float("inf"), cost=1.0)
        else:
            limit = budget_bytes / unit_bytes
            self.peak = self.program.column(limit, limit)
        for t in range(ends):
            _Stage(self, t).add()

    def _columns(self, t: int) -> None:
        stages, program = self.stages, self.program
        self.carry.append(
            {s: program.column(0, 1, integral=True) for s in stages.carried(t)}
        )
        self.rerun.append({})
        for i in stages.reruns(t):
            op = self.step.ops[i]
            others = any(len(stages.makers[s]) > 1 for s in op.writes)
            cost = op.seconds / self.unit_seconds if self.by_time else 0.0
            self.rerun[t][i] = program.column(0, 1, cost=cost, integral=others)

    def start(self, sequence: Sequence[int]) -> Start:
        """The values of `carry` for a sequence of ops."""
        carried = carried_by(self.stages, sequence)
        index: list[int] = []
        for t, columns in enumerate(self.carry):
            index.extend(columns[s] for s in columns)
            carried[t] &= columns.keys()
        value = [
            float(s in carried[t])
            for t, columns in enumerate(self.carry)
            for s in columns
        ]
        return Start(index, value)


class _Stage:
    """Adds the rows of one stage."""

    def __init__(self, model: Model, t: int) -> None:
        self.model, self.t = model, t
        self.stages, self.program, self.step = model.stages, model.program, model.step
        self.last = self.stages.ends[t]
        self.order = [*model.rerun[t], self.last]
        self.carry, self.next = model.carry[t], model.carry[t + 1]
        self.runs = model.rerun[t]
        self.makers: dict[int, list[int]] = {}
        self.users: dict[int, list[int]] = {}
        for i in self.order:
            op = self.step.ops[i]
            for s in op.writes:
                if s not in self.stages.held:
                    self.makers.setdefault(s, []).append(i)
            for s in dict.fromkeys((*op.reads, *op.writes)):
                if s not in self.stages.held:
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
            if s in self.stages.held:
                continue
            terms, _ = self._source(s, before=i)
            if i == self.last:
                self.program.row(1.0, float("inf"), terms)
            else:
                self.program.row(0.0, float("inf"), {**terms, self.runs[i]: -1.0})

    def _frees(self) -> dict[int, list[tuple[int, int]]]:
        """Columns (storage, column) freed after each op, with what allows them."""
        found: dict[int, list[tuple[int, int]]] = {i: [] for i in self.order}
        for s in sorted({*self.users, *self.carry}):
            if s in self.stages.held:
                continue
            there, constant = self._source(s)
            # Carried or made at most once. To carry what is made again is no use.
            if len(there) + constant > 1:
                self.program.row(-float("inf"), 1.0 - constant, there)
            kept: dict[int, float] = {c: -1.0 for c in there}
            if s in self.next:
                kept[self.next[s]] = 1.0
            users = self.users.get(s, []) if self.model.size[s] > 0 else []
            for k, i in enumerate(users):
                later = users[k + 1 :]
                if i == self.last or self.last in later:
                    continue
                column = self.program.column(0, 1)
                kept[column] = 1.0
                found[i].append((s, column))
                self.program.row(-float("inf"), 0.0, {column: 1.0, self.runs[i]: -1.0})
                for j in later:
                    self.program.row(
                        -float("inf"), 1.0, {column: 1.0, self.runs[j]: 1.0}
                    )
            self.program.row(-float("inf"), float(constant), kept)
        return found

    def _levels(self, frees: dict[int, list[tuple[int, int]]]) -> None:
        """Bytes alive while and after each op runs."""
        model, program = self.model, self.program
        size, made = model.size, self.stages.made
        fixed = sum(size[s] for s in self.stages.held if made[s] < self.t)
        terms = {c: size[s] for s, c in self.carry.items() if size[s] > 0}
        if len(self.order) > 1 and len(terms) > 1:
            terms = {self._level(terms): 1.0}
        for i in self.order:
            op = self.step.ops[i]
            # A held storage made again exists twice for the moment.
            copies = sum(
                size[s] for s in op.writes if s in self.stages.held and made[s] < self.t
            )
            fresh = sum(size[s] for s in op.writes) - copies
            busy = fresh + copies + op.scratch_bytes / model.unit_bytes
            if i == self.last:
                program.row(-float("inf"), -fixed - busy, {**terms, model.peak: -1.0})
                return
            run = self.runs[i]
            program.row(-float("inf"), -fixed, {**terms, run: busy, model.peak: -1.0})
            change = {run: fresh}
            change.update({c: -size[s] for s, c in frees[i]})
            if any(change.values()):
                terms = {self._level({**terms, **change}): 1.0}

    def _level(self, terms: dict[int, float]) -> int:
        column = self.program.column(-float("inf"), float("inf"))
        self.program.row(0.0, 0.0, {**terms, column: -1.0})
        return column

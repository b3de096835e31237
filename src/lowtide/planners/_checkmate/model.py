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
from lowtide.planners._linear import Program

_INFINITE = float("inf")


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
        self.carry: list[dict[int, int]] = []
        self.rerun: list[dict[int, int]] = []
        column = self.program.column
        for t in range(len(stages.ends)):
            self.carry.append(
                {s: column(0, 1, integral=True) for s in stages.carried(t)}
            )
            self.rerun.append({})
            for i in stages.reruns(t):
                op = self.step.ops[i]
                several = any(len(stages.makers[s]) > 1 for s in op.writes)
                cost = 0.0 if budget_bytes is None else op.seconds / self.unit_seconds
                self.rerun[t][i] = column(0, 1, cost=cost, integral=several)
        self.carry.append({})
        if budget_bytes is None:
            self.peak = column(0.0, _INFINITE, cost=1.0)
        else:
            self.peak = column(budget_bytes / unit_bytes, budget_bytes / unit_bytes)
        for t in range(len(stages.ends)):
            stage = _Stage(self, t)
            stage.add_needs()
            stage.add_levels(stage.add_frees())

    def start(self, sequence: Sequence[int]) -> dict[int, float]:
        """The values of `carry` for a sequence of ops."""
        stages = zip(self.carry, carried_by(self.stages, sequence), strict=True)
        return {
            column: float(s in carried)
            for columns, carried in stages
            for s, column in columns.items()
        }


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
            for s in set(op.writes) - self.stages.held:
                self.makers.setdefault(s, []).append(i)
            for s in set(op.reads).union(op.writes) - self.stages.held:
                self.users.setdefault(s, []).append(i)

    def _source(self, s: int, before: float = _INFINITE) -> dict[int, float]:
        """The terms that say whether a storage is carried or made again."""
        columns = [self.carry[s]] if s in self.carry else []
        makers = (i for i in self.makers.get(s, ()) if i < before and i != self.last)
        columns += (self.runs[i] for i in makers)
        return dict.fromkeys(columns, 1.0)

    def add_needs(self) -> None:
        """What an op reads must be carried or run again before it."""
        for i in self.order:
            for s in self.step.ops[i].reads:
                if s in self.stages.held:
                    continue
                terms = self._source(s, before=i)
                if i == self.last:
                    self.program.row(1.0, _INFINITE, terms)
                else:
                    self.program.row(0.0, _INFINITE, {**terms, self.runs[i]: -1.0})

    def add_frees(self) -> dict[int, list[tuple[int, int]]]:
        """Columns (storage, column) freed after each op, with what allows them."""
        found: dict[int, list[tuple[int, int]]] = {i: [] for i in self.order}
        for s in sorted({*self.users, *self.carry}):
            there = self._source(s)
            constant = int(self.last in self.makers.get(s, ()))
            # Carried or made at most once. To carry what is made again is no use.
            if len(there) + constant > 1:
                self.program.row(-_INFINITE, 1.0 - constant, there)
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
                self.program.row(-_INFINITE, 0.0, {column: 1.0, self.runs[i]: -1.0})
                for j in later:
                    self.program.row(-_INFINITE, 1.0, {column: 1.0, self.runs[j]: 1.0})
            self.program.row(-_INFINITE, float(constant), kept)
        return found

    def add_levels(self, frees: dict[int, list[tuple[int, int]]]) -> None:
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
            busy = fresh + copies + self.step.passing_bytes[i] / model.unit_bytes
            if i == self.last:
                program.row(-_INFINITE, -fixed - busy, {**terms, model.peak: -1.0})
                return
            run = self.runs[i]
            program.row(-_INFINITE, -fixed, {**terms, run: busy, model.peak: -1.0})
            change = {run: fresh}
            change.update({c: -size[s] for s, c in frees[i]})
            if any(change.values()):
                terms = {self._level({**terms, **change}): 1.0}

    def _level(self, terms: dict[int, float]) -> int:
        column = self.program.column(-_INFINITE, _INFINITE)
        self.program.row(0.0, 0.0, {**terms, column: -1.0})
        return column

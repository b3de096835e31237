"""A schedule walked once: what runs when, what is alive when, and of which kind.

The simulator alone defines peak, time and live bytes, and says whether a schedule is
valid. The walk adds what people ask next: where each op starts, which runs repeat
another, how the live bytes divide by kind, and from which run to which run each storage
lives. Tables, charts, exports, explanations and comparisons all read it, so that they
cannot disagree.

There is one sample for each run of an op. Frees come between runs and only lower the
curve, so the peak is always the sample of a run.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

from lowtide.step.graph import KINDS, Phase, StepGraph
from lowtide.step.plan import Item, Run, Schedule
from lowtide.step.simulate import Timeline, simulate


@dataclass(frozen=True, slots=True)
class OpRun:
    """One run of an op. `again` says that it is extra: the op ran before, or it is a
    standby op, which never runs in the baseline."""

    op: int
    again: bool
    begin_seconds: float
    end_seconds: float
    live_bytes: int
    before_bytes: int
    after_bytes: int


@dataclass(frozen=True, slots=True)
class Stretch:
    """A storage is alive from the start of run `first` to the end of run `last`.

    `again` says that it was alive before, freed, and made again.
    """

    first: int
    last: int
    again: bool


@dataclass(frozen=True, slots=True)
class Band:
    """The runs `first` to `end - 1`, in which the step is in one phase."""

    phase: Phase
    first: int
    end: int


@dataclass(frozen=True)
class Walk:
    """A valid schedule, and what happens when it runs.

    Attributes:
        step: The step it is of.
        schedule: The schedule itself.
        peak_bytes: The simulator's peak.
        peak_run: The first run that reaches it; 0 if nothing runs.
        seconds: The simulator's time.
        runs: Every run, in order.
        by_kind: Bytes alive during each run by kind; they sum to its `live_bytes`.
            Activations that were freed before and made again are "recomputed", scratch
            is "temporary".
        by_kind_after: The same after each run and the frees that follow it.
        stretches: For each storage that is made, when it is alive.
        bands: Forward, backward and optimizer, as stretches of runs.
        activation_peak_bytes: The most bytes alive at once of what the step both makes
            and frees. Residents, the step's outputs and scratch do not count: scratch
            is inside a kernel, where the ledger of a real run does not see it, and
            publications leave it out as well, so this is the number to compare with.
    """

    step: StepGraph
    schedule: Schedule
    peak_bytes: int
    peak_run: int
    seconds: float
    runs: tuple[OpRun, ...]
    by_kind: Mapping[str, tuple[int, ...]]
    by_kind_after: Mapping[str, tuple[int, ...]]
    stretches: Mapping[int, tuple[Stretch, ...]]
    bands: tuple[Band, ...]
    activation_peak_bytes: int

    @property
    def ops(self) -> tuple[int, ...]:
        return tuple(run.op for run in self.runs)

    @property
    def live_bytes(self) -> tuple[int, ...]:
        return tuple(run.live_bytes for run in self.runs)

    @property
    def num_extra_runs(self) -> int:
        """How many runs the baseline does not have."""
        return sum(run.again for run in self.runs)

    def alive_at(self, run: int) -> dict[int, bool]:
        """The storages alive during a run, and whether each was made again.

        One that the run writes its result over is counted as the result.
        """
        found = dict.fromkeys(self.step.resident, False)
        over = self.step.ops[self.runs[run].op].over if self.runs else -1
        for storage, stretches in self.stretches.items():
            for stretch in stretches:
                last = stretch.last - (storage == over)
                if stretch.first <= run <= last:
                    found[storage] = stretch.again
        return found

    def starts(self) -> list[float]:
        """When each run starts, in seconds, and when the last one ends."""
        return [*(run.begin_seconds for run in self.runs), self.seconds]


def walk(step: StepGraph, schedule: Sequence[Item]) -> Walk:
    """Walk a schedule; raises `InvalidScheduleError` as the simulator does."""
    timeline = simulate(step, schedule)
    tally = _Tally(step)
    for item, live_bytes in zip(schedule, timeline.live_bytes, strict=True):
        if isinstance(item, Run):
            tally.run(item.op, live_bytes)
        else:
            tally.free(item.storage)
    return tally.finish(tuple(schedule), timeline)


class _Tally:
    """What is alive so far, by kind, and since when."""

    def __init__(self, step: StepGraph) -> None:
        self.step = step
        self.lasting = frozenset(step.outputs).union(step.resident)
        self.now: dict[str, int] = dict.fromkeys((*KINDS, "recomputed"), 0)
        # Before each run and during it, `now`.
        self.before: list[dict[str, int]] = []
        self.during: list[dict[str, int]] = []
        self.label: dict[int, str] = {}  # of what is alive
        self.since: dict[int, int] = {}
        self.stretches: dict[int, list[Stretch]] = {}
        self.runs: list[tuple[int, bool, float, float, int]] = []
        self.ran: set[int] = set()
        self.seconds = 0.0
        self.activations = 0
        self.activation_peak = 0
        for s in step.resident:
            self.label[s] = step.storages[s].kind
            self.now[self.label[s]] += step.sizes[s]

    def run(self, number: int, live_bytes: int) -> None:
        step, op = self.step, self.step.ops[number]
        self.before.append(dict(self.now))
        copies = 0
        activation_copies = 0
        for s in op.writes:
            size = step.sizes[s]
            if s in self.label:
                # Made again while the old copy is held: both exist for a moment.
                copies += size
                activation_copies += size if s not in self.lasting else 0
                continue
            kind = step.storages[s].kind
            again = s in self.stretches and kind == "activation"
            self.label[s] = "recomputed" if again else kind
            self.now[self.label[s]] += size
            self.since[s] = len(self.runs)
            self.activations += size if s not in self.lasting else 0
        passing = op.scratch_bytes + copies
        # What the result was written over counts as the result.
        written_over = sum(self.now.values()) + passing - live_bytes
        self.activation_peak = max(
            self.activation_peak, self.activations + activation_copies - written_over
        )
        temporary = self.now["temporary"] + passing
        self.during.append({**self.now, "temporary": temporary})
        if written_over:
            self.during[-1][self.label[op.over]] -= written_over
        begin, self.seconds = self.seconds, self.seconds + op.seconds
        again = number in self.ran or op.standby
        self.ran.add(number)
        self.runs.append((number, again, begin, self.seconds, live_bytes))

    def free(self, storage: int) -> None:
        size = self.step.sizes[storage]
        self.now[self.label.pop(storage)] -= size
        self.activations -= size
        self._close_stretch(storage)

    def _close_stretch(self, storage: int) -> None:
        known = self.stretches.setdefault(storage, [])
        last = len(self.runs) - 1
        known.append(Stretch(self.since.pop(storage), last, bool(known)))

    def finish(self, schedule: Schedule, timeline: Timeline) -> Walk:
        for s in list(self.since):
            self._close_stretch(s)
        until_peak = schedule[: timeline.peak_index]
        # What a run leaves, and the frees after it, is what the next one finds.
        after = [*self.before[1:], self.now] if self.runs else []
        bytes_before = [sum(kinds.values()) for kinds in (*self.before, self.now)]
        return Walk(
            step=self.step,
            schedule=schedule,
            peak_bytes=timeline.peak_bytes,
            peak_run=sum(isinstance(item, Run) for item in until_peak),
            seconds=timeline.seconds,
            runs=tuple(
                OpRun(*row, before_bytes=before, after_bytes=left)
                for row, (before, left) in zip(
                    self.runs, pairwise(bytes_before), strict=True
                )
            ),
            by_kind={k: tuple(row[k] for row in self.during) for k in self.now},
            by_kind_after={k: tuple(row[k] for row in after) for k in self.now},
            stretches={s: tuple(found) for s, found in self.stretches.items()},
            bands=_bands(self.step, [row[0] for row in self.runs]),
            activation_peak_bytes=self.activation_peak,
        )


def _bands(step: StepGraph, ops: Sequence[int]) -> tuple[Band, ...]:
    found: list[Band] = []
    phase, since = step.regions[0].phase, 0
    for run, number in enumerate(ops):
        op = step.ops[number]
        opened = step.regions[op.opens].phase if op.opens >= 0 else phase
        if opened != phase:
            found.append(Band(phase, since, run))
            phase, since = opened, run
    found.append(Band(phase, since, len(ops)))
    return tuple(band for band in found if band.end > band.first)

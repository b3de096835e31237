"""A schedule walked once for the report: what runs when, and what lives how long.

Live bytes come from the simulator, which alone defines them. This adds what a picture
needs: where each op starts, where forward and backward lie, and from which run to which
run each storage lives.

The picture has one sample for each run of an op. Frees come between runs and only
lower the curve, so no peak lies outside the samples.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

from lowtide.step.graph import StepGraph
from lowtide.step.plan import Item, Run
from lowtide.step.simulate import Timeline, live_by_kind, simulate


@dataclass(frozen=True, slots=True)
class Bar:
    """A storage alive from the start of run `first` to the end of run `last`."""

    first: int
    last: int
    again: bool


@dataclass(frozen=True)
class Walk:
    """A valid schedule with all that the report draws from it."""

    step: StepGraph
    items: tuple[Item, ...]

    @cached_property
    def positions(self) -> list[int]:
        """Positions of the runs among the items."""
        return [i for i, item in enumerate(self.items) if type(item) is Run]

    @cached_property
    def ops(self) -> list[int]:
        """The op of each run."""
        return [self.items[i].op for i in self.positions]  # type: ignore[union-attr]

    @cached_property
    def live_bytes(self) -> list[int]:
        """Bytes alive while each run happens."""
        live = self._timeline.live_bytes
        return [live[i] for i in self.positions]

    @cached_property
    def _timeline(self) -> Timeline:
        return simulate(self.step, self.items)

    @property
    def peak_bytes(self) -> int:
        """The simulator's peak."""
        return self._timeline.peak_bytes

    @property
    def seconds(self) -> float:
        """The simulator's time."""
        return self._timeline.seconds

    @cached_property
    def peak_run(self) -> int:
        """The first run at which the peak is reached."""
        live = self.live_bytes
        return live.index(max(live)) if live else 0

    @cached_property
    def by_kind(self) -> dict[str, list[int]]:
        """Bytes alive at each run, by kind; the columns sum to `live_bytes`."""
        columns = live_by_kind(self.step, self.items)
        return {k: [v[i] for i in self.positions] for k, v in columns.items()}

    @cached_property
    def starts(self) -> list[float]:
        """When each run starts, in seconds from the start of the step."""
        now, found = 0.0, [0.0] * len(self.ops)
        for run, op in enumerate(self.ops):
            found[run] = now
            now += self.step.ops[op].seconds
        return found

    @cached_property
    def again(self) -> list[bool]:
        """Whether each run repeats what has run before."""
        seen: set[int] = set()
        found: list[bool] = []
        for op in self.ops:
            found.append(op in seen or self.step.ops[op].standby)
            seen.add(op)
        return found

    @cached_property
    def counts(self) -> list[int]:
        """How often each op runs."""
        counts = [0] * len(self.step.ops)
        for op in self.ops:
            counts[op] += 1
        return counts

    @cached_property
    def bands(self) -> list[tuple[str, int, int]]:
        """Stretches of runs of one phase: phase, first run, one past the last run."""
        found: list[tuple[str, int, int]] = []
        phase, since = str(self.step.regions[0].phase), 0
        for run, number in enumerate(self.ops):
            op = self.step.ops[number]
            if op.opens >= 0:
                opened = str(self.step.regions[op.opens].phase)
                if opened != phase:
                    found.append((phase, since, run))
                    phase, since = opened, run
        found.append((phase, since, len(self.ops)))
        return [band for band in found if band[2] > band[1]]

    @cached_property
    def bars(self) -> dict[int, list[Bar]]:
        """For each storage that is made, the stretches in which it lives."""
        since: dict[int, int] = {}
        found: dict[int, list[Bar]] = {}
        run = -1

        def close(storage: int) -> None:
            bars = found.setdefault(storage, [])
            bars.append(Bar(since.pop(storage), max(run, 0), bool(bars)))

        for item in self.items:
            if type(item) is Run:
                run += 1
                for s in self.step.ops[item.op].writes:
                    since.setdefault(s, run)
            else:
                close(item.storage)  # type: ignore[union-attr]
        resident = frozenset(self.step.resident)
        for s in list(since):
            if s not in resident:
                close(s)
        return found

    @cached_property
    def within_step_bytes(self) -> int:
        """The peak of what is both made and freed within the step.

        Residents and the step's outputs are left out; the literature calls this the
        activation peak.
        """
        lasting = frozenset(self.step.outputs).union(self.step.resident)
        sizes, now, peak = self.step.sizes, 0, 0
        alive: set[int] = set()
        for item in self.items:
            if type(item) is Run:
                op = self.step.ops[item.op]
                moment = op.scratch_bytes
                for s in op.writes:
                    if s in alive:
                        moment += sizes[s]
                    elif s not in lasting:
                        alive.add(s)
                        now += sizes[s]
                peak = max(peak, now + moment)
            elif item.storage in alive:  # type: ignore[union-attr]
                alive.discard(item.storage)  # type: ignore[union-attr]
                now -= sizes[item.storage]  # type: ignore[union-attr]
        return peak

    def alive_at(self, run: int) -> tuple[set[int], int]:
        """Storages alive during a run, and bytes that are only there for its moment."""
        alive = set(self.step.resident)
        extra = 0
        for item in self.items[: self.positions[run] + 1]:
            if type(item) is Run:
                op = self.step.ops[item.op]
                extra = op.scratch_bytes
                for s in op.writes:
                    if s in alive:
                        extra += self.step.sizes[s]
                    alive.add(s)
            else:
                alive.discard(item.storage)  # type: ignore[union-attr]
        return alive, extra


def places_in(walk: Walk, sequence: Sequence[int]) -> list[int]:
    """For each op of another sequence, the run of the walk that stands beside it.

    An op stands at its first run, moved right where that would go back in the order,
    so that two schedules of one step can be drawn over each other.
    """
    first: dict[int, int] = {}
    for run, op in enumerate(walk.ops):
        first.setdefault(op, run)
    found: list[int] = []
    place = 0
    for op in sequence:
        place = max(place, first.get(op, place))
        found.append(place)
    return found

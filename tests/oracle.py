"""Answers to compare with: plain, slow, and sharing no code with the planners.

`random_step` makes training steps of any shape, `least_seconds_within` finds their true
optimum, and `walk` runs a sequence of ops as an allocator would, one by one.
"""

from __future__ import annotations

import heapq
import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from lowtide.step.graph import Op, Region, StepGraph, Storage, check_graph

INFINITE = float("inf")


def random_step(seed: int, num_forward: int) -> StepGraph:
    """A training step with branches, several outputs of an op, standby and once ops."""
    rng = random.Random(f"step {seed} {num_forward}")
    storages = [Storage(0, "x", rng.randrange(4), resident=True)]
    ops: list[Op] = []

    def add(name: str, reads: Sequence[int], sizes: Sequence[int], **more: object):
        made = tuple(range(len(storages), len(storages) + len(sizes)))
        for s, nbytes in zip(made, sizes, strict=True):
            storages.append(Storage(s, f"{name}{s}", nbytes))
        write(name, reads, made, **more)
        return made

    def write(name: str, reads: Sequence[int], made: Sequence[int], **more: object):
        more.setdefault("seconds", float(rng.randint(1, 9)))
        number = len(ops)
        row = (number, f"{name}{number}", name, tuple(dict.fromkeys(reads)), made)
        ops.append(Op(*row, **more))  # type: ignore[arg-type]

    forward: list[tuple[tuple[int, ...], tuple[int, ...]]] = []
    values = [0]
    for _ in range(num_forward):
        # Mostly a chain; sometimes a branch from further back, or a sum of two.
        far = rng.random() < 0.2
        reads = [rng.choice(values) if far else values[-1]]
        if rng.random() < 0.3:
            reads.append(rng.choice(values))
        sizes = [rng.randint(2, 12) for _ in range(rng.choice((1, 1, 1, 2)))]
        once = rng.choice(("", "", "", "", "draws random numbers"))
        scratch = rng.choice((0, 0, 0, 3))
        made = add("f", reads, sizes, once=once, scratch_bytes=scratch)
        if once and rng.random() < 0.7:
            write("again", reads, made, standby=True)
        values.append(made[0])
        forward.append((tuple(reads), made))
    ends = [v for v in values[1:] if not any(v in reads for reads, _ in forward)]
    turn = {"phase": "backward", "piece": -1, "once": "runs outside", "opens": 1}
    gradients = add("turn", ends, [rng.randint(1, 6)] * len(ends), seconds=0.0, **turn)
    gradient_of = dict(zip(ends, gradients, strict=True))
    outputs: list[int] = []
    for reads, made in reversed(forward):
        saved = [s for s in (*reads, *made) if rng.random() < 0.6]
        wanted = [s for s in dict.fromkeys(reads) if s != 0]
        sizes = [storages[s].nbytes for s in wanted] + [rng.randint(1, 3)]
        got = add("b", [gradient_of[made[0]], *saved], sizes, phase="backward")
        outputs.append(got[-1])
        for s, g in zip(wanted, got, strict=False):
            if s in gradient_of:
                (g,) = add("sum", [gradient_of[s], g], [storages[s].nbytes])
            gradient_of[s] = g
    step = StepGraph(
        tuple(ops),
        tuple(storages),
        tuple(outputs),
        regions=(Region(0, "forward"), Region(0, "backward")),
        name=f"oracle{seed}_{num_forward}",
    )
    check_graph(step)
    return step


@dataclass(frozen=True)
class Walked:
    """What an allocator sees: the most bytes at once, and what they are over time."""

    peak_bytes: int
    live_bytes: tuple[int, ...]
    seconds: float
    freed: tuple[frozenset[int], ...]


def walk(step: StepGraph, sequence: Sequence[int]) -> Walked:
    """Run the ops in order; after each, free all that nobody reads before it is remade.

    Looks ahead for every storage anew: O(n^2), and obviously right.
    """
    alive = {s.id for s in step.storages if s.resident}
    stay = alive | set(step.outputs)
    unit = step.alignment_bytes
    size = [(s.nbytes + unit - 1) // unit * unit for s in step.storages]
    live: list[int] = []
    freed: list[frozenset[int]] = []
    seconds = 0.0
    for position, number in enumerate(sequence):
        op = step.ops[number]
        assert set(op.reads) <= alive, f"{op.name} reads what is not alive"
        # Every output gets a block of its own, even if an old copy is still held.
        blocks = sum(size[s] for s in alive) + sum(size[s] for s in set(op.writes))
        live.append(blocks + op.scratch_bytes)
        seconds += op.seconds
        alive |= set(op.writes)
        later = [step.ops[n] for n in sequence[position + 1 :]]
        done = {s for s in alive - stay if not _is_read(s, later)}
        alive -= done
        freed.append(frozenset(done))
    return Walked(max(live, default=0), tuple(live), seconds, tuple(freed))


def _is_read(storage: int, later: Sequence[Op]) -> bool:
    for op in later:
        if storage in op.reads:
            return True
        if storage in op.writes:
            return False
    return False


class TooManyStatesError(Exception):
    """The step is too large for the oracle."""


def least_seconds_within(
    step: StepGraph, budget: int, *, most_states: int = 50_000
) -> float:
    """Time of the fastest schedule within the budget; infinite if there is none.

    Best first over what is alive and how many of the ops that run once have run.
    Storages are freed only if an op would not fit, and then no more of them than that
    takes: to hold on to the others costs nothing. For steps of one piece.
    """
    search = _BestFirst(step, budget)
    start = (0, 0)
    spent = {start: 0.0}
    heap = [(search.still_needed(*start), start)]
    closed: set[tuple[int, int]] = set()
    while heap:
        _, state = heapq.heappop(heap)
        if state in closed:
            continue
        closed.add(state)
        if len(closed) > most_states:
            raise TooManyStatesError(step.name)
        alive, done = state
        if done == len(search.once) and search.outputs & ~alive == 0:
            return spent[state]
        for after, seconds in search.moves(alive, done):
            reached = spent[state] + seconds
            if reached < spent.get(after, INFINITE):
                spent[after] = reached
                heapq.heappush(heap, (reached + search.still_needed(*after), after))
    return INFINITE


class _BestFirst:
    """The states of a step, as bit masks of its storages that are not resident."""

    def __init__(self, step: StepGraph, budget: int) -> None:
        resident = {s.id for s in step.storages if s.resident}
        unit = step.alignment_bytes
        self.size = [-(-s.nbytes // unit) * unit for s in step.storages]
        self.room = budget - sum(self.size[s] for s in resident)
        self.ops = step.ops
        self.reads = [_bits(set(op.reads) - resident) for op in step.ops]
        self.writes = [_bits(set(op.writes) - resident) for op in step.ops]
        self.busy = [
            op.scratch_bytes + sum(self.size[s] for s in set(op.writes))
            for op in step.ops
        ]
        self.outputs = _bits(set(step.outputs) - resident)
        self.once = [op.id for op in step.ops if op.once and not op.standby]
        self.free_to_run = [op.id for op in step.ops if not op.once]
        self._useful: dict[tuple[int, int], int] = {}
        self._needed: dict[tuple[int, int], float] = {}

    def bytes_of(self, mask: int) -> int:
        return sum(self.size[s] for s in _members(mask))

    def moves(self, alive: int, done: int) -> Iterator[tuple[tuple[int, int], float]]:
        useful = self.useful(alive & self.outputs, done)
        for number in [*self.free_to_run, *self.once[done : done + 1]]:
            is_once = bool(self.ops[number].once)
            if self.reads[number] & ~alive:
                continue
            if not is_once and not self.writes[number] & ~alive & useful:
                continue
            for kept in self._making_room(alive, number):
                now = kept | self.writes[number]
                after = done + is_once
                useful_after = self.useful(now & self.outputs, after)
                now &= useful_after | self.outputs
                yield (now, after), self.ops[number].seconds

    def _making_room(self, alive: int, number: int) -> Iterator[int]:
        """What can be held while an op runs: each largest set that leaves room."""
        excess = self.bytes_of(alive) + self.busy[number] - self.room
        if excess <= 0:
            yield alive
            return
        loose = alive & ~self.outputs & ~self.reads[number]
        loose_ids = [s for s in _members(loose) if self.size[s]]
        loose_ids.sort(key=lambda s: -self.size[s])

        def drop(first: int, kept: int, left: int) -> Iterator[int]:
            if left <= 0:
                yield kept
                return
            for k in range(first, len(loose_ids)):
                s = loose_ids[k]
                yield from drop(k + 1, kept & ~(1 << s), left - self.size[s])

        yield from drop(0, alive, excess)

    def useful(self, made_outputs: int, done: int) -> int:
        """Storages that something may still be made of."""
        key = made_outputs, done
        if key not in self._useful:
            able = [*self.free_to_run, *self.once[done:]]
            mask = self.outputs & ~made_outputs
            for number in self.once[done:]:
                mask |= self.reads[number]
            grown = -1
            while grown != mask:
                grown = mask
                for number in able:
                    if self.writes[number] & mask:
                        mask |= self.reads[number]
            self._useful[key] = mask
        return self._useful[key]

    def still_needed(self, alive: int, done: int) -> float:
        """Time to the end if there were no limit: never too much."""
        key = alive, done
        if key not in self._needed:
            coming = set(self.once[done:])
            wanted = self.outputs
            for number in coming:
                wanted |= self.reads[number]
            have = alive
            for number in coming:
                have |= self.writes[number]
            while wanted & ~have:
                s = (wanted & ~have).bit_length() - 1
                have |= 1 << s
                makers = [i for i in self.free_to_run if self.writes[i] >> s & 1]
                # Of several makers, none is certain to run.
                if len(makers) == 1 and makers[0] not in coming:
                    coming.add(makers[0])
                    wanted |= self.reads[makers[0]]
                    have |= self.writes[makers[0]]
            self._needed[key] = sum(self.ops[i].seconds for i in coming)
        return self._needed[key]


def _bits(storages: set[int]) -> int:
    return sum(1 << s for s in storages)


def _members(mask: int) -> Iterator[int]:
    while mask:
        low = mask & -mask
        yield low.bit_length() - 1
        mask ^= low

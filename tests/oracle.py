"""Answers to compare with: plain, slow, and sharing no code with the planners.

`random_step` makes training steps of any shape, `least_seconds_within` finds their true
optimum, `walk` runs a sequence of ops as an allocator would, one by one, and `execute`
carries out a schedule with its frees and says which of its items is impossible.
"""

from __future__ import annotations

import heapq
import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from lowtide.step.graph import Op, Region, StepGraph, Storage, check_graph
from lowtide.step.plan import Free, Item

INFINITE = float("inf")
# How many of the states reached before are compared with a new one.
MOST_ALIKE = 100


def random_step(
    seed: int,
    num_forward: int,
    *,
    breaks: int = 0,
    updates: bool = False,
    overwrites: bool = False,
    forms: bool = False,
) -> StepGraph:
    """A training step with branches, several outputs of an op, standby and once ops.

    Each break ends a captured piece: what is carried over comes back as new storages,
    and only the backward of a piece can make its storages again. With `updates` every
    forward op reads a parameter, and its gradient is used up by an update of that. With
    `overwrites` the backward begins by writing over what the forward ends with. With
    `forms` some ops of the forward have another form, which makes what they make from
    what the op before them is made from.
    """
    rng = random.Random(f"step {seed} {num_forward}" + (f" {breaks}" if breaks else ""))
    storages = [Storage(0, "x", rng.randrange(4), resident=True)]
    parameters = range(1, num_forward + 1) if updates else ()
    storages += [Storage(s, f"p{s}", 1, "parameter", True) for s in parameters]
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

    outside = {"piece": -1, "once": "runs outside", "seconds": 0.0}
    regions = [Region(0, "forward")]
    forward: list[tuple[tuple[int, ...], tuple[int, ...]]] = []
    values = [0]
    broken = set(rng.sample(range(1, num_forward), breaks)) if breaks else set()
    carried: dict[int, tuple[tuple[int, ...], tuple[int, ...]]] = {}
    for k in range(num_forward):
        if k in broken:
            more = [v for v in values[1:-1] if rng.random() < 0.3]
            old = (values[-1], *more)
            regions.append(Region(regions[-1].piece + 1, "forward"))
            sizes = [storages[s].nbytes for s in old]
            new = add("break", old, sizes, opens=len(regions) - 1, **outside)
            carried[k] = (old, new)
            values = [0, *reversed(new)]
        # Mostly a chain; sometimes a branch from further back, or a sum of two.
        far = rng.random() < 0.2
        reads = [rng.choice(values) if far else values[-1]]
        if rng.random() < 0.3:
            reads.append(rng.choice(values))
        sizes = [rng.randint(2, 12) for _ in range(rng.choice((1, 1, 1, 2)))]
        once = rng.choice(("", "", "", "", "draws random numbers"))
        scratch = rng.choice((0, 0, 0, 3))
        here = {"piece": regions[-1].piece}
        if updates:
            reads.append(parameters[k])
        made = add("f", reads, sizes, once=once, scratch_bytes=scratch, **here)
        if once and rng.random() < 0.7:
            write("again", reads, made, standby=True, **here)
        if forms and not once and forward and forward[-1][1][0] in reads:
            before = [s for s in reads if s not in forward[-1][1]]
            slow = {"seconds": ops[-1].seconds + rng.randint(3, 9), "scratch_bytes": 2}
            write("form", [*before, *forward[-1][0]], made, standby=True, **slow)
        values.append(made[0])
        forward.append((tuple(reads), made))
    results = [made[0] for _, made in forward]
    results += [s for _, new in carried.values() for s in new]
    read = {s for reads, _ in forward for s in reads}
    read |= {s for old, _ in carried.values() for s in old}
    ends = [v for v in results if v not in read]
    piece = regions[-1].piece
    regions.append(Region(piece, "backward"))
    turn = {"phase": "backward", "opens": len(regions) - 1, **outside}
    gradients = add("turn", ends, [rng.randint(1, 6)] * len(ends), **turn)
    gradient_of = dict(zip(ends, gradients, strict=True))
    outputs: list[int] = []
    waiting: list[tuple[int, int, int]] = []

    def update_all() -> None:
        for parameter, gradient, piece in waiting:
            row = ((parameter, gradient), ())
            write("update", *row, once="updates", spends=(parameter,), piece=piece)
        waiting.clear()

    def give(source: int, gradient: int) -> None:
        if source in gradient_of:
            both = [gradient_of[source], gradient]
            (gradient,) = add("sum", both, [storages[source].nbytes], piece=piece)
        gradient_of[source] = gradient

    for k in range(num_forward - 1, -1, -1):
        reads, made = forward[k]
        saved = [s for s in (*reads, *made) if rng.random() < 0.6]
        if overwrites and made[0] in ends:
            loss = {"phase": "backward", "piece": piece, "over": made[0]}
            sizes = [storages[made[0]].nbytes]
            row = ("over", (gradient_of[made[0]], made[0]), sizes)
            (gradient_of[made[0]],) = add(*row, scratch_bytes=1, **loss)
            saved = [s for s in saved if s != made[0]]
        wanted = [s for s in dict.fromkeys(reads) if not storages[s].resident]
        sizes = [storages[s].nbytes for s in wanted] + [rng.randint(1, 3)]
        back = {"phase": "backward", "piece": piece}
        got = add("b", [gradient_of[made[0]], *saved], sizes, **back)
        if updates:
            waiting.append((parameters[k], got[-1], piece))
        else:
            outputs.append(got[-1])
        for s, g in zip(wanted, got, strict=False):
            give(s, g)
        if k in carried:
            old, new = carried[k]
            update_all()
            piece -= 1
            regions.append(Region(piece, "backward"))
            leaving = [gradient_of[s] for s in new]
            turn["opens"] = len(regions) - 1
            add("break", leaving, [], **turn)
            for s, g in zip(old, leaving, strict=True):
                give(s, g)
    update_all()
    step = StepGraph(
        tuple(ops),
        tuple(storages),
        tuple(outputs),
        regions=tuple(regions),
        name=f"oracle{seed}_{num_forward}" + (f"_{breaks}" if breaks else ""),
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
        if op.over in done:
            live[-1] -= size[op.over]
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


class ImpossibleError(Exception):
    """This item of a schedule cannot happen; the end counts as one more item."""

    def __init__(self, index: int) -> None:
        super().__init__(f"item {index}")
        self.index = index


def execute(step: StepGraph, schedule: Sequence[Item]) -> tuple[int, float, list[int]]:
    """Peak, time and bytes at each item of a schedule; every rule tested anew.

    Every block of memory is an entry of a list: one for each live storage, one more for
    each output of the op that runs, one for its scratch.
    """
    unit = step.alignment_bytes
    size = [(s.nbytes + unit - 1) // unit * unit for s in step.storages]
    blocks = {s.id for s in step.storages if s.resident}
    stay = blocks | set(step.outputs)
    opened = [0]
    history: list[Op] = []
    live: list[int] = []
    for index, item in enumerate(schedule):
        if isinstance(item, Free):
            if item.storage not in blocks or item.storage in stay:
                raise ImpossibleError(index)
            blocks.remove(item.storage)
            live.append(sum(size[s] for s in blocks))
            continue
        if item.op not in range(len(step.ops)):
            raise ImpossibleError(index)
        op = step.ops[item.op]
        if op.opens >= 0:
            opened.append(op.opens)
        if not _may_happen(step, op, blocks, opened, history):
            raise ImpossibleError(index)
        history.append(op)
        taken = [size[s] for s in blocks] + [size[s] for s in op.writes]
        if Free(op.over) in schedule[index + 1 : index + 2]:
            taken.remove(size[op.over])
        live.append(sum(taken) + op.scratch_bytes)
        blocks.update(op.writes)
    missing = [op for op in step.ops if op.once and op not in history]
    if missing or not blocks.issuperset(step.outputs):
        raise ImpossibleError(len(schedule))
    peak = max(live, default=sum(size[s] for s in blocks))
    return peak, sum(op.seconds for op in history), live


def _may_happen(
    step: StepGraph, op: Op, blocks: set[int], opened: list[int], history: list[Op]
) -> bool:
    """Whether an op may run now; the region that it opens counts as opened."""
    present = opened[-1]
    gone = {s for earlier in history for s in earlier.spends}
    if not blocks.issuperset(op.reads) or gone.intersection(op.reads):
        return False
    if op.opens >= 0:
        if opened != list(range(present + 1)):
            return False
    elif op.piece != step.regions[present].piece:
        return False
    if not op.once:
        return True
    # In its own region, once, and an update apart from the order of the others.
    before = [i for i in range(op.id + 1) if step.ops[i].opens >= 0]
    if len(before) != present or op in history:
        return False
    others = [earlier for earlier in history if earlier.once and not earlier.spends]
    return bool(op.spends) or all(earlier.id < op.id for earlier in others)


class TooManyStatesError(Exception):
    """The step is too large for the oracle."""


def least_seconds_within(
    step: StepGraph, budget: int, *, most_states: int = 500_000
) -> float:
    """Time of the fastest schedule within the budget; infinite if there is none.

    Best first over what is alive, how many of the ops that run once have run, and which
    updates have. Storages are freed only if an op would not fit, and then no more of
    them than that takes: to hold on to the others costs nothing. So a state is passed
    over if one that holds more, and the same outputs, was reached in less time.
    """
    search = _BestFirst(step, budget)
    start: _State = (0, 0, 0)
    spent = {start: 0.0}
    heap = [(search.still_needed(*start), 0.0, start)]
    closed: set[_State] = set()
    better: dict[_State, list[tuple[int, float]]] = {}
    looked_at = 0
    while heap:
        _, _, state = heapq.heappop(heap)
        if state in closed:
            continue
        closed.add(state)
        alive, done, updated = state
        now = spent[state]
        others = better.setdefault((alive & search.outputs, done, updated), [])
        # The last ones are the most alike; to look at all would take longer.
        if any(t <= now and not alive & ~more for more, t in others[-MOST_ALIKE:]):
            continue
        others.append((alive, now))
        if search.is_end(*state):
            return now
        for after, seconds in search.moves(*state):
            looked_at += 1
            if looked_at > most_states:
                raise TooManyStatesError(step.name)
            reached = now + seconds
            if reached < spent.get(after, INFINITE):
                spent[after] = reached
                least = reached + search.still_needed(*after)
                # Of equals, the one that has come furthest.
                heapq.heappush(heap, (least, -reached, after))
    return INFINITE


_State = tuple[int, int, int]


class _BestFirst:
    """The states of a step, as bit masks of its storages and of its updates."""

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
        self.updates = [op.id for op in step.ops if op.spends]
        self.once = [op.id for op in step.ops if op.once and not op.spends]
        self.free_to_run = [op.id for op in step.ops if not op.once]
        # Which updates must not have run yet when an op runs.
        self.barred = [
            _bits(
                {
                    k
                    for k, number in enumerate(self.updates)
                    if set(step.ops[number].spends) & set(op.reads)
                }
            )
            for op in step.ops
        ]
        # Which piece can run after so many of the ops that run once have run, and how
        # many regions have been opened; in which region each op stands.
        self.piece, self.region = [step.regions[0].piece], [0]
        for number in self.once:
            opened = step.ops[number].opens
            is_new = opened >= 0
            self.region.append(self.region[-1] + is_new)
            self.piece.append(step.regions[self.region[-1]].piece)
        self.home = [
            sum(step.ops[i].opens >= 0 for i in range(op.id + 1)) for op in step.ops
        ]
        self._useful: dict[_State, int] = {}
        self._needed: dict[_State, float] = {}

    def is_end(self, alive: int, done: int, updated: int) -> bool:
        """Whether nothing is left to do."""
        all_updated = updated == (1 << len(self.updates)) - 1
        return all_updated and done == len(self.once) and not self.outputs & ~alive

    def bytes_of(self, mask: int) -> int:
        return sum(self.size[s] for s in _members(mask))

    def moves(
        self, alive: int, done: int, updated: int
    ) -> Iterator[tuple[_State, float]]:
        useful = self.useful(alive & self.outputs, done, updated)
        for number in self.free_to_run:
            if self.ops[number].piece != self.piece[done]:
                continue
            if self.writes[number] & ~alive & useful:
                yield from self._after(number, (alive, done, updated), done, updated)
        for number in self.once[done : done + 1]:
            yield from self._after(number, (alive, done, updated), done + 1, updated)
        for k, number in enumerate(self.updates):
            if not updated >> k & 1 and self.home[number] == self.region[done]:
                now = updated | 1 << k
                yield from self._after(number, (alive, done, updated), done, now)

    def _after(
        self, number: int, state: _State, done: int, updated: int
    ) -> Iterator[tuple[_State, float]]:
        alive = state[0]
        if self.reads[number] & ~alive or self.barred[number] & state[2]:
            return
        over = self.ops[number].over
        ways = [*self._making_room(alive, number)]
        if over >= 0:
            gone = 1 << over
            spared = self.size[over]
            ways += [w & ~gone for w in self._making_room(alive, number, spared)]
        for kept in ways:
            now = kept | self.writes[number]
            now &= self.useful(now & self.outputs, done, updated) | self.outputs
            yield (now, done, updated), self.ops[number].seconds

    def _making_room(self, alive: int, number: int, spared: int = 0) -> Iterator[int]:
        """What can be held while an op runs: each largest set that leaves room."""
        excess = self.bytes_of(alive) + self.busy[number] - spared - self.room
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

    def _coming(self, done: int, updated: int) -> list[int]:
        """What has to run in any case."""
        left = [n for k, n in enumerate(self.updates) if not updated >> k & 1]
        return [*self.once[done:], *left]

    def useful(self, made_outputs: int, done: int, updated: int) -> int:
        """Storages that something may still be made of."""
        key = made_outputs, done, updated
        if key not in self._useful:
            coming = self._coming(done, updated)
            able = [*self.free_to_run, *coming]
            mask = self.outputs & ~made_outputs
            for number in coming:
                mask |= self.reads[number]
            grown = -1
            while grown != mask:
                grown = mask
                for number in able:
                    if self.writes[number] & mask:
                        mask |= self.reads[number]
            self._useful[key] = mask
        return self._useful[key]

    def still_needed(self, alive: int, done: int, updated: int) -> float:
        """Time to the end if there were no limit: never too much."""
        key = alive, done, updated
        if key not in self._needed:
            coming = set(self._coming(done, updated))
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

"""Dynamic tensor rematerialization: the online rule, run ahead of time.

Problem: keep a step under a limit without knowing what comes next.

Idea:

1. Run the step op by op. If the next op does not fit, evict storages until it does.
2. Evict the one with the lowest h = seconds / (bytes * staleness): cheap to make again,
   large, and not used for long.
3. Its seconds are its own and those of its evicted neighbourhood, which would have to
   be made again with it or for it. Neighbourhoods are kept as classes in a union-find
   structure: joined when storages are evicted, reduced when they are made again, never
   split (the paper's h_DTR_eq).
4. An op that reads an evicted storage first runs that storage's op, and so on; what is
   held for an op in progress is not evicted.
5. What the step itself has no more use for is evicted at once, but may be made again if
   a recomputation needs it. What cannot be made again is held while anything might.

The sequence of ops that results is the plan; freeing each storage after its last use
can only lower the peak further. Without a budget the least limit at which the rule
succeeds is searched for, by probes from below and then by bisection, to a thousandth of
the baseline's peak. Success need not be monotone in the limit: a plan found there also
answers larger budgets at which the rule itself fails, and a limit that works may lie
between two probes unseen.

Reference: M. Kirisame, S. Lyubomirsky, A. Haan, J. Brennan, M. He, J. Roesch, T. Chen,
Z. Tatlock, Dynamic tensor rematerialization, ICLR 2021 (arXiv 2006.09616).

Complexity: each eviction looks at every storage alive: O(evictions * alive storages). A
run that needs more than five times the baseline's ops or seconds counts as thrashing
and fails.

Loses by not looking ahead: it evicts what is needed next as readily as what is needed
last, and near its floor recomputes the same storages many times.
"""

from __future__ import annotations

from collections import defaultdict

from lowtide.planners._tried import Tried, best_plan
from lowtide.step.graph import StepGraph
from lowtide.step.plan import Plan
from lowtide.step.simulate import pieces_along

_THRASHING = 5  # times the ops or the seconds of the baseline
_PROBES = 16
_FEW_OPS = 500
_TINY = 1e-12


def plan(
    step: StepGraph, budget_bytes: int | None = None, *, time_limit: float = 10.0
) -> Plan:
    """The plan of the rule under this limit, or under the least one that works."""
    facts = _Facts(step)
    # If everything fits, nothing is ever asked for again, so nothing is held in case it
    # might be.
    tried = [Tried.of(step, step.baseline)]
    if budget_bytes is None:
        tried = _narrowed(facts)
    elif step.baseline_peak_bytes > budget_bytes:
        sequence = _Cache(facts, budget_bytes).run()
        tried = [Tried.of(step, sequence)] if sequence else _narrowed(facts)
    return best_plan(step, tried, planner="dtr", budget_bytes=budget_bytes)


def _narrowed(facts: _Facts) -> list[Tried]:
    """Every run that worked while the limit was narrowed down."""
    step = facts.step
    high = step.baseline_peak_bytes
    low = max((facts.least_bytes(i) for i in step.baseline), default=high) - 1
    found = [Tried.of(step, step.baseline)]

    def works(limit: int) -> bool:
        sequence = _Cache(facts, limit).run()
        if sequence is not None:
            found.append(Tried.of(step, sequence))
        return sequence is not None

    # A failure says nothing of lower limits, so look from below before bisecting.
    probes = _PROBES if len(step.baseline) <= _FEW_OPS else _PROBES // 4
    for k in range(1, probes):
        limit = low + (high - low) * k // probes
        if works(limit):
            low, high = low + (high - low) * (k - 1) // probes, found[-1].peak_bytes
            break
    while high - low > max(1, step.baseline_peak_bytes >> 10):
        middle = (low + high) // 2
        if works(middle):
            high = min(middle, found[-1].peak_bytes)
        else:
            low = middle
    return found


class _Facts:
    """What does not change from run to run."""

    def __init__(self, step: StepGraph) -> None:
        self.step = step
        count = len(step.storages)
        self.remaker = step.remakers
        self.seconds = [step.ops[i].seconds if i >= 0 else 0.0 for i in self.remaker]
        self.held = frozenset(step.outputs).union(step.resident)
        # Storages from which each can be made, and those that can be made from it.
        self.parents: list[list[int]] = [[] for _ in range(count)]
        self.children: list[list[int]] = [[] for _ in range(count)]
        for s, number in enumerate(self.remaker):
            if number >= 0:
                for r in step.ops[number].reads:
                    if r not in self.held:
                        self.parents[s].append(r)
                        self.children[r].append(s)
        self.last_use = [-1] * count
        readers: list[set[int]] = [set() for _ in range(count)]
        pieces = pieces_along(step, step.baseline)
        for position, number in enumerate(step.baseline):
            op = step.ops[number]
            for s in (*op.reads, *op.writes):
                self.last_use[s] = position
            for s in op.reads:
                readers[s].add(pieces[position])
        for s, children in enumerate(self.children):
            readers[s].update(step.ops[self.remaker[c]].piece for c in children)
        # Only ops of one piece can run at a time: what another piece reads is held.
        self.evictable = [
            number >= 0
            and s not in self.held
            and step.sizes[s] > 0
            and readers[s] <= {step.ops[number].piece}
            for s, number in enumerate(self.remaker)
        ]
        # The last position at which each is read or something may be made from it.
        self.last_need = need = list(self.last_use)
        for number in sorted(set(self.remaker) - {-1}, reverse=True):
            op = step.ops[number]
            latest = max(need[s] for s in op.writes if self.remaker[s] == number)
            for s in op.reads:
                need[s] = max(need[s], latest)

    def least_bytes(self, number: int) -> int:
        """Bytes there must be for this op alone."""
        op, sizes = self.step.ops[number], self.step.sizes
        own = {s for s in (*op.reads, *op.writes) if not self.step.storages[s].resident}
        passing = self.step.passing_bytes[number]
        return self.step.resident_bytes + sum(sizes[s] for s in own) + passing


class _Cache:
    """One run of the step under a limit."""

    def __init__(self, facts: _Facts, limit: int) -> None:
        self.facts = facts
        self.step = facts.step
        self.limit = limit
        self.classes = _Classes(facts)
        self.alive = {s: None for s in self.step.resident}
        self.used = self.step.resident_bytes
        self.pins = [0] * len(self.step.storages)
        self.accessed = [0.0] * len(self.step.storages)
        self.clock = 0.0
        self.position = 0
        self.sequence: list[int] = []
        self.most_ops = _THRASHING * len(self.step.baseline)
        self.most_seconds = _THRASHING * self.step.baseline_seconds + _TINY

    def run(self) -> list[int] | None:
        """The ops in the order they ran, or None if the limit was too low."""
        expiring: dict[int, list[int]] = defaultdict(list)
        for s, position in enumerate(self.facts.last_need):
            expiring[position].append(s)
        for position, number in enumerate(self.step.baseline):
            self.position = position
            if not self._perform(number):
                return None
            for s in (*self.step.ops[number].reads, *expiring[position]):
                self._drop_if_done(s, position)
        return self.sequence

    def _perform(self, number: int) -> bool:
        """Run an op after making what it reads, deepest first."""
        frames = [(number, iter(self.step.ops[number].reads))]
        while frames:
            number, reads = frames[-1]
            for s in reads:
                self.pins[s] += 1  # What is not alive yet is held from its making on.
                if s not in self.alive:
                    again = self.facts.remaker[s]
                    frames.append((again, iter(self.step.ops[again].reads)))
                    break
            else:
                if not self._execute(number):
                    return False
                frames.pop()
        return True

    def _execute(self, number: int) -> bool:
        op, sizes = self.step.ops[number], self.step.sizes
        if len(self.sequence) >= self.most_ops or self.clock > self.most_seconds:
            return False
        need = self.step.passing_bytes[number] + sum(sizes[s] for s in op.writes)
        while self.used + need > self.limit:
            if not self._evict_one():
                return False
        self.sequence.append(number)
        self.clock += op.seconds
        for s in op.writes:
            if s not in self.alive:
                self.alive[s] = None
                self.used += sizes[s]
                self.classes.remade(s)
        for s in op.reads:
            self.pins[s] -= 1
        for s in (*op.reads, *op.writes):
            self.accessed[s] = self.clock
            self._drop_if_done(s, self.position - 1)
        return True

    def _drop_if_done(self, s: int, position: int) -> None:
        """Evict a storage for which there is no use after this position."""
        facts = self.facts
        last = facts.last_use[s] if facts.evictable[s] else facts.last_need[s]
        is_free = s in self.alive and not self.pins[s] and s not in facts.held
        if is_free and last <= position:
            self._evict(s)

    def _evict_one(self) -> bool:
        facts, classes, sizes = self.facts, self.classes, self.step.sizes
        chosen, lowest = -1, float("inf")
        for s in self.alive:
            if self.pins[s] or not facts.evictable[s]:
                continue
            weight = sizes[s] * (self.clock - self.accessed[s] + _TINY)
            score = facts.seconds[s] / weight
            # The neighbourhood can only raise the score.
            if score <= lowest:
                score += classes.neighbourhood_seconds(s) / weight
            if score < lowest or (score == lowest and s < chosen):
                chosen, lowest = s, score
        if chosen < 0:
            return False
        self._evict(chosen)
        return True

    def _evict(self, s: int) -> None:
        del self.alive[s]
        self.used -= self.step.sizes[s]
        self.classes.evicted(s)


class _Classes:
    """Evicted storages that would be made again together, and their seconds."""

    def __init__(self, facts: _Facts) -> None:
        self.facts = facts
        self.leader: list[int] = []
        self.seconds: list[float] = []
        self.member: list[int] = [-1] * len(facts.remaker)

    def find(self, k: int) -> int:
        leader = self.leader
        while leader[k] != k:
            leader[k] = leader[leader[k]]
            k = leader[k]
        return k

    def evicted(self, s: int) -> None:
        """Join the storage's class with those of its evicted neighbours."""
        if self.facts.remaker[s] < 0:
            return
        root = self.member[s] = len(self.leader)
        self.leader.append(root)
        self.seconds.append(self.facts.seconds[s])
        for near in map(self.find, self._neighbours(s)):
            if near != root:
                self.leader[near] = root
                self.seconds[root] += self.seconds[near]

    def remade(self, s: int) -> None:
        """Take the storage out: its class keeps the rest of the seconds."""
        if self.member[s] >= 0:
            self.seconds[self.find(self.member[s])] -= self.facts.seconds[s]
            self.member[s] = -1

    def neighbourhood_seconds(self, s: int) -> float:
        """Seconds of all classes that touch this storage."""
        roots = {self.find(k) for k in self._neighbours(s)}
        return sum(self.seconds[k] for k in sorted(roots))

    def _neighbours(self, s: int) -> list[int]:
        member = self.member
        near = (*self.facts.parents[s], *self.facts.children[s])
        return [member[r] for r in near if member[r] >= 0]

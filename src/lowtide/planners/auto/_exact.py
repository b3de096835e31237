"""The optimum of a small step, by best-first search over what is alive.

A state is the set of live storages and the number of ops already run that may run only
once. Running an op costs its time, freeing a storage costs nothing. States are taken by
time spent plus the least time that is still needed if memory were unlimited, so the
first complete state is optimal (A*; Hart, Nilsson, Raphael 1968). The number of states
grows exponentially with the storages that are worth holding: for some dozens of ops.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable
from dataclasses import dataclass

from lowtide.planners.auto._effort import Effort
from lowtide.planners.auto._problem import Problem
from lowtide.step.simulate import pieces_along

State = tuple[int, int]


@dataclass(frozen=True, slots=True)
class Exact:
    """What is proven: `bound_seconds`, and the optimal sequence if it was reached.

    `is_feasible` is False only if it is proven that no schedule fits the budget.
    """

    bound_seconds: float
    sequence: tuple[int, ...] | None
    is_feasible: bool = True


class ExactSearch:
    """Best-first search on one step and budget."""

    def __init__(self, problem: Problem, budget: float) -> None:
        self.problem = problem
        self.room = budget - problem.resident_bytes
        count = len(problem.step.ops)
        self.once = [i for i in problem.baseline if problem.once[i]]
        self.reads = [_mask(r) for r in problem.reads]
        self.writes = [_mask(w) for w in problem.writes]
        self.held = _mask(s for s, is_held in enumerate(problem.held) if is_held)
        # The piece that may run after each number of once-ops.
        self.pieces = pieces_along(problem.step, self.once)
        self.needed = self._useful_for()
        self.pure = [i for i in range(count) if not problem.once[i]]
        self.bytes_of: dict[int, float] = {0: 0.0}
        self.left: dict[State, float] = {}
        producers = problem.step.producers
        # Storages that exactly one op makes: only these are charged in the estimate.
        self.maker = [p[0] if len(p) == 1 else -1 for p in producers]

    def _useful_for(self) -> list[int]:
        """For each number of once-ops run, the storages that may still be read."""
        problem = self.problem
        useful: list[int] = []
        for done in range(len(self.once) + 1):
            later = set(self.once[done:])
            mask = self.held
            grown = True
            for number in later:
                mask |= self.reads[number]
            while grown:
                grown = False
                for number in range(len(problem.step.ops)):
                    if problem.once[number] and number not in later:
                        continue
                    if self.writes[number] & mask and self.reads[number] & ~mask:
                        mask |= self.reads[number]
                        grown = True
            useful.append(mask)
        return useful

    def size(self, mask: int) -> float:
        """Bytes of a set of storages."""
        known = self.bytes_of.get(mask)
        if known is None:
            low = mask & -mask
            known = self.size(mask ^ low) + self.problem.size[low.bit_length() - 1]
            self.bytes_of[mask] = known
        return known

    def estimate(self, state: State) -> float:
        """Time still needed if memory were unlimited: never too much."""
        known = self.left.get(state)
        if known is not None:
            return known
        alive, done = state
        problem = self.problem
        ops = set(self.once[done:])
        stack = [s for s, held in enumerate(problem.held) if held]
        for number in ops:
            stack.extend(problem.reads[number])
        seen = alive
        while stack:
            s = stack.pop()
            if seen >> s & 1:
                continue
            seen |= 1 << s
            number = self.maker[s]
            if number >= 0 and number not in ops:
                ops.add(number)
                stack.extend(problem.reads[number])
        known = sum(problem.seconds[i] for i in sorted(ops))
        self.left[state] = known
        return known

    def run(self, effort: Effort, *, most_states: int) -> Exact:
        """Search until the optimum, `most_states` states or the end of the effort."""
        start: State = (0, 0)
        first = self.estimate(start)
        spent: dict[State, float] = {start: 0.0}
        origin: dict[State, tuple[State, int]] = {}
        heap: list[tuple[float, float, State]] = [(first, 0.0, start)]
        closed: set[State] = set()
        bound = first
        while heap:
            total, negative, state = heapq.heappop(heap)
            if state in closed:
                continue
            closed.add(state)
            bound = max(bound, total)
            if state[1] == len(self.once) and not self.held & ~state[0]:
                return Exact(spent[state], _path(origin, state))
            self.problem.evaluator.spend(150e-6)
            if len(closed) >= most_states or effort.is_over():
                return Exact(bound, None)
            del negative
            for following, seconds, number in self.moves(state):
                reached = spent[state] + seconds
                if reached < spent.get(following, float("inf")):
                    spent[following] = reached
                    origin[following] = (state, number)
                    total = reached + self.estimate(following)
                    # Of equals, the one that has come furthest.
                    heapq.heappush(heap, (total, -reached, following))
        return Exact(float("inf"), None, is_feasible=False)

    def moves(self, state: State) -> list[tuple[State, float, int]]:
        """States after one op or one free (-1), with the time it takes."""
        alive, done = state
        problem = self.problem
        found: list[tuple[State, float, int]] = []
        numbers = list(self.pure)
        if done < len(self.once):
            numbers.append(self.once[done])
        useful = self.needed[done]
        bytes_now = self.size(alive)
        for number in numbers:
            if self.reads[number] & ~alive:
                continue
            is_once = problem.once[number]
            if not is_once:
                if problem.piece[number] != self.pieces[done]:
                    continue
                if not self.writes[number] & ~alive & useful:
                    continue
            need = bytes_now + problem.fresh_bytes[number]
            if need > self.room:
                continue
            after = done + 1 if is_once else done
            kept = (alive | self.writes[number]) & self.needed[after]
            found.append(((kept, after), problem.seconds[number], number))
        loose = alive & ~self.held
        while loose:
            bit = loose & -loose
            loose ^= bit
            found.append(((alive ^ bit, done), 0.0, -1))
        return found


def _mask(storages: Iterable[int]) -> int:
    mask = 0
    for s in storages:
        mask |= 1 << s
    return mask


def _path(origin: dict[State, tuple[State, int]], state: State) -> tuple[int, ...]:
    ops: list[int] = []
    while state in origin:
        state, number = origin[state]
        if number >= 0:
            ops.append(number)
    return tuple(reversed(ops))

"""Auto against the optimum, found by an oracle that shares no code with it."""

from __future__ import annotations

import heapq
import itertools
import random
from dataclasses import replace
from typing import Any

import pytest

from lowtide.errors import BudgetTooSmallError, StepFormatError
from lowtide.planners._linear import Answer, Program, solve
from lowtide.planners.auto import _bound, plan
from lowtide.planners.auto._bound import Relaxation
from lowtide.planners.auto._effort import Effort
from lowtide.planners.auto._floor import peak_bound_bytes
from lowtide.planners.auto._problem import Problem
from lowtide.planners.auto._prove import bound_seconds, promising
from lowtide.step.graph import Op, Region, StepGraph, Storage, check_graph
from tests.oracle import least_seconds_within, random_step

INFINITE = float("inf")


def least_seconds(step: StepGraph, budget: int) -> float:
    """Time of the fastest schedule within the budget, by trying all: Dijkstra.

    A state is what is alive, the region, and the last op that ran of those that may run
    only once. Every op whose reads are alive may run, every storage may be freed.
    """
    once = [op.id for op in step.ops if op.once and not op.standby]
    pinned = frozenset(step.outputs) | frozenset(step.resident)
    start = (frozenset(step.resident), 0, 0)
    best = {start: 0.0}
    count = itertools.count()
    heap = [(0.0, next(count), start)]
    while heap:
        seconds, _, state = heapq.heappop(heap)
        if seconds > best[state]:
            continue
        alive, region, done = state
        if done == len(once) and alive.issuperset(step.outputs):
            return seconds
        following = []
        for op in step.ops:
            if op.once and (op.standby or done >= len(once) or once[done] != op.id):
                continue
            if op.opens < 0 and op.piece != step.regions[region].piece:
                continue
            if not alive.issuperset(op.reads):
                continue
            now = sum(step.sizes[s] for s in alive) + op.scratch_bytes
            if now + sum(step.sizes[s] for s in op.writes) > budget:
                continue
            opened = op.opens if op.opens >= 0 else region
            after = (alive.union(op.writes), opened, done + bool(op.once))
            following.append((seconds + op.seconds, after))
        for s in alive - pinned:
            following.append((seconds, (alive - {s}, region, done)))
        for reached, after in following:
            if reached < best.get(after, INFINITE):
                best[after] = reached
                heapq.heappush(heap, (reached, next(count), after))
    return INFINITE


def small_step(seed: int) -> StepGraph:
    """A random training step of three or four forward ops."""
    rng = random.Random(seed)
    storages = [Storage(0, "x", rng.randrange(4), resident=True)]
    ops: list[Op] = []

    def add(name: str, reads: list[int], sizes: list[int], **more: object) -> list[int]:
        made = []
        for b in sizes:
            storages.append(Storage(len(storages), f"{name}{len(storages)}", b))
            made.append(len(storages) - 1)
        number = len(ops)
        ops.append(
            Op(
                number,
                f"{name}{number}",
                name,
                tuple(dict.fromkeys(reads)),
                tuple(made),
                **more,
            )  # type: ignore[arg-type]
        )
        return made

    forward: list[tuple[list[int], list[int]]] = []
    values = [0]
    for _ in range(rng.randint(2, 4)):
        reads = [values[-1], *rng.sample(values, rng.randint(0, 1))]
        sizes = [rng.randint(1, 8) for _ in range(rng.choice((1, 1, 1, 2)))]
        once = rng.choice(("", "", "", "draws random numbers"))
        cost = {"seconds": float(rng.randint(0, 5)), "once": once}
        made = add("f", reads, sizes, scratch_bytes=rng.choice((0, 0, 3)), **cost)
        if once and rng.random() < 0.5:
            ops.append(
                Op(
                    len(ops),
                    "again",
                    "again",
                    ops[-1].reads,
                    tuple(made),
                    seconds=float(rng.randint(0, 5)),
                    standby=True,
                )
            )
        values.append(made[0])
        forward.append((reads, made))
    (gradient,) = add(
        "t",
        [values[-1]],
        [rng.randint(1, 6)],
        phase="backward",
        piece=-1,
        once="runs outside",
        opens=1,
    )
    outputs = []
    for reads, made in reversed(forward):
        saved = [s for s in (*reads, *made) if rng.random() < 0.6]
        sizes = [rng.randint(1, 8)] + [rng.randint(1, 4)] * rng.randint(0, 1)
        cost = {"seconds": float(rng.randint(0, 5)), "phase": "backward"}
        gradient, *weights = add("b", [gradient, *saved], sizes, **cost)
        outputs += weights
    outputs.append(gradient)
    step = StepGraph(
        tuple(ops),
        tuple(storages),
        tuple(outputs),
        regions=(Region(0, "forward"), Region(0, "backward")),
        name=f"small{seed}",
    )
    check_graph(step)
    return step


def budgets_of(step: StepGraph) -> list[int]:
    peak = step.baseline_peak_bytes
    return [peak - k for k in (0, 1, 3, 6, 9) if peak - k > 0]


@pytest.mark.parametrize("seed", range(40))
def test_the_plan_of_a_small_step_is_optimal_and_says_so(seed: int) -> None:
    step = small_step(seed)
    for budget in budgets_of(step):
        expected = least_seconds(step, budget)
        try:
            found = plan(step, budget, time_limit=2.0)
        except BudgetTooSmallError:
            assert expected == INFINITE
            continue
        assert found.peak_bytes <= budget
        assert found.seconds == pytest.approx(expected)
        assert found.proof.stopped_by == "optimal"
        assert found.proof.gap == pytest.approx(0.0, abs=1e-9)


@pytest.mark.parametrize("seed", range(20))
def test_the_lowest_peak_of_a_small_step_is_the_lowest(seed: int) -> None:
    step = small_step(seed)
    found = plan(step, None, time_limit=2.0)
    assert least_seconds(step, found.peak_bytes - 1) == INFINITE
    assert found.proof.bound_bytes == found.peak_bytes


@pytest.mark.parametrize("first_seed", range(0, 300, 50))
def test_the_linear_bounds_are_never_above_the_optimum(first_seed: int) -> None:
    for seed in range(first_seed, first_seed + 50):
        step = small_step(1000 + seed)
        problem = Problem(step)
        after = [
            i
            for i in sorted(problem.must_run)
            if i > step.turn and step.turn in problem.ancestors_of(i)
        ]
        for budget in budgets_of(step)[::2]:
            best = least_seconds(step, budget)
            assert best == INFINITE or peak_bound_bytes(problem) <= budget
            for moments in ([step.turn], after[:1], [step.turn, *after[-1:]]):
                given = problem, float(budget), moments
                plain = Relaxation(*given).solve(10.0).seconds
                bound = Relaxation(*given, windows=True).solve(10.0).seconds
                assert plain * (1 - 1e-9) <= bound <= best + 1e-9, (seed, moments)


def test_bounds_of_whole_numbers_lie_between_the_others_and_the_optimum() -> None:
    raised = 0
    for seed in (0, 2, 5, 6, 7):
        step = random_step(seed, 8)
        problem = Problem(step)
        later = [i for i in problem.must_run if step.turn in problem.ancestors_of(i)]
        budget = int(0.8 * step.baseline_peak_bytes)
        best = least_seconds_within(step, budget)
        for last in sorted(later):
            given = problem, float(budget), [step.turn, last]
            loose = Relaxation(*given).solve().seconds
            whole = Relaxation(*given).solve_whole(10.0).seconds
            assert loose * (1 - 1e-9) <= whole <= best + 1e-9, (seed, last)
            raised += whole > loose * 1.001
    assert raised > 0


def test_a_program_without_solution_is_solved_again_without_presolve(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    step = small_step(0)
    tried: list[bool] = []

    def doubtful(program: Program, *, presolve: bool, **how: Any) -> Answer:
        tried.append(presolve)
        answer = solve(program, presolve=presolve, **how)
        return replace(answer, is_infeasible=True) if presolve else answer

    monkeypatch.setattr(_bound, "solve", doubtful)
    budget = float(step.baseline_peak_bytes)
    bound = Relaxation(Problem(step), budget, [step.turn]).solve()
    assert tried == [True, False]
    assert bound.seconds <= step.baseline_seconds


def test_a_resident_among_the_outputs_is_refused() -> None:
    with pytest.raises(StepFormatError, match="resident"):
        StepGraph.from_text("""
            resident x 8
            f = op(x)   4 bytes 1 s
            turn(f) -> d   4 bytes
            da = g(d)   4 bytes 1 s
            -> da, x
        """)


@pytest.mark.parametrize(("seed", "share"), [(11, 0.5), (16, 0.5), (19, 0.5), (2, 0.6)])
def test_no_moment_of_the_bound_stands_in_its_way(seed: int, share: float) -> None:
    """With one more moment an op may run by halves in two intervals: less is proven."""
    problem = Problem(random_step(seed, 14))
    budget = float(int(share * problem.step.baseline_peak_bytes))
    effort = Effort(problem.evaluator, 1000.0)
    baseline = problem.evaluator.draft(problem.baseline)
    candidates = promising(problem, baseline, [])
    best, moments = bound_seconds(problem, budget, candidates, effort)
    assert len(moments) > 1
    for moment in moments:
        fewer = [number for number in moments if number != moment]
        assert Relaxation(problem, budget, fewer).solve().seconds <= best

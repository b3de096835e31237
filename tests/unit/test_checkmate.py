"""Checkmate's program against an exhaustive search over all its schedules."""

from __future__ import annotations

import heapq
import random
import sys
import time

import pytest

from lowtide.errors import BudgetTooSmallError, SolverUnavailableError
from lowtide.planners import checkmate
from lowtide.planners._tried import fastest_within
from lowtide.step.graph import StepGraph
from lowtide.step.schedule import with_frees
from lowtide.step.simulate import simulate
from tests import graphs


def exhaustive(step: StepGraph, budget: float | None) -> float | None:
    """The least seconds under a budget, or without one the least peak.

    A shortest path over states (stage, last op run again in it, what is alive). Moves:
    free something, run an earlier op again (in order within the stage), or run the op
    that ends the stage. Written from the definition, without any of the planner's code.
    """
    size, outputs = step.sizes, frozenset(step.outputs)
    resident = frozenset(step.resident)
    start = (0, -1, resident)
    best = {start: 0.0}
    queue = [(0.0, 0, start)]
    ticket = 0
    while queue:
        cost, _, state = heapq.heappop(queue)
        if cost > best[state]:
            continue
        stage, last, alive = state
        if stage == len(step.baseline):
            return cost
        held = sum(size[s] for s in alive)
        moves = [(cost, (stage, last, alive - {s})) for s in alive - outputs - resident]
        for number, following in runnable(step, stage, last):
            op = step.ops[number]
            if not alive.issuperset(op.reads):
                continue
            level = held + sum(size[s] for s in op.writes) + op.scratch_bytes
            after = (*following, alive | set(op.writes))
            if budget is None:
                moves.append((max(cost, level), after))
            elif level <= budget:
                moves.append((cost + op.seconds, after))
        for price, target in moves:
            if price < best.get(target, float("inf")):
                best[target] = price
                ticket += 1
                heapq.heappush(queue, (price, ticket, target))
    return None


def runnable(step: StepGraph, stage: int, last: int):
    """Ops that may run next, with the stage and the last op after them."""
    end = step.baseline[stage]
    yield end, (stage + 1, -1)
    region = max((step.ops[i].opens for i in step.baseline[:stage]), default=-1)
    piece = step.regions[max(region, 0)].piece
    made = set(step.resident).union(
        *(step.ops[i].writes for i in step.baseline[:stage])
    )
    for op in step.ops:
        if last < op.id < end and not op.once and op.piece == piece:
            first_run_is_over = op.standby or op.id in step.baseline[:stage]
            if first_run_is_over and made.issuperset(op.writes):
                yield op.id, (stage, op.id)


def random_chain(seed: int) -> StepGraph:
    """Four layers, a turn, and their backward: nine ops of random cost."""
    rng = random.Random(seed)

    def cost(names: int = 1) -> str:
        sizes = " ".join(str(rng.choice((1, 4, 9, 16))) for _ in range(names))
        scratch = f" scratch {rng.randint(1, 9)}" if rng.random() < 0.2 else ""
        return f"{sizes} bytes {rng.choice((0, 1, 2, 5))} s{scratch}"

    lines = [f"resident x {rng.randint(0, 4)}"]
    past = ["x"]
    for k in range(4):
        reads = [past[-1], *rng.sample(past, rng.randint(0, 1))]
        kind = rng.random()
        if kind < 0.15:
            lines.append(f"a{k}, m{k} = f{k}({', '.join(reads)}) 9 2 bytes 1 s random")
            lines.append(f"a{k} = r{k}({', '.join(reads)}, m{k}) 9 bytes 2 s standby")
        elif kind < 0.25:
            lines.append(f"a{k} = f{k}({', '.join(reads)}) {cost()} random")
        elif kind < 0.45:
            lines.append(f"a{k}, m{k} = f{k}({', '.join(reads)}) {cost(2)}")
        else:
            lines.append(f"a{k} = f{k}({', '.join(reads)}) {cost()}")
        past += [f"a{k}"]
    lines.append("turn(a3) -> d 2 bytes")
    gradient, outputs = "d", []
    for k in range(3, -1, -1):
        saved = [s for s in dict.fromkeys((past[k], f"a{k}")) if rng.random() < 0.8]
        reads = ", ".join([gradient, *saved])
        if rng.random() < 0.4:
            lines.append(f"g{k}, w{k} = b{k}({reads}) {cost(2)}")
            outputs.append(f"w{k}")
        else:
            lines.append(f"g{k} = b{k}({reads}) {cost()}")
        gradient = f"g{k}"
    lines.append(f"-> {', '.join([*outputs, gradient])}")
    return StepGraph.from_text("\n".join(lines), name=f"chain{seed}")


def small_steps() -> list[StepGraph]:
    tangled = [graphs.random_dag(seed, 3) for seed in range(150)]
    small = [step for step in tangled if len(step.baseline) <= 9]
    assert len(small) >= 4
    return [*small[:5], *(random_chain(seed) for seed in range(18))]


@pytest.mark.parametrize("step", small_steps(), ids=lambda s: s.name)
def test_equals_exhaustive_search(step: StepGraph) -> None:
    floor = exhaustive(step, None)
    lowest = checkmate.plan(step)
    assert lowest.peak_bytes == floor
    assert lowest.seconds == pytest.approx(exhaustive(step, floor), rel=1e-9)
    top = step.baseline_peak_bytes
    for budget in sorted({floor + (top - floor) * k // 3 for k in range(4)}):
        plan = checkmate.plan(step, budget)
        expected = exhaustive(step, budget)
        assert plan.seconds == pytest.approx(expected, rel=1e-9), budget
        assert simulate(step, plan.schedule).peak_bytes <= budget
        assert plan.proof.stopped_by == "optimal"
        assert plan.proof.gap == pytest.approx(0, abs=1e-9)
        assert plan.proof.bound_seconds == pytest.approx(plan.seconds, rel=1e-9)
    with pytest.raises(BudgetTooSmallError) as error:
        checkmate.plan(step, floor - 1)
    assert error.value.floor_bytes == floor


def test_the_oracle_by_hand() -> None:
    # While hb runs: x 8, a 16, b 40, d 4, db 40 = 108. Without a 92, but f runs again.
    step = StepGraph.from_text("""
        resident x 8
        a  = f(x)      16 bytes 1 s
        b  = g(a)      40 bytes 1 s
        turn(b) -> d    4 bytes
        db = hb(b, d)  40 bytes 1 s
        da = gb(a, db) 16 bytes 2 s
        -> da
    """)
    assert exhaustive(step, 108) == 5
    assert exhaustive(step, 107) == 6
    assert exhaustive(step, None) == 92
    assert exhaustive(step, 91) is None
    assert checkmate.plan(step, 107).seconds == 6


def test_the_program_finds_what_no_simpler_rule_does() -> None:
    better = 0
    for seed in range(30):
        step = random_chain(seed)
        floor = exhaustive(step, None)
        search = checkmate._Search(step, floor, 10.0)
        known = fastest_within(search.members, floor)
        plan = checkmate.plan(step, floor)
        better += known is None or known.seconds > plan.seconds
    assert better >= 3


def test_rounding_fits_and_stays_above_its_bound(monkeypatch) -> None:
    monkeypatch.setattr(checkmate, "_EXACT_CHOICES", 0)
    for step in (graphs.chain(8), graphs.residual(2), graphs.random_dag(2, 16)):
        budget = int(0.75 * step.baseline_peak_bytes)
        plan = checkmate.plan(step, budget, time_limit=20)
        assert plan.peak_bytes <= budget
        assert plan.proof.stopped_by == "rounding"
        assert step.baseline_seconds < plan.proof.bound_seconds <= plan.seconds
        assert plan.proof.gap == 1 - plan.proof.bound_seconds / plan.seconds


def test_a_rounded_matrix_becomes_a_valid_schedule_at_any_threshold() -> None:
    rng = random.Random(0)
    for step in (graphs.dense(3), graphs.two_pieces(2), graphs.random_dag(5, 8)):
        stages = checkmate.Stages(step)
        for _ in range(20):
            carried = [
                {s for s in stages.carried(t) if rng.random() < 0.5}
                for t in range(len(stages.ends))
            ]
            sequence = checkmate.sequence_carrying(stages, [*carried, set()])
            simulate(step, with_frees(step, sequence))


def test_beyond_its_size_it_says_so(monkeypatch) -> None:
    monkeypatch.setattr(checkmate, "_EXACT_CHOICES", 0)
    monkeypatch.setattr(checkmate, "_RELAXED_CHOICES", 0)
    step = graphs.residual(4)
    plan = checkmate.plan(step, int(0.7 * step.baseline_peak_bytes))
    assert plan.proof.stopped_by == "size_limit"
    assert plan.peak_bytes <= 0.7 * step.baseline_peak_bytes
    lowest = checkmate.plan(step)
    with pytest.raises(BudgetTooSmallError) as error:
        checkmate.plan(step, lowest.peak_bytes - 1)
    assert error.value.floor_bytes == lowest.peak_bytes


def test_the_time_limit_holds_and_the_gap_is_told() -> None:
    step = graphs.chain(8)
    began = time.monotonic()
    plan = checkmate.plan(step, int(0.7 * step.baseline_peak_bytes), time_limit=2)
    assert time.monotonic() - began < 8
    assert plan.proof.stopped_by == "time_limit"
    assert 0 < plan.proof.gap < 1
    assert plan.peak_bytes <= 0.7 * step.baseline_peak_bytes


def test_a_missing_solver_is_named(monkeypatch) -> None:
    monkeypatch.setitem(sys.modules, "highspy", None)
    with pytest.raises(SolverUnavailableError, match="pip install highspy"):
        checkmate.plan(graphs.chain(1))

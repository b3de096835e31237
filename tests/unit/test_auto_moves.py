"""Every move is scored as it turns out, and compiled as it is written."""

from __future__ import annotations

import itertools
from typing import Any

import pytest

from lowtide.planners.auto import _evaluator, _native
from lowtide.planners.auto._evaluator import Evaluator
from lowtide.planners.auto._greedy import list_gaps
from lowtide.planners.auto._keep import remove, repeated
from lowtide.planners.auto._moves import evict, excess_of, undo
from lowtide.planners.auto._order import earlier, later
from lowtide.planners.auto._problem import Problem
from lowtide.planners.auto._tables import State, Work
from lowtide.step.graph import StepGraph
from lowtide.step.schedule import with_frees
from lowtide.step.simulate import simulate
from tests.graphs import GRAPHS
from tests.oracle import random_step

STEPS = (*GRAPHS, *(random_step(k, 9, breaks=k % 3) for k in range(12)))
every_step = pytest.mark.parametrize("step", STEPS, ids=lambda g: g.name)
ENDLESS = 1e18
SIZES = "Op OpStart Storage StorageStart Position Access Single".split()


@pytest.fixture
def interpreted(monkeypatch: pytest.MonkeyPatch) -> None:
    """The moves as plain functions, so that a test can look inside."""
    monkeypatch.setattr(_evaluator, "_library", lambda: None)


def parts(evaluator: Evaluator) -> tuple[Any, ...]:
    """What the moves are called with."""
    return (
        evaluator._work,
        evaluator._states[0],
    )


def recomputing(step: StepGraph) -> tuple[Problem, float]:
    """A step with a draft loaded that recomputes, and the budget it was made for."""
    problem = Problem(step)
    evaluator = problem.evaluator
    draft = evaluator.draft(problem.baseline)
    span = draft.peak_bytes - problem.resident_bytes
    budget = problem.resident_bytes + 0.6 * span
    evaluator._load(evaluator.lower(draft, budget, ENDLESS).ops)
    return problem, budget


def peak_and_excess(step: StepGraph, ops: list[int], level: float) -> tuple[int, float]:
    walked = simulate(step, with_frees(step, ops))
    draft = Problem(step).evaluator.draft(ops)
    assert draft.peak_bytes == walked.peak_bytes
    return walked.peak_bytes, float((draft.live - level).clip(min=0.0).sum())


@every_step
def test_an_eviction_is_scored_as_it_turns_out(
    step: StepGraph, interpreted: None
) -> None:
    problem, budget = recomputing(step)
    work, state = parts(problem.evaluator)
    level = 0.7 * budget
    ops = state.ops[: state.length[0]]
    before = excess_of(state, level)
    for g in range(min(25, list_gaps(work, state, level))):
        gap = (work.gap_storage[g], work.gap_start[g], work.gap_stop[g])
        live = list(state.live)
        count, gain, seconds = evict(work, state, *gap, level, 1e9)
        undo(work, state)
        assert state.live == live
        if not count:
            continue
        longer = [*ops[: gap[2]], *work.cone_ops[:count], *ops[gap[2] :]]
        _, after = peak_and_excess(step, longer, level)
        # Runs that became useless are left out, which can only lower the excess.
        assert after <= before - gain + 1e-6
        draft = Problem(step).evaluator.draft(longer)
        if len(draft.ops) == len(longer):
            assert after == pytest.approx(before - gain)
            added = draft.seconds - state.seconds[0]
            assert seconds == pytest.approx(added + work.tiny_seconds[0])


@every_step
def test_a_removal_is_scored_as_it_turns_out(
    step: StepGraph, interpreted: None
) -> None:
    problem, level = recomputing(step)
    work, state = parts(problem.evaluator)
    ops = state.ops[: state.length[0]]
    seconds_before = state.seconds[0]
    for p in list(work.positions[: repeated(work, state)])[:25]:
        count, seconds = remove(work, state, p, level)
        gone = set(work.gone_list[:count])
        live = [x for q, x in enumerate(state.live[: len(ops)]) if q not in gone]
        undo(work, state)
        rest = [op for q, op in enumerate(ops) if q not in gone]
        draft = Problem(step).evaluator.draft(rest)
        assert draft.ops == rest, "everything nobody needs went with it"
        assert draft.live.tolist() == live
        assert draft.seconds == pytest.approx(seconds_before - seconds)


@every_step
def test_a_change_of_places_is_scored_as_it_turns_out(
    step: StepGraph, interpreted: None
) -> None:
    problem, budget = recomputing(step)
    work, state = parts(problem.evaluator)
    level = 0.6 * budget
    ops = state.ops[: state.length[0]]
    before = excess_of(state, level)
    for p, find in itertools.product(range(0, len(ops), 3), (earlier, later)):
        q, gain = find(work, state, p, level, len(ops))
        if q == p:
            continue
        moved = [*ops[:p], *ops[p + 1 :]]
        moved.insert(q, ops[p])
        _, after = peak_and_excess(step, moved, level)
        assert after == pytest.approx(before - gain)


@every_step
def test_compiled_moves_decide_as_the_plain_ones(
    step: StepGraph, monkeypatch: pytest.MonkeyPatch
) -> None:
    answers: list[tuple[object, ...]] = []
    for _ in range(2):
        problem = Problem(step)
        run = problem.evaluator
        base = run.draft(problem.baseline)
        span = base.peak_bytes - problem.resident_bytes
        budget = problem.resident_bytes + 0.7 * span
        lower = run.lower(base, budget, ENDLESS)
        placed = run.reorder(lower, 0.9 * budget, ENDLESS)
        raised = run.raise_up(placed, placed.peak_bytes, ENDLESS)
        best, _ = run.improve(raised, raised, budget, 0.1, run.units + 20_000.0)
        drafts = (lower, placed, raised, best)
        answers.append((run.units, *(d.ops for d in drafts), best.seconds))
        monkeypatch.setattr(_evaluator, "_library", lambda: None)
    assert answers[0] == answers[1]


def some_arithmetic(t: Work, s: State, a: int, x: float) -> float:
    """Every kind of expression that the moves use."""
    total = 0.0
    for k in range(a, -1, -1):
        if k == 3:
            continue
        total += (k // 2) * x if k % 2 == 0 and not k > 6 else -x / k
    for y in (x, 2.0 * x):
        total += max(y, 1.5) ** 0.5
    low, high = a, min(a, 2) + int(2.9)
    while 0 <= low < 100:
        low, high = low + high, low
        if low > 50:
            break
    s.length[0] = low
    t.size[1] += total
    return t.size[1] + len(t.size)


def test_a_function_in_c_computes_what_it_does_in_python(tmp_path, monkeypatch) -> None:
    monkeypatch.setenv("LOWTIDE_CACHE_DIR", str(tmp_path))
    sizes = dict.fromkeys(SIZES, 3)
    source = _native.to_c([some_arithmetic], [Work, State])
    library = _native.compiled(source, lambda: source)
    assert library is not None, "this test needs a C compiler"
    function = library[_native.PREFIX + "some_arithmetic"]
    function.restype = _native.ctypes.c_double
    results = []
    for as_arrays in (True, False):
        records = [
            _evaluator.blank(r, sizes, as_arrays=as_arrays) for r in (Work, State)
        ]
        if as_arrays:
            passed = [_native.ctypes.byref(_native.as_struct(r)) for r in records]
            numbers = (_native.ctypes.c_int64(9), _native.ctypes.c_double(0.3))
            value = function(*passed, *numbers)
        else:
            value = some_arithmetic(*records, 9, 0.3)
        results.append((value, int(records[1].length[0]), float(records[0].size[1])))
    assert results[0] == results[1]


def test_without_a_compiler_the_plain_functions_run(
    tmp_path, monkeypatch, caplog
) -> None:
    monkeypatch.setenv("LOWTIDE_CACHE_DIR", str(tmp_path))
    monkeypatch.setenv("PATH", str(tmp_path))
    assert _native.compiled("", lambda: "int64_t nothing;") is None
    assert "Install a C compiler" in caplog.text


@pytest.mark.parametrize("times", [1, 9])
def test_a_sequence_of_any_length_has_room(times: int) -> None:
    step = GRAPHS[1]
    problem = Problem(step)
    turn = problem.baseline.index(step.turn)
    forward = problem.baseline[:turn]
    sequence = [*forward * times, *problem.baseline[turn:]]
    draft = problem.evaluator.draft(sequence)
    timeline = simulate(step, with_frees(step, draft.ops))
    assert draft.peak_bytes == timeline.peak_bytes
    assert draft.seconds == pytest.approx(timeline.seconds)

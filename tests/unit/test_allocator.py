"""Sequences of ops against a naive allocator: frees, peak, time, and drafts."""

from __future__ import annotations

import random
from collections.abc import Sequence

import pytest

from lowtide.planners.auto._evaluator import Draft
from lowtide.planners.auto._problem import Problem
from lowtide.step.graph import StepGraph
from lowtide.step.plan import Run
from lowtide.step.schedule import with_frees
from lowtide.step.simulate import simulate
from tests.graphs import random_dag
from tests.oracle import random_step, walk


def steps(first_seed: int) -> list[StepGraph]:
    seeds = range(first_seed, first_seed + 5)
    return [
        *(random_step(seed, 6) for seed in seeds),
        *(random_step(seed, 14) for seed in seeds),
        *(random_dag(seed, 20) for seed in seeds),
    ]


def random_sequence(step: StepGraph, rng: random.Random) -> list[int]:
    """The baseline with ops run again in random places where their reads exist."""
    sequence: list[int] = []
    made = {s.id for s in step.storages if s.resident}
    again = [op for op in step.ops if not op.once]
    for number in step.baseline:
        while rng.random() < 0.4:
            op = rng.choice(again)
            # What was never made cannot be read; what was freed is kept instead.
            if made.issuperset((*op.reads, *op.writes)):
                sequence.append(op.id)
        sequence.append(number)
        made.update(step.ops[number].writes)
    return sequence


def freed_after_each(step: StepGraph, sequence: Sequence[int]) -> list[frozenset[int]]:
    """What `with_frees` frees after each op."""
    freed: list[set[int]] = []
    for item in with_frees(step, sequence):
        if isinstance(item, Run):
            freed.append(set())
        else:
            freed[-1].add(item.storage)
    return [frozenset(storages) for storages in freed]


@pytest.mark.parametrize("first_seed", range(0, 40, 5))
def test_frees_and_simulation_agree_with_a_naive_allocator(first_seed: int) -> None:
    rng = random.Random(first_seed)
    for step in steps(first_seed):
        for _ in range(4):
            sequence = random_sequence(step, rng)
            expected = walk(step, sequence)
            schedule = with_frees(step, sequence)
            timeline = simulate(step, schedule)
            live = [
                nbytes
                for item, nbytes in zip(schedule, timeline.live_bytes, strict=True)
                if isinstance(item, Run)
            ]
            assert tuple(live) == expected.live_bytes
            assert timeline.peak_bytes == expected.peak_bytes
            assert timeline.seconds == pytest.approx(expected.seconds)
            assert tuple(freed_after_each(step, sequence)) == expected.freed


@pytest.mark.parametrize("first_seed", range(0, 40, 5))
def test_a_draft_agrees_with_a_naive_allocator_after_any_edit(first_seed: int) -> None:
    rng = random.Random(first_seed)
    for step in steps(first_seed):
        problem = Problem(step)
        draft = problem.evaluator.draft(problem.baseline)
        for _ in range(8):
            draft = edited(problem, draft, rng)
            expected = walk(step, draft.ops)
            assert tuple(draft.live.tolist()) == expected.live_bytes
            assert draft.peak_bytes == expected.peak_bytes
            assert draft.seconds == pytest.approx(expected.seconds)
            timeline = simulate(step, with_frees(step, draft.ops))
            assert timeline.peak_bytes == draft.peak_bytes


def edited(problem: Problem, draft: Draft, rng: random.Random) -> Draft:
    """The draft with runs inserted or left out at random, still valid."""
    step, ops = problem.step, draft.ops
    if rng.random() < 0.3:
        repeated = [p for p, n in enumerate(ops) if is_spare(step, ops, p)]
        if repeated:
            position = rng.choice(repeated)
            rest = [*ops[:position], *ops[position + 1 :]]
            return problem.evaluator.draft(rest)
    longer = list(ops)
    chosen = sorted(rng.sample(range(len(ops)), min(4, len(ops))), reverse=True)
    for position in chosen:
        made = set(step.resident).union(*(step.ops[n].writes for n in ops[:position]))
        fit = [
            op.id
            for op in step.ops
            if not op.once and made.issuperset((*op.reads, *op.writes))
        ]
        if fit:
            longer.insert(position, rng.choice(fit))
    return problem.evaluator.draft(longer)


def is_spare(step: StepGraph, ops: list[int], position: int) -> bool:
    """Whether everything an op writes was made before, so that it may be left out."""
    before = set().union(*(step.ops[n].writes for n in ops[:position]))
    op = step.ops[ops[position]]
    return not op.once and before.issuperset(op.writes)

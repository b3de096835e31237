"""Plans for other sizes: structure, growth, and which of them is taken."""

from dataclasses import replace

import pytest

from lowtide import plan
from lowtide.engine.planning.family import Family, growth_of, structure_of
from lowtide.step.graph import StepGraph
from lowtide.step.plan import Plan
from tests.graphs import GRAPHS

STEP = GRAPHS[1]


def scaled(step: StepGraph, factor: float) -> StepGraph:
    """The same structure with other sizes."""
    return replace(
        step,
        storages=tuple(
            replace(s, nbytes=int(s.nbytes * factor)) for s in step.storages
        ),
    )


def planned(step: StepGraph) -> Family:
    family = Family()
    limit = step.baseline_peak_bytes
    family.add(step, step, plan(step, budget=limit, planner="keep_all"))
    return family


def test_sizes_are_no_part_of_the_structure() -> None:
    assert structure_of(scaled(STEP, 2)) == structure_of(STEP)
    others = [s for s in map(structure_of, GRAPHS) if s != structure_of(STEP)]
    assert len(others) == len(GRAPHS) - 1


def test_growth_is_that_of_the_storage_that_grows_most() -> None:
    # All sizes are whole blocks of 64 bytes, so twice the bytes are twice the blocks.
    assert growth_of(STEP, scaled(STEP, 2)) == 2
    assert growth_of(STEP, scaled(STEP, 0.5)) <= 1


def test_smaller_sizes_are_served_and_much_larger_ones_are_not() -> None:
    family = planned(STEP)
    assert family.resized(scaled(STEP, 0.5)) is not None
    assert family.resized(scaled(STEP, 1.4)) is not None
    assert family.resized(scaled(STEP, 1.6)) is None


def test_the_fastest_plan_that_fits_is_taken() -> None:
    family = planned(STEP)
    lowest = plan(STEP, budget=STEP.floor_bytes)
    family.add(STEP, STEP, lowest)
    half = scaled(STEP, 0.5)
    step, _ = family.resized(half)
    roomy = family.fastest(step, half, STEP.baseline_peak_bytes)
    assert not roomy.recomputed
    assert roomy.peak_bytes <= STEP.baseline_peak_bytes
    assert family.fastest(step, half, 0) is None


def test_a_plan_with_an_empty_storage_serves_none_that_is_not() -> None:
    # It says nothing of what its op needs for some bytes.
    first, *others = STEP.storages
    family = planned(replace(STEP, storages=(replace(first, nbytes=0), *others)))
    assert family.plan_for(STEP) is None


@pytest.mark.parametrize(("overhead", "is_worth_it"), [(0.005, False), (0.015, True)])
def test_a_plan_is_searched_for_where_the_known_one_recomputes_too_much(
    overhead: float, is_worth_it: bool
) -> None:
    # Lengths stay within 2 % of their own plans, and op times are those of another.
    lowest = plan(STEP, budget=STEP.floor_bytes)
    family = Family()
    family.add(STEP, STEP, lowest)
    _, member = family.resized(scaled(STEP, 0.5))
    slow = replace(lowest, seconds=(1 + overhead) * lowest.baseline_seconds)
    searched = []

    def search(step: StepGraph, limit: int) -> Plan:
        searched.append(limit)
        return plan(step, budget=limit)

    limit = STEP.baseline_peak_bytes - 1
    assert family.add_rung(slow, member, limit, search) is is_worth_it
    assert bool(searched) is is_worth_it

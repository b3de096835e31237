"""The chain of a step: cuts, tables against the simulator, exact choices over them."""

from itertools import combinations, pairwise, product

import pytest

from lowtide.chains import Backward, Forward
from lowtide.planners._chain.chain import Chain, chain_of
from lowtide.planners._chain.segments import (
    Choice,
    ladder,
    least_peak,
    least_seconds,
)
from lowtide.planners.hong_static import static_paths
from lowtide.planners.rotor import _Lowering
from lowtide.step.graph import StepGraph
from lowtide.step.schedule import from_kept, sequence_from_kept, with_frees
from lowtide.step.simulate import simulate
from tests.graphs import GRAPHS, chain, dense, random_dag, residual, transformer, unet

CHAINS = (chain(10), residual(5), dense(6), unet(3), transformer(3))

by_name = pytest.mark.parametrize("step", CHAINS, ids=lambda step: step.name)


def names(step: StepGraph, storages: frozenset[int]) -> set[str]:
    return {step.storages[s].name for s in storages}


def every_choice(chain: Chain) -> list[Choice]:
    """All sets of cuts with all ways to save their segments."""
    found, length = [], len(chain)
    for count in range(length - 1):
        for inner in combinations(range(1, length - 1), count):
            cuts = (0, *inner, length - 1)
            for saved in product((False, True), repeat=len(cuts) - 1):
                found.append(Choice.of(chain, cuts, saved))
    return found


def test_what_crosses_each_place_of_a_chain_with_a_skip():
    # Places: 0 before f, 1 after f, ... x is resident and crosses nothing; a is read
    # again by k, so it crosses everything up to there; the loss is an output: pinned.
    step = StepGraph.from_text("""
        resident x 8
        a = f(x)       16 bytes 1 s
        b = g(a)        8 bytes 1 s
        c = h(b)        4 bytes 1 s
        e = k(c, a)     4 bytes 1 s
        l = loss(e)     4 bytes 1 s
        turn(l) -> d    4 bytes
        de = lb(d, e)   4 bytes 1 s
        da = kb(de, a) 16 bytes 1 s
        dx = fb(da, x)  8 bytes 1 s
        -> l, dx
    """)
    found = chain_of(step, max_cuts=100)
    assert found.places == (0, 1, 2, 3, 4, 5)
    assert [names(step, c) for c in found.crossing] == [
        set(),
        {"a"},
        {"a", "b"},
        {"a", "c"},
        {"e"},
        set(),
    ]
    # From cut 1 to cut 3 only c is new; a is there already.
    assert found.cut_bytes[1, 3] == 4
    assert found.cut_bytes[0, 3] == 20
    # The backward needs what lies before cut 4 first when kb reads a, at time 2.
    assert found.times[4] == 2


def test_the_narrow_places_of_a_residual_network_are_its_stream():
    step = residual(8)
    found = chain_of(step, max_cuts=12)
    # Inside a block the stream and the branch cross together.
    assert [len(crosses) for crosses in found.crossing[1:-1]] == [1] * (len(found) - 2)


def test_uniform_chains_are_cut_evenly():
    found = chain_of(chain(300), max_cuts=50)
    gaps = [b - a for a, b in pairwise(found.places)]
    assert 25 <= len(found) <= 50
    assert max(gaps[1:-1]) <= 2 * min(gaps[1:-1])


@by_name
def test_tables_agree_with_the_simulator(step):
    fine = chain_of(step, max_cuts=64)
    for choice in ladder(fine, levels=12):
        kept = choice.kept()
        timeline = simulate(step, from_kept(step, kept))
        extra = timeline.seconds - step.baseline_seconds
        assert extra == pytest.approx(choice.seconds, rel=1e-6, abs=1e-12)
        assert timeline.peak_bytes <= choice.peak_bytes
        assert timeline.peak_bytes >= 0.85 * choice.peak_bytes


@by_name
def test_saving_everything_is_the_baseline(step):
    fine = chain_of(step, max_cuts=64)
    assert fine.saved_peak[0, -1] == step.baseline_peak_bytes


def small(step: StepGraph) -> Chain:
    found = chain_of(step, max_cuts=8)
    assert 5 <= len(found) <= 8
    return found


@by_name
def test_the_least_peak_is_that_of_all_choices(step):
    found = small(step)
    peaks = [c.peak_bytes for c in every_choice(found)]
    assert least_peak(found).peak_bytes == min(peaks)


@by_name
def test_the_least_seconds_are_those_of_all_choices(step):
    found = small(step)
    every = every_choice(found)
    lowest = min(c.peak_bytes for c in every)
    for share in (0.0, 0.2, 0.5, 0.8, 1.0):
        budget = int(lowest + share * (step.baseline_peak_bytes - lowest))
        chosen = least_seconds(found, budget)
        assert chosen is not None
        assert chosen.peak_bytes <= budget
        best = min(c.seconds for c in every if c.peak_bytes <= budget)
        assert chosen.seconds == pytest.approx(best, rel=1e-9, abs=1e-15)
    assert least_seconds(found, lowest - 1) is None


@by_name
def test_the_static_optimum_is_that_of_all_cuts(step):
    found = small(step)

    def static_bytes(cuts: tuple[int, ...]) -> int:
        spans = list(pairwise(cuts))
        kept = sum(int(found.cut_bytes[span]) for span in spans)
        return kept + max(int(found.again_peak[span]) for span in spans)

    every = {choice.cuts for choice in every_choice(found)}
    assert static_bytes(static_paths(found)[0]) == min(map(static_bytes, every))


def test_a_plain_chain_gives_the_published_optimum():
    # Without skips every cut has bytes of its own, and the published recurrence with
    # these segment peaks finds the same least peak.
    found = chain_of(chain(12, widths=(64, 16, 128, 32)), max_cuts=100)
    last = len(found) - 1
    sizes = [int(found.cut_bytes[max(0, j - 1), j]) for j in range(last + 1)]
    # M(i) = d_i + min over j > i of max(M(j), U(i, j)), and which j that was.
    published = {last: (sizes[last], (last,))}
    for i in range(last - 1, -1, -1):
        peak, j = min(
            (max(published[j][0], int(found.again_peak[i, j])), j)
            for j in range(i + 1, last + 1)
        )
        published[i] = sizes[i] + peak, (i, *published[j][1])
    peak, cuts = published[0]
    again = Choice.of(found, cuts, [False] * (len(cuts) - 1))
    assert again.peak_bytes == peak
    assert least_peak(found).peak_bytes <= peak


@pytest.mark.parametrize("step", CHAINS, ids=lambda step: step.name)
def test_a_sequence_without_nesting_is_lowered_to_the_same_work(step):
    fine = chain_of(step, max_cuts=48)
    for choice in ladder(fine, levels=6):
        stages = list(enumerate(choice.saved))
        moves: list[Forward | Backward] = [
            Forward(stage, "all" if saved else "input") for stage, saved in stages
        ]
        for stage, saved in reversed(stages):
            moves += [] if saved else [Forward(stage, "all")]
            moves.append(Backward(stage))
        lowered = _Lowering(fine.at(choice.cuts), holds=True).lower(moves)
        kept = choice.kept()
        assert sorted(lowered) == sorted(sequence_from_kept(step, kept))
        simulate(step, with_frees(step, lowered))


@pytest.mark.parametrize("step", [*GRAPHS, *(random_dag(s, 20) for s in range(40))])
def test_every_choice_is_valid_on_any_step(step):
    fine = chain_of(step, max_cuts=32)
    for choice in ladder(fine, levels=3):
        simulate(step, from_kept(step, choice.kept()))

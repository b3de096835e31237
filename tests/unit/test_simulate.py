"""The simulator on graphs small enough to work out by hand."""

from __future__ import annotations

import pytest

from lowtide import Free, Run, StepGraph, simulate
from lowtide.errors import InvalidScheduleError
from lowtide.step.schedule import with_frees
from lowtide.step.walk import walk

# While hb runs: x 8 + a 16 + b 40 + c 4 + db 40 = 108. Without a: 92.
PLAIN = StepGraph.from_text("""
    resident x 8
    a  = f(x)       16 bytes  1 s
    b  = g(a)       40 bytes  1 s
    c  = h(b)        4 bytes  1 s
    db = hb(b)      40 bytes  1 s
    da = gb(a, db)  16 bytes  2 s
    -> c, da
""")
A, B, C, DB, DA = range(1, 6)
F, G, H, HB, GB = range(5)

TURNING = StepGraph.from_text("""
    resident x 8
    a     = f(x)           16 bytes    1 s
    b, m  = g(a)           40 4 bytes  1 s  random
    b     = g_again(a, m)  40 bytes    1 s  standby
    c     = h(b)            4 bytes    1 s  scratch 100
    turn(c) -> d            4 bytes
    da    = gb(a, b, d)    16 bytes    2 s
    -> c, da
""")


def test_peak_and_time_of_the_baseline() -> None:
    timeline = simulate(PLAIN, with_frees(PLAIN, PLAIN.baseline))
    assert timeline.peak_bytes == 108
    assert timeline.seconds == 6.0
    # f 24, g 64, h 68, hb 108, free b 68, gb 84, free a 68, free db 28
    assert timeline.live_bytes == (24, 64, 68, 108, 68, 84, 68, 28)
    assert timeline.peak_index == 3


def test_running_an_op_again_lowers_the_peak_and_costs_its_time() -> None:
    schedule = [
        Run(F), Run(G), Free(A), Run(H), Run(HB), Free(B), Run(F), Run(GB),
    ]  # fmt: skip
    timeline = simulate(PLAIN, schedule)
    assert timeline.peak_bytes == 92
    assert timeline.seconds == 7.0


def test_scratch_counts_only_while_its_op_runs() -> None:
    schedule = with_frees(TURNING, TURNING.baseline)
    live = dict(zip(schedule, simulate(TURNING, schedule).live_bytes, strict=True))
    # x 8 + a 16 + b 40 + c 4 + scratch 100 = 168; m is freed before.
    assert live[Run(3)] == 168
    assert live[Run(4)] == 8 + 16 + 40 + 4 + 4


def test_an_op_that_makes_a_live_storage_again_needs_room_for_both() -> None:
    schedule = [Run(F), Run(F), Run(G), Run(H), Run(HB), Run(GB)]
    # The second f holds x 8 + the old a 16 + the new a 16.
    assert simulate(PLAIN, schedule).live_bytes[1] == 40


def test_sizes_are_rounded_up_to_what_the_allocator_gives() -> None:
    from dataclasses import replace

    rounded = replace(PLAIN, alignment_bytes=64)
    # x, a, b, c, db at 64 bytes each.
    assert rounded.baseline_peak_bytes == 5 * 64
    assert rounded.resident_bytes == 64


@pytest.mark.parametrize(
    ("schedule", "index", "reason"),
    [
        ([Run(G)], 0, "reads storage 1 (a), not alive"),
        ([Run(F), Free(A), Free(A)], 2, "is not alive here"),
        ([Run(F), Free(0)], 1, "must live to the end"),
        ([Run(F), Run(99)], 1, "there is no op 99"),
        ([Run(F), Run(G), Free(A), Run(H), Run(HB), Run(GB)], 5, "(a), not alive"),
        ([Run(F), Run(G), Run(H)], 3, "output 5 (da) is not there at the end"),
        ([Run(F), Run(G), Run(H), Free(C)], 3, "must live to the end"),
    ],
)
def test_the_first_item_that_breaks_a_schedule_is_named(
    schedule: list[Run | Free], index: int, reason: str
) -> None:
    with pytest.raises(InvalidScheduleError) as caught:
        simulate(PLAIN, schedule)
    assert caught.value.index == index
    assert reason in str(caught.value)


def test_an_op_that_draws_random_numbers_runs_exactly_once() -> None:
    f, g, again, h, turn, gb = map(Run, range(6))
    with pytest.raises(InvalidScheduleError, match="only once and in its order"):
        simulate(TURNING, [f, g, Free(2), g, h, turn, gb])
    with pytest.raises(InvalidScheduleError, match="only once and in its order"):
        # The draw would happen in the backward, after other draws of the step.
        simulate(_late_draw(), [Run(0), Run(2), Run(1), Run(3)])
    replayed = [f, g, h, turn, Free(2), again, gb]
    assert simulate(TURNING, replayed).seconds == 6.0


def _late_draw() -> StepGraph:
    return StepGraph.from_text("""
        resident x 8
        a = f(x)     8 bytes 1 s
        m = r(x)     8 bytes 1 s random
        turn(a) -> d 8 bytes
        g = b(m, d)  8 bytes 1 s
        -> a, g
    """)


def test_regions_are_opened_in_order() -> None:
    f, g, _, h, turn, gb = map(Run, range(6))
    with pytest.raises(InvalidScheduleError, match="opens region 1, but region 1"):
        simulate(TURNING, [f, g, h, turn, turn, gb])


def test_every_draw_must_happen_even_if_nobody_needs_it() -> None:
    step = StepGraph.from_text("""
        resident x 8
        a = f(x)  8 bytes 1 s
        m = r(x)  8 bytes 1 s random
        -> a
    """)
    with pytest.raises(InvalidScheduleError, match="0 of the 1 ops"):
        simulate(step, [Run(0)])


def test_kinds_add_up_and_recomputed_storages_are_told_apart() -> None:
    f, g, again, h, turn, gb = map(Run, range(6))
    schedule = [f, g, Free(1), h, Free(2), turn, f, again, Free(3), gb]
    timeline = simulate(TURNING, schedule)
    walked = walk(TURNING, schedule)
    runs = [i for i, item in enumerate(schedule) if isinstance(item, Run)]
    for run, index in enumerate(runs):
        total = sum(column[run] for column in walked.by_kind.values())
        assert total == walked.runs[run].live_bytes == timeline.live_bytes[index]
    left = [
        sum(columns) for columns in zip(*walked.by_kind_after.values(), strict=True)
    ]
    assert left == [run.after_bytes for run in walked.runs]
    assert walked.by_kind["recomputed"][-1] == 16 + 40
    assert walked.by_kind["temporary"][2] == 100

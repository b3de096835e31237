"""`rotor` against a search over every sequence, for chains of up to five stages."""

import heapq
import math
import random
import time
from collections.abc import Iterator

import numpy as np
import pytest

from lowtide import chains
from lowtide.chains import Backward, Forward, Stage, StageOption
from lowtide.errors import BudgetTooSmallError


def search(stages: list[Stage], memory: int, input_bytes: int) -> float:
    """Return the least time over all sequences within `memory`, or infinity.

    Dijkstra over what is held; shares no accounting with the package. A state is the
    values held alone, the stages saved (with the option), the value whose gradient is
    held, and the value the last step made, if that was all it made: only that one may
    be dropped, by the very next step. So all that is kept stays until its backward.
    """
    n = len(stages)
    size = [input_bytes] + [stage.output_bytes for stage in stages]
    gradient = [0] + [stage.output_gradient_bytes for stage in stages]
    start = (frozenset({0}), (-1,) * n, n, -1)
    least = {start: 0.0}
    queue = [(0.0, 0, start)]
    num_pushed = 0
    while queue:
        now, _, state = heapq.heappop(queue)
        if now > least[state]:
            continue
        values, saved, gradient_of, newest = state
        if gradient_of == 0:
            return now
        live = sum(size[k] for k in values) + gradient[gradient_of]
        live += sum(
            stages[i].ways[option].saved_bytes
            for i, option in enumerate(saved)
            if option >= 0
        )

        def has(k: int, values=values, saved=saved) -> bool:
            return k in values or (k > 0 and saved[k - 1] >= 0)

        reached = []
        for i in range(gradient_of):
            if not has(i):
                continue
            stage = stages[i]
            if i == gradient_of - 1 and saved[i] >= 0:
                way = stage.ways[saved[i]]
                if live + way.backward_scratch_bytes <= memory:
                    after = (values - {i}, replaced(saved, i, -1), i, -1)
                    reached.append((way.backward_seconds, after))
            if has(i + 1):
                continue
            if live + stage.output_bytes + stage.forward_scratch_bytes <= memory:
                more = values | {i + 1}
                after = (more, saved, gradient_of, i + 1)
                reached.append((stage.forward_seconds, after))
                if newest == i:
                    after = (more - {i}, saved, gradient_of, i + 1)
                    reached.append((stage.forward_seconds, after))
            for option, way in enumerate(stage.ways):
                if live + way.saved_bytes + way.forward_scratch_bytes <= memory:
                    after = (values, replaced(saved, i, option), gradient_of, -1)
                    reached.append((way.forward_seconds, after))
        for seconds, after in reached:
            if now + seconds < least.get(after, math.inf):
                least[after] = now + seconds
                num_pushed += 1
                heapq.heappush(queue, (now + seconds, num_pushed, after))
    return math.inf


def replaced(saved: tuple[int, ...], i: int, option: int) -> tuple[int, ...]:
    return (*saved[:i], option, *saved[i + 1 :])


def random_stage(rng: random.Random, *, num_options: int) -> Stage:
    output = rng.randrange(8)
    scratch = rng.choice([0, 5])

    def numbers() -> dict[str, int]:
        return {
            "forward_seconds": rng.randrange(1, 9),
            "backward_seconds": rng.randrange(1, 9),
            "saved_bytes": output + rng.randrange(9),
            "forward_scratch_bytes": rng.randrange(scratch + 1),
            "backward_scratch_bytes": rng.randrange(scratch + 1),
        }

    return Stage(
        **numbers(),
        output_bytes=output,
        gradient_bytes=rng.choice([None, rng.randrange(8)]),
        options=tuple(StageOption(**numbers()) for _ in range(num_options)),
    )


def random_cases(
    count: int, *, longest: int = 5, num_options: int = 0
) -> Iterator[tuple[random.Random, list[Stage], int]]:
    rng = random.Random(f"rotor {longest} {num_options}")
    for _ in range(count):
        n = rng.randrange(1, longest + 1)
        stages = [random_stage(rng, num_options=num_options) for _ in range(n)]
        yield rng, stages, rng.randrange(6)


def check(stages: list[Stage], memory: int, input_bytes: int, **options) -> float:
    """Return the time of `rotor`, after checking all it claims."""
    found = chains.rotor(stages, memory, input_bytes=input_bytes, **options)
    timeline = chains.simulate_rotor(stages, found.sequence, input_bytes=input_bytes)
    assert timeline.seconds == found.seconds
    assert timeline.peak_bytes == found.peak_bytes <= memory
    return found.seconds


@pytest.mark.parametrize(("num_options", "count"), [(0, 300), (2, 100)])
def test_time_is_the_least_over_all_sequences(num_options: int, count: int) -> None:
    longest = 5 if num_options == 0 else 4
    for rng, stages, input_bytes in random_cases(
        count, longest=longest, num_options=num_options
    ):
        floor = chains.rotor_floor(stages, input_bytes=input_bytes)
        # Integer times add up exactly, and these limits have fewer than 500 slots.
        for memory in {floor, floor + rng.randrange(12), floor + rng.randrange(30)}:
            found = check(stages, memory, input_bytes)
            assert found == search(stages, memory, input_bytes), (stages, memory)


def test_scratch_of_a_forward_that_saves_nothing_counts() -> None:
    # Saving takes no scratch here and passing takes much, so what is too small to pass
    # through a stage may still be enough to save it.
    rng = random.Random("scratch")
    for _ in range(80):
        stages = []
        for _ in range(rng.randrange(3, 6)):
            output = rng.randrange(3)
            saving = StageOption(1, 1, output + rng.randrange(9))
            scratch = rng.choice([0, rng.randrange(20)])
            stages.append(
                Stage(1, 1, output, saving.saved_bytes, None, scratch, 0, (saving,))
            )
        floor = chains.rotor_floor(stages)
        for memory in {floor, floor + rng.randrange(5), floor + rng.randrange(15)}:
            assert check(stages, memory, 0) == search(stages, memory, 0)


@pytest.mark.parametrize("num_options", [0, 1])
def test_floor_is_the_least_memory_of_any_sequence(num_options: int) -> None:
    for _, stages, input_bytes in random_cases(120, num_options=num_options):
        floor = chains.rotor_floor(stages, input_bytes=input_bytes)
        assert search(stages, floor, input_bytes) < math.inf
        assert search(stages, floor - 1, input_bytes) == math.inf
        for memory in {0, floor // 2, floor - 1}:
            with pytest.raises(BudgetTooSmallError) as caught:
                chains.rotor(stages, memory, input_bytes=input_bytes)
            assert caught.value.floor_bytes == floor
            assert caught.value.budget_bytes == memory
            assert caught.value.blame.startswith(("the forward of", "the backward of"))


def test_blame_names_the_step_that_holds_the_floor() -> None:
    small = Stage(1, 1, output_bytes=1, saved_bytes=2)
    large = Stage(1, 1, output_bytes=1, saved_bytes=2, backward_scratch_bytes=90)
    with pytest.raises(BudgetTooSmallError) as caught:
        chains.rotor([small, small, large, small], 10)
    assert caught.value.blame == "the backward of stage 2"


def test_coarse_slots_never_exceed_the_limit_and_never_fail() -> None:
    for rng, stages, input_bytes in random_cases(150, longest=9, num_options=1):
        floor = chains.rotor_floor(stages, input_bytes=input_bytes)
        memory = floor + rng.randrange(20)
        best = check(stages, memory, input_bytes)
        for slots in (1, 3, 7, 20):
            assert check(stages, memory, input_bytes, slots=slots) >= best


def scaled(stages: list[Stage], factor: int) -> list[Stage]:
    return [
        Stage(
            stage.forward_seconds,
            stage.backward_seconds,
            stage.output_bytes * factor,
            stage.saved_bytes * factor,
            stage.output_gradient_bytes * factor,
            stage.forward_scratch_bytes * factor,
            stage.backward_scratch_bytes * factor,
        )
        for stage in stages
    ]


def test_a_common_divisor_makes_huge_sizes_exact() -> None:
    factor = 3**20
    for rng, stages, input_bytes in random_cases(80, longest=10):
        memory = chains.rotor_floor(stages, input_bytes=input_bytes) + rng.randrange(15)
        small = check(stages, memory, input_bytes)
        # A limit between two multiples is worth the lower one. With this few slots any
        # size but the divisor would round.
        limit = memory * factor + rng.randrange(factor)
        large = scaled(stages, factor)
        assert check(large, limit, input_bytes * factor, slots=memory + 1) == small


def realistic(n: int, seed: str) -> list[Stage]:
    rng = random.Random(seed)
    stages = []
    for _ in range(n):
        output = rng.randrange(10**6, 10**8)
        saved = output + rng.randrange(3 * 10**8)
        scratch = rng.randrange(10**7)
        stages.append(
            Stage(rng.random(), 2 * rng.random(), output, saved, None, scratch, scratch)
        )
    return stages


@pytest.mark.slow
def test_rounding_costs_little_time() -> None:
    losses: list[float] = []
    for seed in ("rounding", "a", "b"):
        stages = realistic(30, seed)
        floor = chains.rotor_floor(stages)
        top = sum(stage.saved_bytes for stage in stages)
        for share in (0.0, 0.02, 0.05, 0.1, 0.3, 0.6):
            memory = int(floor + share * (top - floor))
            fine = check(stages, memory, 0, slots=6000)
            assert check(stages, memory, 0) <= 1.01 * fine
            losses.append(check(stages, memory, 0, slots=60) / fine - 1)
    # Measured 0.3 % with 60 slots; 1.1 % without looking above what is left.
    assert max(losses) < 0.02
    assert sum(losses) / len(losses) < 0.006


def test_more_memory_never_costs_time_when_slots_are_exact() -> None:
    for _, stages, input_bytes in random_cases(40, longest=8, num_options=1):
        floor = chains.rotor_floor(stages, input_bytes=input_bytes)
        times = [check(stages, floor + k, input_bytes) for k in range(0, 60, 4)]
        assert times == sorted(times, reverse=True)
        enough = chains.rotor(stages, 10**6, input_bytes=input_bytes)
        assert enough.seconds == sum(
            min(way.forward_seconds + way.backward_seconds for way in stage.ways)
            for stage in stages
        )


def test_tight_chain_runs_a_prefix_many_times() -> None:
    # Only two values and one saved stage fit beside the gradient, so every stage is
    # reached from the input again: 5 + 4 + 3 + 2 + 1 forwards.
    stages = [Stage(1, 1, output_bytes=1, saved_bytes=2)] * 5
    floor = chains.rotor_floor(stages, input_bytes=1)
    assert floor == 5  # input 1, value 1, saved 2, gradient 1
    found = chains.rotor(stages, floor, input_bytes=1)
    assert found.seconds == 15 + 5
    kinds = [step.keep for step in found.sequence if isinstance(step, Forward)]
    assert kinds.count("all") == 5


def test_large_chain_is_solved_in_seconds() -> None:
    stages = realistic(100, "large")
    memory = 2 * chains.rotor_floor(stages)
    start = time.perf_counter()
    check(stages, memory, 0)
    # Measured 0.8 s; 200 stages take 4 s.
    assert time.perf_counter() - start < 10


# Stage 0 turns 3 bytes into 4 and saves 6; stage 1 turns 4 into 2 and saves 5.
HAND = [
    Stage(1, 10, output_bytes=4, saved_bytes=6, gradient_bytes=7),
    Stage(2, 20, 2, 5, None, 100, 200, options=(StageOption(3, 30, 2, 50, 60),)),
]


def test_simulation_by_hand() -> None:
    timeline = chains.simulate_rotor(
        HAND,
        [
            Forward(0, "input"),  # 3 + 4, and the gradient of the output, 2: 9
            Forward(1, "all", option=1),  # 9 + 2, scratch 50: 61
            Backward(1),  # 11, scratch 60: 71; then 3 and the gradient of value 1, 7
            Forward(0, "all"),  # 10 + 6: 16
            Backward(0),  # 16
        ],
        input_bytes=3,
    )
    assert timeline.live_bytes == (9, 61, 71, 16, 16)
    assert timeline.peak_bytes == 71
    assert timeline.seconds == 1 + 3 + 30 + 1 + 10
    everything = [Forward(0, "all"), Forward(1, "all"), Backward(1), Backward(0)]
    # 3 + 2 + 6; then 5 more, with scratch 100 and 200; then gradient 7 for 5 and 2: 16.
    timeline = chains.simulate_rotor(HAND, everything, input_bytes=3)
    assert timeline.live_bytes == (11, 116, 216, 16)


def test_forward_that_keeps_nothing_drops_its_input() -> None:
    # Outputs of 5, 7 and 1 bytes, no gradients; the middle forward has scratch 30.
    stages = [Stage(1, 1, 5, 5, 0), Stage(1, 1, 7, 7, 0, 30), Stage(1, 1, 1, 1, 0)]
    sequence = [Forward(0, "input"), Forward(1, "nothing"), Forward(2, "all")]
    sequence += [Backward(2), Forward(0, "all"), Forward(1, "all")]
    sequence += [Backward(1), Backward(0)]
    timeline = chains.simulate_rotor(stages, sequence)
    assert timeline.live_bytes == (5, 42, 8, 8, 5, 42, 12, 5)


@pytest.mark.parametrize(
    ("sequence", "message"),
    [
        ([Forward(1, "all")], "step 0 .* value 1, its input, is not held"),
        ([Forward(0, "nothing"), Forward(0, "all")], "step 1 .* value 0, its input"),
        ([Forward(2, "all")], "there are 2 stages"),
        (
            [Forward(0, "all"), Forward(0, "all")],
            "value 1, its output, is already held",
        ),
        ([Forward(0, "all", option=1)], "the stage has 1 options"),
        ([Forward(0, "some")], "keep is 'some'"),
        ([Forward(0, "all"), Backward(0)], "step 1 .* that of value 2"),
        ([Forward(0, "input"), Backward(1)], "step 1 .* nothing was saved"),
        ([Forward(0, "all")], "ends before the backward of stage 1"),
        (
            [
                Forward(0, "nothing"),
                Forward(1, "all"),
                Backward(1),
                Backward(0),
            ],
            "step 3 .* value 0, its input, is not held",
        ),
        (
            [Forward(0, "all"), Forward(1, "all"), Backward(1), Forward(1, "all")],
            "step 3 .* its backward is done",
        ),
    ],
)
def test_invalid_sequences_are_refused(sequence, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        chains.simulate_rotor(HAND, sequence, input_bytes=3)


def test_bad_arguments_are_refused() -> None:
    stage = Stage(1, 1, 1, 1)
    with pytest.raises(ValueError, match="stages is empty"):
        chains.rotor([], 10)
    with pytest.raises(ValueError, match="memory is -1"):
        chains.rotor([stage], -1)
    with pytest.raises(ValueError, match=r"memory is 1\.5"):
        chains.rotor([stage], 1.5)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="input_bytes is -2"):
        chains.rotor([stage], 10, input_bytes=-2)
    with pytest.raises(ValueError, match="slots is 0"):
        chains.rotor([stage], 10, slots=0)
    with pytest.raises(ValueError, match="exbibyte"):
        chains.rotor([Stage(1, 1, 2**60, 2**60)], 10)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"forward_seconds": math.nan}, "forward_seconds is nan"),
        ({"backward_seconds": -1}, "backward_seconds is -1"),
        ({"forward_seconds": "fast"}, "forward_seconds is 'fast'"),
        ({"output_bytes": -1}, "output_bytes is -1"),
        ({"saved_bytes": 2.5}, r"saved_bytes is 2\.5"),
        ({"saved_bytes": 3}, "saved_bytes 3, less than the output_bytes 4"),
        ({"options": (StageOption(1, 1, 2),)}, "option 1 .* saved_bytes 2"),
    ],
)
def test_bad_stages_are_refused(change: dict, message: str) -> None:
    good = {
        "forward_seconds": 1,
        "backward_seconds": 1,
        "output_bytes": 4,
        "saved_bytes": 5,
    }
    with pytest.raises(ValueError, match=message):
        Stage(**(good | change))


def test_numpy_integers_are_bytes() -> None:
    stage = Stage(1.0, 1.0, np.int64(4), np.int32(6))  # type: ignore[arg-type]
    assert type(stage.saved_bytes) is int
    assert chains.rotor([stage], np.int64(10)).peak_bytes == 10

"""The chain of stages of `rotor`: its inputs, its sequences, and what they take.

Stage i turns value i into value i + 1. What a sequence may do with it:

| step | runs | held afterwards |
|---|---|---|
| `Forward(i, "nothing")` | the stage | value i + 1; value i is dropped |
| `Forward(i, "input")` | the stage | values i and i + 1 |
| `Forward(i, "all")` | the stage | value i, and all that backward needs, i + 1 in it |
| `Backward(i)` | its backward | the gradient of value i |

`Backward(i)` needs the gradient of value i + 1, what `Forward(i, "all")` saved, and
value i (held alone, or within what stage i - 1 saved); it frees them all but what stage
i - 1 saved. The gradient of the last value counts from the start, as in the published
recurrence. The gradient of value i counts from the end of `Backward(i)` on: where it
cannot overwrite anything, include it in the stage's `backward_scratch_bytes`. The
gradient of the chain's own input is not counted.
"""

import math
import operator
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Literal, SupportsFloat


@dataclass(frozen=True, slots=True)
class StageOption:
    """One way to run a stage forward saving all it needs, and its backward.

    `saved_bytes` is what lives from that forward to the backward, the stage's output
    included, its input not. Scratch is alive only while the pass runs.
    """

    forward_seconds: float
    backward_seconds: float
    saved_bytes: int
    forward_scratch_bytes: int = 0
    backward_scratch_bytes: int = 0

    def __post_init__(self) -> None:
        """Refuse negative, fractional or undefined quantities."""
        _check_quantities(self)


@dataclass(frozen=True, slots=True)
class Stage:
    """One stage of a chain: times, the value it makes, and what its backward needs.

    The fields shared with `StageOption` describe the stage's own way of saving, option
    0; `options` are further ways, numbered from 1. A forward that saves nothing takes
    `forward_seconds` and `forward_scratch_bytes`. `gradient_bytes` is the size of the
    gradient of the output, and by default the output's own.
    """

    forward_seconds: float
    backward_seconds: float
    output_bytes: int
    saved_bytes: int
    gradient_bytes: int | None = None
    forward_scratch_bytes: int = 0
    backward_scratch_bytes: int = 0
    options: tuple[StageOption, ...] = ()

    def __post_init__(self) -> None:
        """Refuse bad quantities, and ways of saving that forget the output."""
        _check_quantities(self)
        for number, way in enumerate(self.ways):
            if way.saved_bytes < self.output_bytes:
                raise ValueError(
                    f"option {number} of the stage has saved_bytes {way.saved_bytes}, "
                    f"less than the output_bytes {self.output_bytes} it includes. Add "
                    f"the output to saved_bytes."
                )

    @property
    def ways(self) -> tuple[StageOption, ...]:
        """All ways to run the stage with saving: its own first, then `options`."""
        own = StageOption(
            self.forward_seconds,
            self.backward_seconds,
            self.saved_bytes,
            self.forward_scratch_bytes,
            self.backward_scratch_bytes,
        )
        return (own, *self.options)

    @property
    def output_gradient_bytes(self) -> int:
        """`gradient_bytes`, or the output's size where none was given."""
        given = self.gradient_bytes
        return self.output_bytes if given is None else given


@dataclass(frozen=True, slots=True)
class Forward:
    """Run `stage` forward and hold "nothing", its "input", or "all" backward needs.

    `option` says which way of saving, and means something with "all" only.
    """

    stage: int
    keep: Literal["nothing", "input", "all"]
    option: int = 0


@dataclass(frozen=True, slots=True)
class Backward:
    """Run the backward of `stage`."""

    stage: int


RotorStep = Forward | Backward


@dataclass(frozen=True, slots=True)
class RotorTimeline:
    """What a sequence takes: `live_bytes[k]` while step k runs, scratch included."""

    peak_bytes: int
    seconds: float
    live_bytes: tuple[int, ...]


def simulate_rotor(
    stages: Sequence[Stage], sequence: Sequence[RotorStep], *, input_bytes: int = 0
) -> RotorTimeline:
    """Return the exact time and bytes of `sequence`, a whole forward and backward.

    Raises:
        ValueError: a step needs what is not held, or the sequence ends too early; the
            message names the first step that breaks.

    >>> stage = Stage(1.0, 2.0, output_bytes=4, saved_bytes=6)
    >>> simulate_rotor([stage], [Forward(0, "all"), Backward(0)], input_bytes=3)
    RotorTimeline(peak_bytes=13, seconds=3.0, live_bytes=(13, 13))
    """
    state = _Held(stages, input_bytes)
    samples: list[tuple[float, int]] = []
    for position, step in enumerate(sequence):
        if problem := state.problem_with(step):
            raise ValueError(
                f"step {position} of the sequence, {step}, cannot run: {problem}. "
                f"Correct the sequence there."
            )
        samples.append(state.run(step))
    if state.gradient_of:
        raise ValueError(
            f"the sequence of {len(sequence)} steps ends before the backward of stage "
            f"{state.gradient_of - 1}. Append what is missing."
        )
    live_bytes = tuple(live for _, live in samples)
    peak = max(live_bytes, default=input_bytes)
    return RotorTimeline(peak, math.fsum(seconds for seconds, _ in samples), live_bytes)


class _Held:
    """What a sequence holds at one moment."""

    def __init__(self, stages: Sequence[Stage], input_bytes: int) -> None:
        self.stages = stages
        self.value_bytes = [input_bytes, *(stage.output_bytes for stage in stages)]
        self.gradient_bytes = [0, *(stage.output_gradient_bytes for stage in stages)]
        self.ways = [stage.ways for stage in stages]
        self.values = {0}
        self.saved: dict[int, StageOption] = {}
        self.gradient_of = len(stages)
        self.live = input_bytes + self.gradient_bytes[-1]

    def problem_with(self, step: RotorStep) -> str:
        """Return why `step` cannot run now, or nothing."""
        stage = step.stage
        if not 0 <= stage < len(self.stages):
            return f"there are {len(self.stages)} stages, numbered from 0"
        if not self._has(stage):
            return f"value {stage}, its input, is not held"
        if isinstance(step, Backward):
            if self.gradient_of != stage + 1:
                return f"the gradient held is that of value {self.gradient_of}"
            return "" if stage in self.saved else "nothing was saved for it"
        if step.keep not in ("nothing", "input", "all"):
            return f"keep is {step.keep!r}, not 'nothing', 'input' or 'all'"
        if stage >= self.gradient_of:
            return "its backward is done"
        if self._has(stage + 1):
            return f"value {stage + 1}, its output, is already held"
        options = len(self.ways[stage])
        return "" if 0 <= step.option < options else f"the stage has {options} options"

    def run(self, step: RotorStep) -> tuple[float, int]:
        """Apply `step`; return its seconds and the bytes alive while it runs."""
        if isinstance(step, Backward):
            way = self.saved.pop(step.stage)
            running = self.live + way.backward_scratch_bytes
            self.live += self.gradient_bytes[step.stage] - way.saved_bytes
            self.live -= self.gradient_bytes[step.stage + 1]
            self._drop(step.stage)
            self.gradient_of = step.stage
            return way.backward_seconds, running
        if step.keep == "all":
            way = self.ways[step.stage][step.option]
            self.saved[step.stage] = way
            self.live += way.saved_bytes
            return way.forward_seconds, self.live + way.forward_scratch_bytes
        stage = self.stages[step.stage]
        self.values.add(step.stage + 1)
        self.live += stage.output_bytes
        running = self.live + stage.forward_scratch_bytes
        if step.keep == "nothing":
            self._drop(step.stage)
        return stage.forward_seconds, running

    def _has(self, value: int) -> bool:
        return value in self.values or value - 1 in self.saved

    def _drop(self, value: int) -> None:
        if value in self.values:
            self.values.remove(value)
            self.live -= self.value_bytes[value]


def checked_bytes(number: Any, name: str) -> int:
    """Return `number` as a Python int, or raise if it is no count of bytes."""
    with suppress(TypeError):
        if operator.index(number) >= 0:
            return operator.index(number)
    raise ValueError(
        f"{name} is {number!r}, and bytes are whole numbers from zero up. Pass an "
        f"integer."
    )


def _check_quantities(record: Stage | StageOption) -> None:
    for name in record.__slots__:
        quantity = getattr(record, name)
        if name.endswith("_bytes") and quantity is not None:
            # NumPy integers become Python ones, which cannot overflow.
            object.__setattr__(record, name, checked_bytes(quantity, name))
        elif name.endswith("_seconds") and not (
            isinstance(quantity, SupportsFloat) and 0 <= float(quantity) < math.inf
        ):
            raise ValueError(
                f"{name} is {quantity!r}, and a time is finite and not negative. "
                f"Correct the measurement."
            )

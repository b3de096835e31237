"""lowtide beside other methods, in one run: real peaks, time in turns, equal numbers.

Peaks are taken in a fresh process for each method, because the operating system keeps
one high-water mark for each process. Times are taken here, all methods taking turns, so
that a busy machine is busy for all of them. Gradients, buffers and random numbers are
compared bit by bit with those of eager.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from statistics import median
from typing import Any

import torch
from torch import nn

from lowtide.engine.bits import same_bits
from lowtide.engine.checks.meter import allocated_peak, rss_peak, timed
from lowtide.engine.checks.verify import Numbers, differences, numbers_of
from lowtide.engine.jobs.bench.methods import Method, NotApplicableError
from lowtide.engine.training import arguments_of, training_step

Progress = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class Row:
    """One method on one model. Peaks are of the whole step; 0 where not measured.

    `activation_peak_bytes` leaves out what is there before the step and the gradients
    of parameters. A plan made for another method's peak names it in `matches`.
    `largest_difference` is that of any gradient, as a share of its largest value: about
    1e-6 where results are only rounded differently, about 1 where they are wrong.
    """

    name: str
    label: str
    peak_bytes: int = 0
    rss_peak_bytes: int = 0
    activation_peak_bytes: int = 0
    seconds: float = 0.0
    time_ratio: float = 0.0
    is_loss_equal: bool = True
    num_gradients: int = 0
    num_wrong_gradients: int = 0
    largest_difference: float = 0.0
    num_wrong_buffers: int = 0
    is_random_state_equal: bool = True
    predicted_peak_bytes: int = 0
    predicted_time_ratio: float = 0.0
    bound_time_ratio: float = 0.0
    matches: str = ""
    problem: str = ""

    @property
    def is_exact(self) -> bool:
        """Whether everything the step computes is what eager computes."""
        wrong = self.num_wrong_gradients + self.num_wrong_buffers
        return not wrong and self.is_loss_equal and self.is_random_state_equal

    def to_dict(self) -> dict[str, Any]:
        return {**asdict(self), "is_exact": self.is_exact}


class Runner:
    """One method on a copy of the model, ready to run steps."""

    def __init__(self, method: Method, model: nn.Module, batch: Any, loss: Any):
        self.method = method
        self.model = copy.deepcopy(model)
        self.step = training_step(self.model, loss, arguments_of(batch))
        method.install(self.model)

    def first_step(self) -> Numbers:
        """The first step from a fixed seed, with all that it computed."""
        torch.manual_seed(0)
        with self.method.during_first():
            return numbers_of(self.step, [self.model])


def compare_methods(
    methods: Sequence[Method],
    model: nn.Module,
    batch: Any,
    loss: Any,
    *,
    steps: int = 5,
    known: Sequence[Row] = (),
    progress: Progress | None = None,
) -> list[Row]:
    """Times and equality of each method; the first is what the others are held to.

    What is known of a method already, such as its peak, is taken from `known`.
    """
    by_name = {row.name: row for row in known}
    rows: list[Row] = []
    runners: list[tuple[int, Runner]] = []
    expected: Numbers | None = None
    for method in methods:
        if progress is not None:
            progress(method.label)
        row = by_name.get(method.name, Row(method.name, method.label))
        try:
            runner = Runner(method, model, batch, loss)
            found = runner.first_step()
        except Exception as error:  # another method's failure is a result
            problem = (str(error).strip().splitlines() or [""])[0]
            if not isinstance(error, NotApplicableError):
                problem = f"{type(error).__name__}: {problem}"
            rows.append(replace(row, problem=problem))
            continue
        expected = expected or found
        rows.append(_with_differences(row, expected, found))
        runners.append((len(rows) - 1, runner))
    samples = timed(
        [runner.step for _, runner in runners],
        [runner.model for _, runner in runners],
        steps,
    )
    for (place, _), found in zip(runners, samples, strict=True):
        turns = [ours / first for ours, first in zip(found, samples[0], strict=True)]
        rows[place] = replace(
            rows[place], seconds=median(found), time_ratio=median(turns)
        )
    return rows


def _with_differences(row: Row, expected: Numbers, found: Numbers) -> Row:
    return replace(
        row,
        is_loss_equal=same_bits(expected.loss, found.loss),
        num_gradients=len(expected.gradients),
        num_wrong_gradients=len(differences(expected.gradients, found.gradients)),
        largest_difference=_largest_difference(expected.gradients, found.gradients),
        num_wrong_buffers=len(differences(expected.buffers, found.buffers)),
        is_random_state_equal=torch.equal(expected.generator, found.generator),
    )


def _largest_difference(expected: dict[str, Any], found: dict[str, Any]) -> float:
    largest = 0.0
    for name, value in expected.items():
        other = found.get(name)
        if value is None or other is None or value.shape != other.shape:
            continue
        scale = float(value.abs().max()) if value.numel() else 0.0
        if scale > 0:
            largest = max(largest, float((value - other).abs().max()) / scale)
    return largest


def measure_peak(
    method: Method, model: nn.Module, batch: Any, loss: Any
) -> dict[str, int]:
    """Real peaks of one method, in a process with `MALLOC_ENVIRONMENT`."""
    runner = Runner(method, model, batch, loss)
    del model
    runner.first_step()
    system = rss_peak(runner.step, [runner.model])
    found = allocated_peak(runner.step, [runner.model], batch)
    return {
        "rss_peak_bytes": system,
        "peak_bytes": found.peak_bytes,
        "activation_peak_bytes": found.activation_peak_bytes,
    }

"""Run a step both ways and compare every number, bit for bit."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch
from torch import nn

from lowtide.engine.bits import first_difference, same_bits
from lowtide.engine.checks.meter import Measurement, preserved
from lowtide.errors import VerificationError
from lowtide.step.plan import Plan


@dataclass(frozen=True, slots=True, repr=False)
class Verification:
    """Whether a planned step gives the numbers of the plain one.

    `differences` names what differs, each with its first difference. Equality is
    bitwise: signed zeros and NaNs count, and nothing is rounded. `origin` is the op at
    which the difference arises, if it was found.
    """

    loss_equal: bool
    gradients_equal: bool
    buffers_equal: bool
    rng_equal: bool
    num_gradients: int
    differences: tuple[str, ...]
    plan: Plan
    measured: Measurement | None = None
    origin: str = ""

    def __repr__(self) -> str:
        result = f"all equal, {self.num_gradients} gradients among them"
        if self.differences:
            others = f" and {len(self.differences) - 1} more"
            result = self.differences[0] + others * (len(self.differences) > 1)
            result += f", first at {self.origin}" * bool(self.origin)
        return f"<Verification of {self.plan!r}: {result}>"

    @property
    def ok(self) -> bool:
        """Everything is equal, and the measured peak is not above the budget."""
        return not self.differences

    @property
    def predicted_peak_bytes(self) -> int:
        """The peak that the plan promises."""
        return self.plan.peak_bytes

    @property
    def measured_peak_bytes(self) -> int:
        """The peak that was measured, 0 if it was not."""
        return self.measured.peak_bytes if self.measured else 0

    def raise_if_failed(self) -> None:
        """Raise `VerificationError` with the first difference."""
        if self.ok:
            return
        what, _, difference = self.differences[0].partition(": ")
        if self.origin:
            difference += f". It arises at {self.origin}"
        raise VerificationError(
            what,
            difference,
            predicted_peak_bytes=self.predicted_peak_bytes,
            measured_peak_bytes=self.measured_peak_bytes or None,
        )


@dataclass(frozen=True)
class Numbers:
    """Everything a step computes that anyone can see."""

    loss: torch.Tensor
    gradients: dict[str, torch.Tensor | None]
    buffers: dict[str, torch.Tensor]
    generator: torch.Tensor  # the states of all generators, concatenated


def numbers_of(step: Callable[[], torch.Tensor], modules: list[nn.Module]) -> Numbers:
    """Run the step, keep a copy of what it computed on the CPU, and undo the rest."""
    gradients: dict[str, torch.Tensor | None] = {}
    buffers: dict[str, torch.Tensor] = {}
    with preserved(modules):
        loss = _copy(step())
        for number, module in enumerate(modules):
            # One module alone needs no name of its own.
            prefix = f"{type(module).__name__.lower()}{number}." * (len(modules) > 1)
            for name, p in module.named_parameters():
                gradients[prefix + name] = None if p.grad is None else _copy(p.grad)
            for name, b in module.named_buffers():
                buffers[prefix + name] = _copy(b)
        states = [torch.get_rng_state()]
        if torch.cuda.is_available():
            states += torch.cuda.get_rng_state_all()
    return Numbers(loss, gradients, buffers, torch.cat(states))


def _copy(value: torch.Tensor) -> torch.Tensor:
    return value.detach().to("cpu", copy=True)


def compare(
    expected: Numbers, actual: Numbers, plan: Plan, measured: Measurement | None
) -> Verification:
    """What a planned step computed against what the plain one did."""
    loss = differences({"loss": expected.loss}, {"loss": actual.loss})
    gradients = differences(expected.gradients, actual.gradients, "gradient of ")
    buffers = differences(expected.buffers, actual.buffers, "buffer ")
    wrong = [*loss, *gradients, *buffers]
    rng_equal = torch.equal(expected.generator, actual.generator)
    if not rng_equal:
        wrong.append("random numbers: the generator ends in another state")
    if measured and plan.budget_bytes < measured.peak_bytes:
        wrong.append(
            f"peak: {measured.peak_bytes} bytes measured, above the budget of "
            f"{plan.budget_bytes} bytes"
        )
    return Verification(
        loss_equal=not loss,
        gradients_equal=not gradients,
        buffers_equal=not buffers,
        rng_equal=rng_equal,
        num_gradients=sum(g is not None for g in expected.gradients.values()),
        differences=tuple(wrong),
        plan=plan,
        measured=measured,
    )


def differences(
    expected: Mapping[str, torch.Tensor | None],
    actual: Mapping[str, torch.Tensor | None],
    label: str = "",
) -> list[str]:
    """What differs in any bit, each with its first difference."""
    found: list[str] = []
    for name, a in expected.items():
        b = actual.get(name)
        if a is None or b is None:
            if a is not b:
                found.append(f"{label}{name}: there with one, missing with the other")
        elif not same_bits(a, b):
            found.append(f"{label}{name}: {first_difference(a, b)}")
    return found

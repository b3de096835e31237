"""Run a step both ways and compare every number, bit for bit."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from lowtide.engine.bits import first_difference, same_bits
from lowtide.engine.meter import Measurement, clear_gradients, preserved
from lowtide.errors import VerificationError
from lowtide.step.plan import Plan


@dataclass(frozen=True, slots=True, repr=False)
class Verification:
    """Whether a planned step gives the numbers of the plain one.

    `differences` names what differs, each with its first difference. Equality is
    bitwise: signed zeros and NaNs count, and nothing is rounded.
    """

    loss_equal: bool
    gradients_equal: bool
    buffers_equal: bool
    rng_equal: bool
    num_gradients: int
    differences: tuple[str, ...]
    plan: Plan
    measured: Measurement | None = None

    def __repr__(self) -> str:
        result = f"all equal, {self.num_gradients} gradients among them"
        if self.differences:
            more = f" and {len(self.differences) - 1} more"
            result = self.differences[0] + more * (len(self.differences) > 1)
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
    generator: torch.Tensor


def numbers_of(step: Callable[[], torch.Tensor], modules: list[nn.Module]) -> Numbers:
    """Run the step and keep a copy of what it computed, on the CPU."""
    clear_gradients(modules)
    loss = step()
    return Numbers(
        loss=_copy(loss),
        gradients={
            f"{prefix}{name}": None if p.grad is None else _copy(p.grad)
            for prefix, m in _named(modules)
            for name, p in m.named_parameters()
        },
        buffers={
            f"{prefix}{name}": _copy(b)
            for prefix, m in _named(modules)
            for name, b in m.named_buffers()
        },
        generator=_generators(),
    )


def _named(modules: list[nn.Module]) -> list[tuple[str, nn.Module]]:
    """Each module with what to put before its names; one alone needs nothing."""
    if len(modules) == 1:
        return [("", modules[0])]
    return [(f"{type(m).__name__.lower()}{i}.", m) for i, m in enumerate(modules)]


def _generators() -> torch.Tensor:
    """The states of all generators, one after the other."""
    states = [torch.get_rng_state()]
    if torch.cuda.is_available():
        states += torch.cuda.get_rng_state_all()
    return torch.cat(states)


def compare(
    plain: Callable[[], torch.Tensor],
    planned: Callable[[], torch.Tensor],
    modules: list[nn.Module],
    plan_of: Callable[[], Plan],
    measure: Callable[[], Measurement] | None = None,
) -> Verification:
    """Run both steps from the same state and compare them."""
    with preserved(modules):
        expected = numbers_of(plain, modules)
    with preserved(modules):
        actual = numbers_of(planned, modules)
    plan = plan_of()
    measured = measure() if measure else None
    differences: list[str] = []
    loss = _differences({"loss": expected.loss}, {"loss": actual.loss}, "")
    gradients = _differences(expected.gradients, actual.gradients, "gradient of ")
    buffers = _differences(expected.buffers, actual.buffers, "buffer ")
    generator = torch.equal(expected.generator, actual.generator)
    differences += [*loss, *gradients, *buffers]
    if not generator:
        differences.append("random numbers: the generator ends in another state")
    if measured and plan.budget_bytes < measured.peak_bytes:
        differences.append(
            f"peak: {measured.peak_bytes} bytes measured, above the budget of "
            f"{plan.budget_bytes} bytes"
        )
    return Verification(
        loss_equal=not loss,
        gradients_equal=not gradients,
        buffers_equal=not buffers,
        rng_equal=generator,
        num_gradients=sum(g is not None for g in expected.gradients.values()),
        differences=tuple(differences),
        plan=plan,
        measured=measured,
    )


def _copy(value: torch.Tensor) -> torch.Tensor:
    return value.detach().to("cpu", copy=True)


def _differences(
    expected: dict[str, Any], actual: dict[str, Any], label: str
) -> list[str]:
    found: list[str] = []
    for name, value in expected.items():
        other = actual[name]
        if value is None or other is None:
            if value is not other:
                found.append(f"{label}{name}: there with one, missing with the other")
            continue
        if not same_bits(value, other):
            found.append(f"{label}{name}: {first_difference(value, other)}")
    return found

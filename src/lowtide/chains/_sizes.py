"""Chain sizes as exact integers, and the answer type every kept-set solver returns.

Finite floats are dyadic rationals, so multiplying by one power of two turns a list of
them into integers without loss. All solvers compare and add such integers and round
once, at the end: an optimum and the evaluation of its kept set can then be compared
with `==`, whatever the magnitudes in the chain.
"""

import math
import operator
import reprlib
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, SupportsFloat

Number = int | float


@dataclass(frozen=True, slots=True)
class ChainSolution:
    """A kept set of a chain and its peak, in the unit of the sizes given."""

    kept: tuple[int, ...]
    peak: Number


@dataclass(frozen=True, slots=True)
class ExactSizes:
    """Sizes times `scale`, all integers. `is_integral`: the caller passed integers."""

    values: list[int]
    scale: int
    is_integral: bool

    def to_number(self, value: int) -> Number:
        """Return `value` in the caller's unit and type, rounded at most once."""
        if self.is_integral:
            return value
        try:
            return value / self.scale
        except OverflowError:
            return math.inf


def exact_sizes(sizes: Iterable[Number]) -> ExactSizes:
    """Return checked `sizes` as integers over one power of two. O(n)."""
    numbers = [_plain(number, at) for at, number in enumerate(sizes)]
    if not numbers:
        raise ValueError(
            "sizes is empty, and a chain needs at least one value. Pass the size of "
            "every value of the chain, from its input to its output."
        )
    ratios = [number.as_integer_ratio() for number in numbers]
    scale = max(denominator for _, denominator in ratios)
    values = [top * (scale // bottom) for top, bottom in ratios]
    return ExactSizes(values, scale, all(type(number) is int for number in numbers))


def _plain(number: Any, at: int) -> Number:
    """Return `number` as a Python int or float, or raise if it is no size."""
    if type(number) not in (int, float):
        try:
            number = operator.index(number)
        except TypeError:
            if not isinstance(number, SupportsFloat):
                raise ValueError(
                    f"sizes[{at}] is {number!r}, and a size must be a number. Pass "
                    f"plain integers or floats."
                ) from None
            number = float(number)
    # Written so that NaN, which compares false with everything, is refused too.
    if not 0 <= number < math.inf:
        raise ValueError(
            f"sizes[{at}] is {number}, and a size must be zero or more, and finite. "
            f"Correct that entry."
        )
    return number


def checked_kept(kept: Iterable[int], length: int) -> tuple[int, ...]:
    """Return `kept` sorted, or raise if it is no kept set of a chain of `length`."""
    try:
        indices = tuple(sorted({operator.index(index) for index in kept}))
    except TypeError as error:
        raise ValueError(
            f"kept holds something that is no index ({error}). Pass integers from 0 to "
            f"{length - 1}."
        ) from None
    if not indices or indices[0] < 0 or indices[-1] >= length:
        raise ValueError(
            f"kept is {reprlib.repr(indices)}, and a chain of {length} values has the "
            f"indices 0 to {length - 1}. Pass indices in that range."
        )
    if indices[0] != 0 or indices[-1] != length - 1:
        raise ValueError(
            f"kept is {reprlib.repr(indices)}, and both ends of the chain are always "
            f"kept. Add {0 if indices[0] else length - 1} to it."
        )
    return indices

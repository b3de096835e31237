"""Budgets and fractions as people write them, turned into plain numbers at the edge."""

from __future__ import annotations

import math
import re
from decimal import Decimal

from lowtide.errors import BudgetFormatError, InvalidArgumentError

Budget = str | int
"""`"6 GiB"`, `"6G"`, `"6GB"`, a number of bytes, or `"60%"` of the unplanned peak."""

_UNIT_BYTES = {"b": 1, "byte": 1, "bytes": 1}
for _power, _prefix in enumerate("kmgtp", start=1):
    _UNIT_BYTES[f"{_prefix}b"] = 1000**_power
    # As schedulers and containers take it: "6G" is 6 GiB.
    _UNIT_BYTES[_prefix] = _UNIT_BYTES[f"{_prefix}ib"] = 1024**_power

_LARGEST = 10**18
# A whole number without a unit is one of bytes, unless it is too small to mean that.
_LEAST_BARE = 2**20

_QUANTITY = re.compile(r"([+-]?(?:\d[\d_]*\.?\d*|\.\d+)(?:e[+-]?\d+)?)\s*(\D*)", re.I)


def to_bytes(budget: object, *, baseline_bytes: int | None = None) -> int:
    """Returns a budget as a whole number of bytes, at least one.

    Parts of a byte are dropped, so that the result never exceeds what was asked.

    Args:
        budget: A size, a whole number of bytes, or a percentage (see `Budget`).
        baseline_bytes: The peak that a percentage is a share of.

    Raises:
        BudgetFormatError: The budget is none of these, is not above zero, or is a
            percentage where no baseline is known.

    >>> to_bytes("6 GiB"), to_bytes("6GB"), to_bytes("60%", baseline_bytes=1000)
    (6442450944, 6000000000, 600)
    """
    if isinstance(budget, str):
        return _text_to_bytes(budget, baseline_bytes)
    if isinstance(budget, bool):
        raise BudgetFormatError(budget, "a truth value is not a size")
    if isinstance(budget, float):
        if not (budget.is_integer() and budget >= _LEAST_BARE):
            raise BudgetFormatError(budget, *_about_float(budget))
        budget = int(budget)
    # numpy's and other whole numbers count as int; nothing else has __index__.
    index = getattr(budget, "__index__", None)
    if index is None:
        kind = type(budget).__name__
        raise BudgetFormatError(budget, f"{kind} is neither text nor a whole number")
    num_bytes = int(index())
    if num_bytes <= 0:
        raise BudgetFormatError(budget, f"{num_bytes} bytes is not above zero")
    return num_bytes


def to_fraction(value: object, *, name: str = "max_overhead") -> float:
    """Returns a limit such as `"10%"` or `0.10` as a fraction, at least zero.

    Raises:
        InvalidArgumentError: The value is neither, is negative, or is not finite.

    >>> to_fraction("10%"), to_fraction(0.1), to_fraction(0)
    (0.1, 0.1, 0.0)
    """
    asked = f"{name}={value!r}"
    fix = f'Write {name}="10%" or {name}=0.10'
    if isinstance(value, str):
        match = _QUANTITY.fullmatch(value.strip())
        if match is None or match[2] != "%":
            raise InvalidArgumentError(asked, "it is not a percentage", fix)
        fraction = float(Decimal(match[1]) / 100)
    elif isinstance(value, int | float) and not isinstance(value, bool):
        fraction = float(value)
    else:
        kind = type(value).__name__
        raise InvalidArgumentError(asked, f"{kind} is not a fraction", fix)
    if not math.isfinite(fraction) or fraction < 0:
        raise InvalidArgumentError(
            asked, "a fraction must be finite and at least 0", fix
        )
    return fraction


def _text_to_bytes(budget: str, baseline_bytes: int | None) -> int:
    text = budget.strip()
    if not text:
        raise BudgetFormatError(budget, "it is empty")
    match = _QUANTITY.fullmatch(text)
    if match is None:
        raise BudgetFormatError(budget, "it is not a number followed by a unit")
    amount, unit = Decimal(match[1]), match[2].strip()
    if amount <= 0:
        raise BudgetFormatError(budget, f"{match[1]}{unit} is not above zero")
    if amount > _LARGEST:
        raise BudgetFormatError(budget, "no machine has that many bytes")
    if unit == "%":
        if baseline_bytes is None:
            raise BudgetFormatError(
                budget,
                "a percentage is a share of the baseline peak, which is not known here",
                "Give a size in bytes, or profile the step first",
            )
        exact = amount * baseline_bytes / 100
    elif unit.lower() in _UNIT_BYTES:
        exact = amount * _UNIT_BYTES[unit.lower()]
    elif not unit and amount == int(amount) >= _LEAST_BARE:
        exact = amount
    elif not unit:
        hint = f'Write "{text} GiB", "{text} MiB" or "{text} B"'
        if amount < 1:
            hint = f'Write "{100 * float(amount):g}%" for a share of the unplanned peak'
        raise BudgetFormatError(budget, "the unit is missing", hint)
    else:
        raise BudgetFormatError(
            budget,
            f"{unit!r} is not a unit",
            "Units: B, KB, MB, GB, TB, PB (powers of 1000), and KiB, MiB, GiB, TiB, "
            "PiB or K, M, G, T, P (powers of 1024)",
        )
    num_bytes = int(exact)
    if num_bytes < 1:
        raise BudgetFormatError(budget, "it is less than one byte")
    return num_bytes


def _about_float(budget: float) -> tuple[str, str]:
    """Returns what is wrong with a float, and the budget that was probably meant."""
    if not math.isfinite(budget) or budget <= 0:
        return f"{budget} is not a size above zero", ""
    reason = "a bare number could mean a share, gigabytes or bytes"
    if budget < 1:
        return reason, f'Write "{100 * budget:g}%" for a share of the unplanned peak'
    return reason, f'Write "{budget:g} GiB" for a size'

"""Quantities as people read them: bytes, seconds, fractions."""

from __future__ import annotations

from collections.abc import Iterable

_BYTE_UNITS = ("B", "KiB", "MiB", "GiB", "TiB", "PiB")
_SECOND_UNITS = ((1.0, "s"), (1e-3, "ms"), (1e-6, "us"), (1e-9, "ns"))


def format_bytes(num_bytes: float) -> str:
    """Returns bytes in the largest binary unit that keeps the number at least one.

    >>> format_bytes(0), format_bytes(1023), format_bytes(6 * 2**30)
    ('0 B', '1023 B', '6.00 GiB')
    """
    sign = "-" if num_bytes < 0 else ""
    value = abs(num_bytes)
    power = 0
    # 1023.995 would print as 1024.00, so the unit steps up just before 1024.
    while value >= (1024 if power == 0 else 1023.95) and power < len(_BYTE_UNITS) - 1:
        value /= 1024
        power += 1
    if power == 0:
        return f"{sign}{value:.0f} B"
    decimals = 2 if value < 99.995 else 1
    return f"{sign}{value:.{decimals}f} {_BYTE_UNITS[power]}"


def format_seconds(seconds: float) -> str:
    """Returns a duration with three digits, or minutes and hours when it is long.

    >>> format_seconds(0.0321), format_seconds(4), format_seconds(125)
    ('32.1 ms', '4.00 s', '2 min 5 s')
    """
    sign = "-" if seconds < 0 else ""
    value = abs(seconds)
    if value == 0:
        return "0 s"
    if value >= 119.5:
        minutes, rest = divmod(round(value), 60)
        if minutes < 60:
            return f"{sign}{minutes} min {rest} s"
        hours, minutes = divmod(minutes, 60)
        return f"{sign}{hours} h {minutes} min"
    for scale, unit in _SECOND_UNITS:
        # 999.6 us would print as 1000 us, so the larger unit starts a little early.
        if value >= 0.9995 * scale or unit == "ns":
            return f"{sign}{_three_digits(value / scale)} {unit}"
    raise AssertionError("the last unit takes everything")


def format_percent(fraction: float, *, signed: bool = False) -> str:
    """Returns a fraction as a percentage: 0.078 is "7.8 %", signed "+7.8 %"."""
    return f"{100 * fraction:{'+' if signed else ''}.1f} %"


def format_count(number: int, noun: str) -> str:
    """Returns a number of things: "1 op", "2 ops"."""
    return f"{number} {noun}{'s' * (number != 1)}"


def aligned(headings: Iterable[str], rows: Iterable[Iterable[str]]) -> list[str]:
    """A table as lines: the first column to the left, the others to the right.

    >>> aligned(("module", "bytes"), [("head", "4 KiB"), ("body", "12 KiB")])
    ['module   bytes', 'head     4 KiB', 'body    12 KiB']
    """
    table = [list(headings), *(list(row) for row in rows)]
    widths = [max(map(len, column)) for column in zip(*table, strict=True)]
    return [
        "  ".join(
            cell.rjust(width) if place else cell.ljust(width)
            for place, (cell, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in table
    ]


def _three_digits(value: float) -> str:
    decimals = 2 if value < 9.995 else 1 if value < 99.95 else 0
    return f"{value:.{decimals}f}"

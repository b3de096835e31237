"""Fewer samples of a long curve, without losing its highest moment.

A step of 20,000 ops has more moments than a screen has columns. The curve is cut into
equal stretches, and of each the highest and the lowest moment are kept, as they are: no
averages, so every number shown is one that occurred, and the peak is always among them.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence


def keep_extremes(
    values: Sequence[int], limit: int, *, always: Iterable[int] = ()
) -> list[int]:
    """Positions to keep, in order: all of them if they are at most `limit`.

    Otherwise the first highest and the first lowest of each stretch, both ends, and
    those in `always`; about `limit` in total.
    """
    count = len(values)
    if count <= limit:
        return list(range(count))
    kept = {0, count - 1, *(p for p in always if 0 <= p < count)}
    stretches = max(1, limit // 2)
    for number in range(stretches):
        stretch = range(number * count // stretches, (number + 1) * count // stretches)
        kept.add(max(stretch, key=values.__getitem__))
        kept.add(min(stretch, key=values.__getitem__))
    return sorted(kept)

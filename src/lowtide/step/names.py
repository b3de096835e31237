"""Module and op names as people read them: `layers.0-11.mlp` for twelve layers."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

_NAMESPACES = ("aten", "prims", "lowtide", "torch", "ops")


def pattern_of(name: str) -> str:
    """The name with every number between dots replaced by a star.

    >>> pattern_of("layers.3.mlp.fc1"), pattern_of("layer1.0.conv2")
    ('layers.*.mlp.fc1', 'layer1.*.conv2')
    """
    return ".".join("*" if part.isdecimal() else part for part in name.split("."))


def collapse(names: Iterable[str]) -> str:
    """One label for names of one pattern, with ranges where the numbers were.

    Where the numbers of two places do not combine freely, the second place is a star.

    >>> collapse(["layers.0.mlp", "layers.1.mlp", "layers.2.mlp", "layers.7.mlp"])
    'layers.0-2,7.mlp'
    """
    split = [name.split(".") for name in dict.fromkeys(names)]
    if not split:
        return ""
    columns = list(zip(*split, strict=True))
    distinct = [sorted(set(c), key=_natural) for c in columns]
    combinations = 1
    for values in distinct:
        combinations *= len(values)
    parts: list[str] = []
    for values in distinct:
        if len(values) == 1:
            parts.append(values[0])
        elif combinations != len(split) and any("-" in p for p in parts):
            parts.append("*")
        else:
            parts.append(_ranges(values))
    return ".".join(parts)


def _natural(text: str) -> tuple[int, str]:
    return (int(text), "") if text.isdecimal() else (0, text)


def _ranges(values: Sequence[str]) -> str:
    if not all(v.isdecimal() for v in values):
        return "*"
    runs: list[list[int]] = []
    for value in map(int, values):
        if runs and runs[-1][1] == value - 1:
            runs[-1][1] = value
        else:
            runs.append([value, value])
    if len(runs) > 4:
        return "*"
    return ",".join(str(a) if a == b else f"{a}-{b}" for a, b in runs)


def short_target(target: str) -> str:
    """The bare name of an operation.

    >>> short_target("aten.mm.default"), short_target("aten::add.Tensor")
    ('mm', 'add')
    """
    parts = [p for p in re.split(r"::|\.", target) if p]
    while len(parts) > 1 and parts[0] in _NAMESPACES:
        parts = parts[1:]
    return parts[0] if parts else target

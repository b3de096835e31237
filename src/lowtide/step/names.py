"""Names as people read them: of modules, ops and kinds of storages.

Every text, table, chart and export takes its names from here, so that the same thing is
called the same everywhere.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import TypeVar

from lowtide.step.graph import FOLDED, Op, StepGraph, Storage

# From the bottom of a chart to its top: what never changes lies below.
KIND_NAMES: dict[str, str] = {
    "parameter": "parameters",
    "buffer": "buffers",
    "optimizer_state": "optimizer state",
    "input": "inputs",
    "gradient": "gradients",
    "activation": "activations",
    "recomputed": "recomputed activations",
    "temporary": "temporaries",
}
NO_MODULE = "(outside modules)"
# Longer than any name a person wrote, short enough for a thousand of them on a page.
LONGEST_NAME = 160
LONGEST_NOTE = 1_000


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
    combinations = math.prod(map(len, distinct))
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


def module_group(module: str, depth: int) -> str:
    """The first `depth` names of a module path, with every number a star.

    A number belongs to the name before it: the depth of `layers.3.mlp` is two.

    >>> module_group("layers.11.mlp.fc2", 2), module_group("layer3.0.conv1", 1)
    ('layers.*.mlp', 'layer*.*')
    """
    return re.sub(r"\d+", "*", module_prefix(module, depth)) or NO_MODULE


def module_prefix(module: str, depth: int) -> str:
    """The first `depth` names of a module path, with the numbers that belong to them.

    >>> module_prefix("layers.11.mlp.fc2", 2)
    'layers.11.mlp'
    """
    kept: list[str] = []
    names = 0
    for part in module.split("."):
        if not part.isdigit():
            names += 1
            if names > depth:
                break
        kept.append(part)
    return ".".join(kept)


def short_target(target: str) -> str:
    """The bare name of an operation, without namespace and overload.

    Of ops that are folded into one, all names are shown.

    >>> short_target("aten.mm.default"), short_target("mylib::scale.Tensor")
    ('mm', 'scale')
    >>> short_target("aten.mul.Tensor + aten.add.Tensor"), short_target("lowtide::turn")
    ('mul + add', 'turn')
    """
    return FOLDED.join(_bare(part) for part in target.split(FOLDED))


def _bare(target: str) -> str:
    path = target.removeprefix("torch.ops.").replace("::", ".")
    parts = [part for part in path.split(".") if part]
    return _plain(parts[1]) if len(parts) > 1 else target


def _plain(name: str) -> str:
    """An op's name without what tells torch's own variants of it apart.

    >>> _plain("_native_batch_norm_legit_functional"), _plain("convolution_backward")
    ('batch_norm', 'convolution_backward')
    >>> _plain("_scaled_dot_product_flash_attention_for_cpu")
    'scaled_dot_product_attention'
    """
    return re.sub(_VARIANT, "", name) or name


_VARIANT = (
    "^_+|(?<![a-z])native_|_legit|_functional|_no_training|_with_indices|_for_cpu|_data$"
    "|_(?:flash|efficient|cudnn|fused)(?=_attention)|_+$"
)


def titles(step: StepGraph) -> tuple[str, ...]:
    """What each op is called where people read: by its place in the model.

    An op that makes most of what its module makes bears the module's name, as in
    `layer1.0.bn1 + relu`; others of that module say what they do.
    """
    made: dict[tuple[str, str], int] = {}
    sizes = [sum(step.sizes[s] for s in op.writes) for op in step.ops]
    for op, nbytes in zip(step.ops, sizes, strict=True):
        if not op.standby:
            made[op.module, op.phase] = made.get((op.module, op.phase), 0) + nbytes
    found: list[str] = []
    for op, nbytes in zip(step.ops, sizes, strict=True):
        first, *others = short_target(op.target).split(FOLDED)
        is_main = 10 * nbytes >= 9 * made.get((op.module, op.phase), 1)
        if op.module:
            first = op.module if is_main else f"{op.module} {first}"
            first += " backward" * (is_main and op.phase == "backward")
        else:
            first = op.name.split(FOLDED)[0]
        found.append(FOLDED.join((first, *others)) + " again" * op.standby)
    return tuple(found)


def shortened(name: str, limit: int = LONGEST_NAME) -> str:
    """The name, or of a longer one its beginning and its end.

    >>> shortened("encoder.block.0-5.layer.1.DenseReluDense.dropout", 30)
    'encoder.bl..eReluDense.dropout'
    """
    if len(name) <= limit:
        return name
    head = limit // 3
    return f"{name[:head]}..{name[2 + head - limit :]}"


def with_short_names(step: StepGraph) -> StepGraph:
    """The step with every name cut to a length that can be shown.

    Names are whatever a program chose: one of a megabyte, repeated for each op that
    bears it, would make a page that no browser opens.
    """
    short = replace(
        step,
        ops=tuple(_short(op, "name", "target", "module", "source") for op in step.ops),
        storages=tuple(_short(s, "name") for s in step.storages),
        notes=tuple(shortened(note, LONGEST_NOTE) for note in step.notes),
    )
    # The step itself, if it can be: it knows its peaks already.
    return step if short == step else short


Named = TypeVar("Named", Op, Storage)


def _short(record: Named, *names: str) -> Named:
    return replace(record, **{name: shortened(getattr(record, name)) for name in names})


def printable(text: str, keep: str = "") -> str:
    """The text with control characters shown, not obeyed; those in `keep` stay.

    >>> printable("a\\x1b[31m")
    'a\\\\x1b[31m'
    """
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() or c in keep else repr(c)[1:-1] for c in text)

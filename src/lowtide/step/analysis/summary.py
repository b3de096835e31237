"""The profile of a step as text for a terminal."""

from __future__ import annotations

from math import inf, isfinite

from lowtide.step.analysis.ops import Share, by_module, shares
from lowtide.step.analysis.peak import Peak
from lowtide.step.format import aligned, format_bytes, format_percent, format_seconds
from lowtide.step.graph import StepGraph
from lowtide.step.names import KIND_NAMES, shortened

_ROWS = 12


def format_profile(
    step: StepGraph, *, depth: int | None = None, floor: bool = True
) -> str:
    """The summary of a step: peak, floor, time, and the modules that hold the bytes.

    `depth` is how many names of a module path to show; by default as many as give a
    table worth reading. To look for the `floor` asks a planner.
    """
    peak = step.at_peak()
    lines = [_row("graph", _counts(step)), *_peak_lines(step, peak)]
    if floor:
        lowest = f"{format_bytes(step.floor_bytes):12s} the lowest peak found"
        lines.append(_row("floor", lowest))
    lines.append(_row("time", _time(step)))
    lines += ["", *_module_table(step, depth)]
    lines += [_row("note", note) for note in step.notes]
    return "\n".join(lines)


def assumption(step: StepGraph) -> str:
    """Of an estimate for a named device: what is not known to be that device's."""
    device = step.facts.get("costs_of")
    if not device or step.facts.get("how") != "estimate":
        return ""
    captured = step.device or "another device"
    return (
        f"Times are estimated for {device}. Graph, kernels and their scratch are those "
        f"of {captured}, where the step was captured."
    )


def _row(label: str, text: str) -> str:
    return f"{label:10s} {text}"


def _thousands(number: int) -> str:
    return f"{number:,}".replace(",", " ")


def _counts(step: StepGraph) -> str:
    pieces = len({region.piece for region in step.regions if region.piece >= 0})
    graphs = "1 graph" if pieces <= 1 else f"{pieces} graphs"
    parts = f"{_thousands(len(step.baseline))} ops, "
    parts += f"{_thousands(len(step.storages))} storages, {graphs}"
    return f"{parts}, {step.device}" if step.device else parts


def _peak_lines(step: StepGraph, peak: Peak) -> list[str]:
    where = ""
    if peak.op >= 0:
        op = step.ops[peak.op]
        place = op.module or op.name
        source = f" ({shortened(op.source)})" if op.source else ""
        where = f"at {op.phase} of {shortened(place)}{source}"
    powers = [p for p in (30, 20, 10) if peak.peak_bytes >= 2**p]
    unit = 2.0 ** (powers[0] if powers else 0)
    kinds = [
        f"{KIND_NAMES[kind]} {nbytes / unit:.2f}"
        for kind, nbytes in peak.by_kind().items()
        if nbytes / unit >= 0.005
    ]
    lines = [
        _row("peak", f"{format_bytes(peak.peak_bytes):12s} {where}".rstrip()),
        _row("", "  ".join(kinds)),
    ]
    if step.eager_peak_bytes > 1.005 * step.baseline_peak_bytes:
        eager = format_bytes(step.eager_peak_bytes)
        lines.append(_row("", f"{eager} without lowtide, which writes in place"))
    return lines


def _time(step: StepGraph) -> str:
    total = step.baseline_seconds
    split = [
        f"{phase} {format_seconds(part * total)}"
        for phase, part in shares(step).items()
        if part > 0
    ]
    how = str(step.facts.get("how", ""))
    said = {"measure": "measured", "estimate": "estimated"}.get(how, "")
    if said == "estimated" and step.facts.get("costs_of"):
        said += f" for {step.facts['costs_of']}"
    spread = sum(step.ops[i].seconds * step.ops[i].spread for i in step.baseline)
    if said == "measured" and total > 0 and spread > 0:
        said += f", +-{format_percent(spread / total)}"
    tail = f"   ({said})" if said else ""
    return f"{format_seconds(total):12s} {', '.join(split)}{tail}"


def _module_table(step: StepGraph, depth: int | None) -> list[str]:
    parts = _choose(step, depth)
    shown = sorted(parts, key=lambda share: -share.kept_bytes)[:_ROWS]
    shown = [share for share in parts if share in shown]
    if not shown:
        return []
    cheapest = max(
        (share for share in shown if share.kept_bytes * 50 > _kept(parts)),
        key=lambda share: (
            share.bytes_per_second if isfinite(share.bytes_per_second) else 0
        ),
        default=None,
    )
    lines = aligned(_HEADINGS, [_cells(share) for share in shown])
    if cheapest is not None and len(shown) > 1:
        lines[1 + shown.index(cheapest)] += "  <- cheapest to drop"
    if len(parts) > len(shown):
        rest = _kept(parts) - _kept(shown)
        hidden = len(parts) - len(shown)
        lines.append(f"and {hidden} more modules, which keep {format_bytes(rest)}")
    if any(share.count > 1 and not share.identical for share in shown):
        lines.append("~ the modules under this name do not all run the same ops")
    return lines


_HEADINGS = ("module", "x", "kept bytes", "at peak", "seconds", "bytes/s of recompute")


def _cells(share: Share) -> tuple[str, ...]:
    return (
        shortened(share.name),
        f"{share.count}" if share.identical else f"~{share.count}",
        format_bytes(share.kept_bytes),
        format_bytes(share.peak_bytes),
        format_seconds(share.seconds),
        _speed(share),
    )


def _speed(share: Share) -> str:
    if not share.kept_bytes:
        return "-"
    if share.bytes_per_second == inf:
        return "must be kept"
    return f"{format_bytes(share.bytes_per_second)}/s"


def _kept(parts: list[Share] | tuple[Share, ...]) -> int:
    return sum(share.kept_bytes for share in parts)


def _choose(step: StepGraph, depth: int | None) -> tuple[Share, ...]:
    """The table at the given depth, or at the first that tells modules apart."""
    if depth is not None:
        return by_module(step, depth)
    parts: tuple[Share, ...] = ()
    for depth in range(1, 6):
        deeper = by_module(step, depth)
        if len(deeper) == len(parts):
            break
        parts = deeper
        largest = max((share.kept_bytes for share in parts), default=0)
        many = sum(share.kept_bytes > 0 for share in parts) >= 4
        if many and 2 * largest <= _kept(parts):
            break
    return parts

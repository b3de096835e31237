"""A picture of the step: live bytes by kind over time, and where the peak is."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from lowtide.errors import MissingPackageError
from lowtide.step.format import format_bytes, format_seconds
from lowtide.step.graph import StepGraph
from lowtide.step.plan import Run
from lowtide.step.schedule import with_frees
from lowtide.step.simulate import live_by_kind, simulate

# From the bottom of the picture to the top: what never changes lies below.
_LAYERS = (
    ("parameter", "parameters", "#4c5b70"),
    ("buffer", "buffers", "#7a889b"),
    ("optimizer_state", "optimizer state", "#a9b4c2"),
    ("input", "inputs", "#c9b18a"),
    ("gradient", "gradients", "#d98c5f"),
    ("activation", "activations", "#3f8fb8"),
    ("temporary", "temporaries", "#8fcbe0"),
)
_BANDS = {"forward": "#ffffff", "backward": "#f1f3f5", "optimizer": "#e4e7eb"}


def plot_profile(step: StepGraph, path: str | Path) -> None:
    """Draw live bytes over the step into a file; its ending says which format.

    Raises:
        MissingPackageError: matplotlib is not installed.
    """
    figure = _figure(step)
    figure.savefig(path, dpi=150)


def _figure(step: StepGraph) -> Any:
    try:
        from matplotlib.figure import Figure
    except ImportError as error:
        raise MissingPackageError(
            "matplotlib", "draw a profile", "pip install 'lowtide[plot]'"
        ) from error
    schedule = with_frees(step, step.baseline)
    timeline = simulate(step, schedule)
    edges, phases = _edges(step, schedule)
    scale, unit = _scale(timeline.peak_bytes)
    figure = Figure(figsize=(9.6, 4.8), layout="constrained")
    axes: Any = figure.subplots()
    _draw_layers(axes, edges, live_by_kind(step, schedule), scale)
    top = timeline.peak_bytes / scale
    _draw_bands(axes, phases, edges[-1], top)
    _draw_peak(axes, step, schedule, edges, timeline.peak_index, top)
    axes.set_xlim(0, edges[-1])
    axes.set_ylim(0, top * 1.18)
    axes.set_xlabel("time in the step (s)" if step.baseline_seconds else "op")
    axes.set_ylabel(f"live bytes ({unit})")
    axes.set_title(f"{step.name}: live bytes over one step, everything kept")
    handles, labels = axes.get_legend_handles_labels()
    # In the order of the picture, beside it: inside it would hide something.
    figure.legend(
        handles[::-1],
        labels[::-1],
        loc="outside right upper",
        fontsize=8,
        frameon=False,
    )
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)
    return figure


def _edges(
    step: StepGraph, schedule: Any
) -> tuple[list[float], list[tuple[float, str]]]:
    """Begin of each schedule item (and the end), and where each phase begins.

    Without times every op is as wide as any other.
    """
    timed = step.baseline_seconds > 0
    now = 0.0
    edges: list[float] = []
    phases: list[tuple[float, str]] = []
    for item in schedule:
        edges.append(now)
        if type(item) is Run:
            op = step.ops[item.op]
            if not phases or phases[-1][1] != op.phase:
                phases.append((now, op.phase))
            now += op.seconds if timed else 1.0
    edges.append(now)
    return edges, phases


def _scale(peak_bytes: int) -> tuple[float, str]:
    for power, unit in ((40, "TiB"), (30, "GiB"), (20, "MiB"), (10, "KiB")):
        if peak_bytes >= 2**power:
            return 2.0**power, unit
    return 1.0, "B"


def _draw_layers(
    axes: Any, edges: list[float], kinds: dict[str, tuple[int, ...]], scale: float
) -> None:
    # Frees take no time: at each moment the picture shows the op that runs. Several
    # items at one moment would be drawn as a wall, of which only the ends show.
    names: list[str] = []
    columns: list[list[float]] = []
    colours: list[str] = []
    for kind, name, colour in _LAYERS:
        column = kinds[kind]
        if any(column):
            names.append(name)
            columns.append([*(v / scale for v in column), column[-1] / scale])
            colours.append(colour)
    axes.stackplot(
        edges, *columns, labels=names, colors=colours, step="post", linewidth=0
    )


def _draw_bands(
    axes: Any, phases: list[tuple[float, str]], end: float, top: float
) -> None:
    for number, (begin, phase) in enumerate(phases):
        stop = phases[number + 1][0] if number + 1 < len(phases) else end
        axes.axvspan(begin, stop, color=_BANDS[phase], zorder=-2, linewidth=0)
        if number:
            axes.axvline(begin, color="#888888", linewidth=0.8, linestyle=":")
        wide = stop - begin > 0.05 * end
        axes.text(
            (begin + stop) / 2,
            top * 1.165,
            f"{phase} {format_seconds(stop - begin)}" if wide else phase,
            ha="center",
            va="top",
            rotation=0 if wide else 90,
            fontsize=8,
            color="#444444",
        )


def _draw_peak(
    axes: Any,
    step: StepGraph,
    schedule: Any,
    edges: list[float],
    index: int,
    top: float,
) -> None:
    item = schedule[index]
    label = format_bytes(top * _scale(step.baseline_peak_bytes)[0])
    if type(item) is Run:
        op = step.ops[item.op]
        label = f"peak {label}, {op.module or op.name}"
    at = (edges[index] + edges[index + 1]) / 2
    left = at > 0.55 * edges[-1]
    axes.plot([at], [top], marker="v", color="#c0392b", markersize=7, clip_on=False)
    axes.annotate(
        label,
        (at, top),
        xytext=(-10 if left else 10, 7),
        textcoords="offset points",
        ha="right" if left else "left",
        fontsize=8,
        color="#c0392b",
    )

"""The report's charts as pictures, for papers and slides; needs matplotlib."""

from __future__ import annotations

import io
import re
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from types import ModuleType
from typing import Any

from lowtide.errors import InvalidArgumentError, MissingPackageError
from lowtide.reporting.tide import KIND_NAMES
from lowtide.step.files import write_whole
from lowtide.step.format import format_bytes, format_percent, format_seconds

COLORS = {
    "parameter": "#23475f",
    "buffer": "#365f78",
    "optimizer_state": "#4d7790",
    "input": "#8aa6b5",
    "gradient": "#9490c0",
    "activation": "#2b9fa2",
    "recomputed": "#efb163",
    "temporary": "#b9d6da",
}
INK, SOFT, WARN = "#10303d", "#557280", "#cf5a3f"
CYCLE = "#0b7a87 #d9822b #5f6fb0 #4f9d69 #b0596f #7a8b99 #8f6fb3 #a68a3c".split()
STYLE = {
    "font.size": 9,
    "axes.edgecolor": SOFT,
    "axes.labelcolor": INK,
    "xtick.color": SOFT,
    "ytick.color": SOFT,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "svg.hashsalt": "lowtide",
    # Names come from models: a dollar sign in them is a dollar sign.
    "text.parse_math": False,
}
MARKS = "os^D"
FORMATS = ("svg", "png", "pdf")


def save_plots(
    data: dict[str, Any], folder: Path, *, form: str = "svg", force: bool = False
) -> list[Path]:
    """Write every chart the report has, as `folder/NAME.FORM`; returns the files."""
    if form not in FORMATS:
        raise InvalidArgumentError(
            f"form={form!r}",
            "there is no such form",
            f"Use one of: {', '.join(FORMATS)}",
        )
    folder.mkdir(parents=True, exist_ok=True)
    written: list[Path] = []
    for name in available(data):
        picture = io.BytesIO()
        # Without a date and random ids, equal reports give equal files.
        stamp = {"Date": None} if form == "svg" else {}
        with _matplotlib().rc_context(STYLE):
            draw(data, name).savefig(picture, format=form, dpi=200, metadata=stamp)
        written.append(
            write_whole(folder / f"{name}.{form}", picture.getvalue(), force=force)
        )
    return written


def available(data: dict[str, Any]) -> list[str]:
    """The names of the charts this report has data for."""
    return [name for name, (has, _) in CHARTS.items() if has(data)]


def draw(data: dict[str, Any], name: str) -> Any:
    """One chart as a matplotlib `Figure`."""
    with _matplotlib().rc_context(STYLE):
        from matplotlib.figure import Figure

        figure = Figure(figsize=(7.2, 3.6), layout="constrained")
        CHARTS[name][1](figure.add_subplot(), data)
        return figure


def _matplotlib() -> ModuleType:
    try:
        import matplotlib
    except ImportError as error:
        raise MissingPackageError(
            "matplotlib",
            "pictures of the charts are drawn with it",
            "pip install lowtide[plot]",
        ) from error
    return matplotlib


def _byte_axis(axis: Any) -> None:
    """Ticks at round numbers of bytes; call it when the limits are set."""
    from matplotlib.ticker import MultipleLocator

    low, high = axis.get_view_interval()
    step = 1
    while step < (high - low) / 7:
        step *= 2
    axis.set_major_locator(MultipleLocator(step))
    _shown_as(axis, format_bytes)


def _shown_as(axis: Any, show: Callable[[float], str]) -> None:
    """Ticks as lowtide prints numbers, without a fraction that is zero."""
    from matplotlib.ticker import FuncFormatter, NullFormatter

    def label(value: float, _: int) -> str:
        return re.sub(r"\.0+ ", " ", show(value))

    axis.set_major_formatter(FuncFormatter(label))
    axis.set_minor_formatter(NullFormatter())


def _tide(axes: Any, data: dict[str, Any]) -> None:
    tide = data["tides"][0]
    runs = [*tide["run"], tide["num_runs"]]
    floor = [0] * len(tide["run"])
    for kind, column in tide["by_kind"].items():
        top = [a + b for a, b in zip(floor, column, strict=True)]
        axes.fill_between(
            runs,
            [*floor, floor[-1]],
            [*top, top[-1]],
            step="post",
            color=COLORS[kind],
            label=KIND_NAMES[kind],
            linewidth=0,
        )
        floor = top
    _lines_over(axes, data, tide)
    for band in tide["bands"][1:]:
        axes.axvline(band["first_run"], color=SOFT, linewidth=0.6)
    axes.set_xlim(0, tide["num_runs"])
    axes.set_ylim(0)
    axes.set_xlabel("runs of ops")
    _byte_axis(axes.yaxis)
    axes.legend(loc="upper left", bbox_to_anchor=(1.01, 1), frameon=False, fontsize=8)


def _lines_over(axes: Any, data: dict[str, Any], tide: dict[str, Any]) -> None:
    for curve, look in (
        (tide["outline"], {"color": SOFT, "linestyle": "--", "linewidth": 1}),
        (data["measured"], {"color": INK, "linewidth": 1}),
    ):
        if curve:
            axes.step(
                curve["run"],
                curve["live_bytes"],
                where="post",
                label=curve["label"],
                **look,
            )
    if tide["budget_bytes"] and not data["is_profile"]:
        words = f"budget {format_bytes(tide['budget_bytes'])}"
        axes.axhline(
            tide["budget_bytes"], color=WARN, linestyle=":", linewidth=1, label=words
        )
    axes.plot(
        [tide["peak_run"]],
        [tide["peak_bytes"]],
        "o",
        color=WARN,
        markersize=4,
        label=f"peak {format_bytes(tide['peak_bytes'])}",
    )


def _frontier(axes: Any, data: dict[str, Any]) -> None:
    frontier = data["frontier"]
    planners = list(dict.fromkeys(p["planner"] for p in frontier["points"]))
    for number, planner in enumerate(planners):
        found = [p for p in frontier["points"] if p["planner"] == planner]
        for points, look in (
            (found, {"marker": MARKS[number % 4], "linestyle": "", "label": planner}),
            ([p for p in found if p["is_best"]], {"linewidth": 1}),
        ):
            axes.plot(
                [p["peak_bytes"] for p in points],
                [p["overhead"] for p in points],
                markersize=4.5,
                color=CYCLE[number % 8],
                **look,
            )
    for reference in frontier["references"]:
        place = (reference["peak_bytes"], reference["overhead"])
        axes.plot(*place, "D", color=SOFT, markerfacecolor="none", markersize=5)
        axes.annotate(
            reference["name"],
            place,
            xytext=(6, 0),
            textcoords="offset points",
            fontsize=8,
            va="center",
            color=SOFT,
        )
    corners = [*frontier["bound"], {"budget_bytes": 0}]
    left = axes.get_xlim()[0]
    for here, following in pairwise(corners):
        until = max(left, following["budget_bytes"])
        axes.fill_between(
            [until, here["budget_bytes"]],
            here["overhead"],
            color=SOFT,
            alpha=0.15,
            linewidth=0,
        )
    axes.set_xlabel("peak")
    axes.set_ylabel("extra time")
    _byte_axis(axes.xaxis)
    _shown_as(axes.yaxis, format_percent)
    axes.legend(frameon=False, fontsize=8)


def _lifetimes(axes: Any, data: dict[str, Any]) -> None:
    bars = [(y, r, bar) for y, r in enumerate(data["lifetimes"]) for bar in r["bars"]]
    colors = [
        "recomputed" if bar["again"] and row["kind"] == "activation" else row["kind"]
        for _, row, bar in bars
    ]
    axes.hlines(
        [y for y, _, _ in bars],
        [bar["first_run"] for _, _, bar in bars],
        [bar["end_run"] for _, _, bar in bars],
        colors=[COLORS[kind] for kind in colors],
        linewidth=min(8.0, 180 / len(data["lifetimes"])),
        capstyle="butt",
    )
    axes.set_ylim(len(data["lifetimes"]) - 0.5, -0.5)
    axes.set_yticks([])
    axes.set_xlabel("runs of ops")
    axes.set_ylabel("largest storages")


def _batch(axes: Any, data: dict[str, Any]) -> None:
    for which, color, look in (("baseline", SOFT, "s--"), ("planned", CYCLE[0], "o-")):
        found = [r for r in data["batch"] if r[f"{which}_peak_bytes"] is not None]
        axes.plot(
            [r["batch"] for r in found],
            [r[f"{which}_peak_bytes"] for r in found],
            look,
            color=color,
            markersize=4,
            label=which,
        )
    axes.set_xlabel("batch size")
    axes.set_ylim(0)
    _byte_axis(axes.yaxis)
    axes.legend(frameon=False)


def _fidelity(axes: Any, data: dict[str, Any]) -> None:
    ops = [p for p in data["fidelity"]["ops"] if p["predicted"] and p["measured"]]
    axes.loglog(
        [p["predicted"] for p in ops],
        [p["measured"] for p in ops],
        ".",
        color=CYCLE[0],
        alpha=0.6,
    )
    ends = [p[k] for p in ops for k in ("predicted", "measured")]
    axes.plot([min(ends), max(ends)], [min(ends), max(ends)], "--", color=SOFT)
    axes.set_xlabel("predicted")
    axes.set_ylabel("measured")
    for axis in (axes.xaxis, axes.yaxis):
        _shown_as(axis, format_seconds)


def _search(axes: Any, data: dict[str, Any]) -> None:
    search = data["search"]
    axes.step(
        [*(p["search_seconds"] for p in search["incumbent"]), search["search_seconds"]],
        [*(p["overhead"] for p in search["incumbent"]), search["overhead"]],
        where="post",
        color=CYCLE[0],
        label="best plan",
    )
    axes.axhspan(
        min(0.0, search["bound_overhead"]),
        search["bound_overhead"],
        color=SOFT,
        alpha=0.15,
        label=f"out of reach, after {format_seconds(search['search_seconds'])}",
    )
    axes.set_xlabel("seconds of search")
    axes.set_ylabel("extra time")
    _shown_as(axes.yaxis, format_percent)
    axes.legend(frameon=False)


Has = Callable[[dict[str, Any]], bool]
CHARTS: dict[str, tuple[Has, Callable[[Any, dict[str, Any]], None]]] = {
    "tide": (lambda d: bool(d["tides"]), _tide),
    "frontier": (lambda d: bool(d["frontier"]), _frontier),
    "lifetimes": (lambda d: bool(d["lifetimes"]), _lifetimes),
    "batch": (lambda d: bool(d["batch"]), _batch),
    "fidelity": (lambda d: bool(d["fidelity"] and d["fidelity"]["ops"]), _fidelity),
    "search": (lambda d: bool(d["search"]), _search),
}

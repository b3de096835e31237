"""Pictures that commands write, in the look of the report's."""

from __future__ import annotations

import io
from typing import Any

from lowtide.reporting.plots import CYCLE, SOFT, STYLE, WARN, _byte_axis, _matplotlib
from lowtide.step.format import format_bytes

_SIDES = (
    ("baseline", "as it is", SOFT, "s--"),
    ("planned", "with a plan", CYCLE[0], "o-"),
)


def batch_picture(data: dict[str, Any], form: str) -> bytes:
    """Peak and throughput against batch size, side by side."""
    with _matplotlib().rc_context(STYLE):
        from matplotlib.figure import Figure

        figure = Figure(figsize=(9.0, 3.6), layout="constrained")
        peaks, speeds = figure.subplots(1, 2)
        _peaks(peaks, data)
        _speeds(speeds, data)
        return saved(figure, form)


def saved(figure: Any, form: str) -> bytes:
    """The figure as a file; equal figures give equal bytes."""
    out = io.BytesIO()
    stamp = {"Date": None} if form == "svg" else {}
    with _matplotlib().rc_context(STYLE):
        figure.savefig(out, format=form, dpi=200, metadata=stamp)
    return out.getvalue()


def _peaks(axes: Any, data: dict[str, Any]) -> None:
    for side, label, color, look in _SIDES:
        found = [r for r in data["rows"] if r[f"{side}_peak_bytes"] is not None]
        sizes = [r["batch"] for r in found]
        peaks = [r[f"{side}_peak_bytes"] for r in found]
        axes.plot(sizes, peaks, look, color=color, markersize=4, label=label)
        real = [r for r in data["rows"] if r[f"measured_{side}"]]
        axes.plot(
            [r["batch"] for r in real],
            [r[f"measured_{side}"]["peak_bytes"] for r in real],
            "x",
            color=WARN,
            label="measured" if side == "planned" and real else None,
        )
    budget = data["budget_bytes"]
    axes.axhline(budget, color=WARN, linestyle=":", linewidth=1)
    axes.annotate(
        f"budget {format_bytes(budget)}",
        (1.0, budget),
        xycoords=("axes fraction", "data"),
        ha="right",
        va="bottom",
        color=WARN,
        fontsize=8,
    )
    axes.set_xlabel("batch size")
    axes.set_ylabel("peak of the step")
    axes.set_ylim(0)
    _byte_axis(axes.yaxis)
    axes.legend(frameon=False)


def _speeds(axes: Any, data: dict[str, Any]) -> None:
    for side, label, color, look in _SIDES:
        key = f"{side}_samples_per_second"
        found = [r for r in data["rows"] if r[key] is not None]
        axes.plot(
            [r["batch"] for r in found],
            [r[key] for r in found],
            look,
            color=color,
            markersize=4,
            label=label,
        )
    axes.set_xlabel("batch size")
    axes.set_ylabel("samples per second")
    axes.set_ylim(0)
    axes.legend(frameon=False)


def against_picture(data: dict[str, Any], form: str) -> bytes:
    """Extra time against the peak that the system saw, one mark for each method."""
    with _matplotlib().rc_context(STYLE):
        from matplotlib.figure import Figure

        figure = Figure(figsize=(7.2, 3.8), layout="constrained")
        axes = figure.add_subplot()
        base = data["rows"][0]
        places = {
            row["name"]: (
                row["rss_peak_bytes"] / max(1, base["rss_peak_bytes"]),
                row["time_ratio"] - 1,
            )
            for row in data["rows"]
            if not row["problem"]
            and row["rss_peak_bytes"]
            # Made for another peak than the one that is drawn.
            and row["name"] != "lowtide_activations"
        }
        labels: list[tuple[float, float, str]] = []
        for row in data["rows"]:
            if row["name"] not in places:
                continue
            is_ours = row["name"].startswith("lowtide")
            x, y = places[row["name"]]
            exact = row["is_exact"]
            if row["matches"] in places:
                # Made for that method's peak: the line says so, without a name.
                other_x, other_y = places[row["matches"]]
                axes.plot([x, other_x], [y, other_y], color=SOFT, linewidth=0.6)
            axes.plot(
                x,
                y,
                "o" if is_ours else "s",
                color=CYCLE[0] if is_ours else SOFT,
                fillstyle="full" if exact else "none",
            )
            if not row["matches"]:
                labels.append((x, y, row["label"]))
        _label(axes, labels)
        axes.set_title(
            "Filled: the numbers of eager; hollow: others. Round: lowtide, a line to "
            "the method whose peak it was given.",
            fontsize=7,
        )
        axes.set_xlabel("peak of the step, as a share of eager's")
        axes.set_ylabel("extra time")
        axes.xaxis.set_major_formatter(lambda v, _: f"{100 * v:.0f} %")
        axes.yaxis.set_major_formatter(lambda v, _: f"{100 * v:+.0f} %")
        return saved(figure, form)


def _label(axes: Any, labels: list[tuple[float, float, str]]) -> None:
    """A letter at each mark, and what the letters stand for beside the axes."""
    for place, (x, y, text) in enumerate(sorted(labels)):
        letter = chr(ord("a") + place)
        axes.annotate(
            letter, (x, y), xytext=(5, 3), textcoords="offset points", fontsize=8
        )
        axes.text(
            1.03,
            0.97 - 0.07 * place,
            f"{letter}  {text}",
            transform=axes.transAxes,
            fontsize=8,
            verticalalignment="top",
        )


def table_picture(data: dict[str, Any], form: str) -> bytes:
    """Published and own extra time, model by model."""
    with _matplotlib().rc_context(STYLE):
        from matplotlib.figure import Figure

        rows = data["rows"]
        figure = Figure(figsize=(7.2, 0.8 + 0.28 * len(rows)), layout="constrained")
        axes = figure.add_subplot()
        places = list(range(len(rows)))
        axes.barh(
            [p - 0.2 for p in places],
            [r["published_overhead"] for r in rows],
            height=0.36,
            color=SOFT,
            label="published",
        )
        axes.barh(
            [p + 0.2 for p in places],
            [r["overhead"] for r in rows],
            height=0.36,
            color=CYCLE[0],
            label="lowtide",
        )
        names = [f"{r['name']} (-{100 * r['published_cut']:.0f} %)" for r in rows]
        axes.set_yticks(places, names)
        axes.invert_yaxis()
        axes.set_xlabel("extra time at the published cut")
        axes.xaxis.set_major_formatter(lambda v, _: f"{100 * v:.0f} %")
        axes.legend(frameon=False)
        return saved(figure, form)

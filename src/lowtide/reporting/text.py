"""Text for people, and the report as text: cards, a line of blocks, short tables."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TextIO

from rich.console import Console
from rich.table import Table
from rich.text import Text

from lowtide.step.format import format_bytes, format_percent, format_seconds
from lowtide.step.names import KIND_NAMES, printable, shortened

# What tables and long lines are laid out for where nobody looks at a terminal.
PIPE_WIDTH = 88
LEAST_WIDTH = 30
ROWS = 8
_BLOCKS = " ▁▂▃▄▅▆▇█"
_ASCII = " .:-=+*#%"
_NAME_WIDTH = 46


def console_for(
    out: TextIO, *, width: int | None = None, color: bool | None = None
) -> Console:
    """A console as wide as the terminal, without color where none is wanted.

    NO_COLOR, TERM=dumb and the like are honoured by rich.
    """
    console = Console(
        file=out,
        width=width or (None if out.isatty() else PIPE_WIDTH),
        color_system=None if color is False else "auto",
        highlight=False,
        markup=False,
        emoji=False,
        legacy_windows=False,
    )
    if console.width < LEAST_WIDTH:
        console.width = LEAST_WIDTH
    return console


class Sheet:
    """Writes to a console. Names may hold anything: they are shown, never obeyed."""

    def __init__(self, console: Console) -> None:
        self.console = console

    def line(self, text: str = "", style: str = "") -> None:
        """One paragraph."""
        self.write(Text(printable(text), style=style))

    def heading(self, text: str) -> None:
        """A bold line, after an empty one."""
        self.line()
        self.line(text, "bold")

    def pairs(self, rows: Sequence[Sequence[str]], *, solid: int = 1) -> None:
        """Names with their values, and optionally what they mean.

        The first `solid` columns are not broken into lines.
        """
        table = Table(box=None, show_header=False, padding=(0, 2, 0, 0))
        for place in range(max(map(len, rows))):
            table.add_column(no_wrap=place < solid, overflow="fold")
        for name, value, *details in rows:
            table.add_row(
                Text(name, style="dim"),
                Text(printable(value)),
                *(Text(printable(detail), style="dim") for detail in details),
            )
        self.write(table)

    def cards(self, cards: Sequence[dict[str, Any]]) -> None:
        """Cards of a report: a label, what it was and is, a detail."""
        values = (" to ".join(filter(None, (c["before"], c["value"]))) for c in cards)
        pairs = zip(cards, values, strict=True)
        rows = [(c["label"].lower(), value, c["detail"]) for c, value in pairs]
        self.pairs(rows, solid=2)

    def table(self, headings: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
        """A table. Columns are numbers, but for the first and those marked with `<`."""
        table = Table(box=None, header_style="dim", padding=(0, 2, 0, 0))
        for place, heading in enumerate(headings):
            is_number = place > 0 and not heading.startswith("<")
            table.add_column(
                heading.lstrip("<"),
                justify="right" if is_number else "left",
                no_wrap=is_number,
                overflow="fold",
            )
        for row in rows:
            table.add_row(*(Text(printable(cell)) for cell in row))
        self.write(table)

    def write(self, thing: Any, **options: Any) -> None:
        """Anything that rich can print."""
        with self.console.capture() as capture:
            self.console.print(thing, **options)
        # Tables pad their last column; a text that is kept in a file should not.
        lines = capture.get().removesuffix("\n").split("\n")
        self.console.file.writelines(f"{line.rstrip()}\n" for line in lines)


def render_text(
    data: dict[str, Any],
    out: TextIO,
    *,
    width: int | None = None,
    color: bool | None = None,
    is_short: bool = False,
) -> None:
    """Write the report as text; the short one is its numbers and its tide.

    `width` and `color` are the terminal's unless said; where `out` is not a terminal,
    or NO_COLOR is set, there is no color.
    """
    page = _Page(console_for(out, width=width, color=color))
    encoding = getattr(out, "encoding", None) or "utf-8"
    page.blocks = _BLOCKS if encoding.lower().startswith("utf") else _ASCII
    page.line(data["title"], "bold")
    view = data["views"][0]
    page.line(view["headline"])
    page.line()
    page.cards(view["cards"])
    if data["command"]:
        page.line()
        page.pairs([("made by", data["command"])])
    if view["tide"]:
        page.tide(view["tide"])
    if is_short:
        return
    if data["diff"]:
        page.changes(data["diff"])
    else:
        page.modules(view["modules"], is_profile=data["is_profile"])
    if view["peak"] and view["peak"]["rows"]:
        page.at_peak(view["peak"], data["ops"])
    if data["fidelity"]:
        page.fidelity(data["fidelity"])
    if data["notes"]:
        page.notes(data["notes"])


def sparkline(values: Sequence[int], top: int, blocks: str = _BLOCKS) -> str:
    """The values as blocks, from nothing to `top`; what is not nothing shows.

    >>> sparkline([0, 1, 50, 100], 100)
    ' ▁▄█'
    """
    most = len(blocks) - 1
    levels = (min(most, value * most // max(1, top)) for value in values)
    pairs = zip(values, levels, strict=True)
    return "".join(blocks[max(level, bool(value))] for value, level in pairs)


class _Page(Sheet):
    blocks = _BLOCKS

    def tide(self, tide: dict[str, Any]) -> None:
        over = tide["outline"]
        names = (tide["label"], over["label"]) if over else (tide["label"],)
        indent = max(map(len, names)) + 2
        columns = max(20, min(72, self.console.width - indent - 12))
        top = max(tide["peak_bytes"], over["peak_bytes"] if over else 0)
        self.heading("Live bytes over the step")
        for curve, style in ((tide, "cyan"), (over, "blue")):
            if curve:
                values = _by_column(curve, tide["num_runs"], columns)
                row = Text(printable(curve["label"]).ljust(indent), style="dim")
                row.append(sparkline(values, top, self.blocks), style=style)
                row.append(f"  {format_bytes(curve['peak_bytes'])}", style="dim")
                self.write(row, no_wrap=True, crop=False, overflow="ignore")
        self.line(" " * indent + _phase_line(tide, columns), "dim")

    def modules(self, modules: Sequence[dict[str, Any]], *, is_profile: bool) -> None:
        if not modules:
            return
        shown = {
            "kept_bytes": ("kept", format_bytes),
            "recomputed_bytes": ("recomputed", format_bytes),
            "recompute_seconds": ("extra time", format_seconds),
        }
        if is_profile:
            shown = {"kept_bytes": shown["kept_bytes"]}
        rows = [
            (
                shortened(m["label"], _NAME_WIDTH),
                f"x{m['num_modules']}" if m["num_modules"] > 1 else "",
                *(show(m[key]) if m[key] else "" for key, (_, show) in shown.items()),
            )
            for m in modules[:ROWS]
        ]
        self.heading(f"Kept {'' if is_profile else 'and recomputed '}by module")
        self.table(("module", "", *(name for name, _ in shown.values())), rows)
        self.more(len(modules))

    def more(self, count: int) -> None:
        if count > ROWS:
            self.line(f"and {count - ROWS} more", "dim")

    def at_peak(self, peak: dict[str, Any], ops: dict[str, list[Any]]) -> None:
        name, source = (ops[column][peak["op"]] for column in ("title", "source"))
        title = f"Alive at the peak, while {name} runs"
        self.heading(f"{title} ({source})" if source else title)
        rows = [
            (
                _storage_name(r),
                KIND_NAMES.get(str(r["kind"]), ""),
                f"x{r['num_storages']}" if r["num_storages"] > 1 else "",
                format_bytes(r["bytes"]),
                format_percent(r["bytes"] / max(1, peak["bytes"])),
            )
            for r in peak["rows"][:ROWS]
        ]
        self.table(("storage", "<kind", "", "bytes", "share"), rows)
        self.more(len(peak["rows"]))

    def fidelity(self, fidelity: dict[str, Any]) -> None:
        self.heading("Prediction and measurement")
        show = {"bytes": format_bytes, "seconds": format_seconds}
        rows = [
            (
                f"{r['what']}, {r['name']}",
                *(show[r["unit"]](r[side]) for side in ("predicted", "measured")),
                format_percent(r["difference"], signed=True),
            )
            for r in fidelity["rows"]
        ]
        if rows:
            self.table(("", "predicted", "measured", "difference"), rows)
        for check in fidelity["checks"]:
            verdict = "equal, bit by bit" if check["equal"] else "DIFFERENT"
            self.line(f"{check['name']}: {verdict}")

    def changes(self, diff: dict[str, Any]) -> None:
        self.table(
            ("", diff["names"][0], diff["names"][1], "change"),
            [(r["name"], r["first"], r["second"], r["change"]) for r in diff["rows"]],
        )
        for part in diff["parts"]:
            self.heading(part["title"])
            self.table(
                part["headings"], [[str(c) for c in r] for r in part["rows"][:ROWS]]
            )
            self.more(len(part["rows"]))

    def notes(self, notes: Sequence[dict[str, str]]) -> None:
        self.heading("Notes")
        table = Table(box=None, show_header=False, padding=(0, 1, 0, 0))
        for note in notes:
            table.add_row(Text("-"), Text(printable(note["text"])))
        self.write(table)


def _storage_name(row: dict[str, Any]) -> str:
    """The module, and the op in it that makes the storage unless it is named alike."""
    said = not row["made_by"] or row["label"].startswith(row["made_by"])
    name = row["label"] if said else f"{row['label']} {row['made_by']}"
    return shortened(name, _NAME_WIDTH)


def _by_column(curve: dict[str, Any], num_runs: int, columns: int) -> list[int]:
    """The highest sample of each column of runs; a column without one repeats."""
    found = [-1] * min(columns, max(1, num_runs))
    for run, value in zip(curve["run"], curve["live_bytes"], strict=True):
        column = min(len(found) - 1, int(run * len(found) / max(1, num_runs)))
        found[column] = max(found[column], value)
    last = 0
    for column, value in enumerate(found):
        last = found[column] = value if value >= 0 else last
    return found


def _phase_line(tide: dict[str, Any], columns: int) -> str:
    """The names of the phases under their stretches."""
    runs = max(1, tide["num_runs"])
    columns = min(columns, runs)
    line = ""
    for band in tide["bands"]:
        start = max(len(line), round(band["first_run"] * columns / runs))
        line = line.ljust(start) + band["phase"] + " "
    return line.rstrip()

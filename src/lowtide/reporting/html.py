"""The report as one HTML file: style, script and data inside, nothing from outside.

Names come from models and may hold anything. What is written into the page here is
escaped; what the script shows, it shows as text; the data block cannot end early,
because `<` never appears in it; and the page's own policy lets no other script run and
no request leave.
"""

from __future__ import annotations

import base64
import hashlib
import html
import io
import json
import re
from collections.abc import Sequence
from functools import cache
from importlib.resources import files
from typing import Any, TextIO

_SCRIPTS = (
    "core.js",
    "plot.js",
    "tide.js",
    "xy.js",
    "frontier.js",
    "lifetimes.js",
    "sections.js",
    "main.js",
)
_NOTEBOOK_SECTIONS = "tide frontier"


def render_html(data: dict[str, Any], out: TextIO, *, only: str = "") -> None:
    """Write the page. `only` names the sections to show, separated by spaces."""
    mode = f' class="notebook" data-only="{html.escape(only)}"' if only else ""
    parts = {
        "policy": _policy(_script()),
        "version": html.escape(data["version"]),
        "title": html.escape(data["title"]),
        "headline": _held(html.escape(data["headline"])),
        "fingerprint": html.escape(data["fingerprint"]),
        "command": _command(data["command"]),
        "cards": "\n".join(_card(card) for card in data["cards"]),
        "notes": "\n".join(_note(note) for note in data["notes"]),
        "notes_hidden": "" if data["notes"] else " hidden",
        "mode": mode,
        "style": _style(),
        "script": _script(),
        "data": _embedded(compact(data)),
    }
    template = asset("page.html")
    # In one pass over the template, so that nothing filled in is filled in again.
    pieces = template.split("{{")
    out.write(pieces[0])
    for piece in pieces[1:]:
        name, rest = piece.split("}}", 1)
        out.write(parts[name])
        out.write(rest)


def render_notebook(data: dict[str, Any], out: TextIO) -> None:
    """Write the cards, the tide and the frontier as a frame for a notebook cell."""
    page = io.StringIO()
    render_html(data, page, only=_NOTEBOOK_SECTIONS)
    height = 520 + 560 * bool(data["tides"]) + 480 * bool(data["frontier"])
    out.write(
        f'<iframe title="{html.escape(data["title"])}" srcdoc="'
        f'{html.escape(page.getvalue())}" sandbox="allow-scripts allow-downloads" '
        f'style="width:100%;height:{height}px;border:0;border-radius:12px"></iframe>'
    )


@cache
def asset(name: str) -> str:
    """The text of a file of the page."""
    return (files("lowtide.reporting") / "assets" / name).read_text("utf-8")


@cache
def _style() -> str:
    return asset("style.css").replace("{{dark}}", asset("dark.css").strip())


@cache
def _script() -> str:
    body = "\n".join(asset(name) for name in _SCRIPTS)
    return f'(() => {{\n"use strict";\n{body}}})();\n'


def _policy(script: str) -> str:
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    return (
        "default-src 'none'; style-src 'unsafe-inline'; img-src data: blob:; "
        f"script-src 'sha256-{digest}'; base-uri 'none'; form-action 'none'"
    )


def _embedded(data: Any) -> str:
    """JSON that can stand inside a script element: no character that HTML reads."""
    encoded = json.dumps(data, separators=(",", ":"), allow_nan=False)
    for character in "<>&":
        encoded = encoded.replace(character, f"\\u{ord(character):04x}")
    return encoded


def _command(command: str) -> str:
    if not command:
        return ""
    return (
        f'<p class="command"><code>{html.escape(command)}</code>'
        '<button type="button" data-copy>copy</button></p>'
    )


def _card(card: dict[str, Any]) -> str:
    number, is_word = card["number"], card["number"] is None
    value, detail = (_held(html.escape(card[key])) for key in ("value", "detail"))
    exact = ""
    if isinstance(number, int) and number >= 1024:
        exact = f'<div class="exact">{number:,} bytes</div>'.replace(",", "\u202f")
    attribute = "" if is_word else f' data-number="{number}"'
    return (
        f'<div class="card" id="card-{html.escape(card["id"])}"{attribute}>'
        f"<h3>{html.escape(card['label'])}</h3>"
        f'<div class="value{" word" * is_word}">{value}</div>'
        f'<div class="detail">{detail}</div>{exact}</div>'
    )


def _held(text: str) -> str:
    """The text with each number held to its unit, so that no line ends between."""
    return re.sub(r"(?<=\d) (?=(?:%|[KMGTP]?i?B|[mun]?s|min|h)\b|%)", "\u00a0", text)


def _note(note: dict[str, str]) -> str:
    tag = "" if note["kind"] == "note" else note["kind"]
    shown = f'<span class="tag">{html.escape(tag)}</span>' if tag else ""
    return f"<li>{shown}{html.escape(note['text'])}</li>"


def compact(data: dict[str, Any]) -> dict[str, Any]:
    """The same data in fewer characters; the page's script opens it again.

    Columns become differences (one number if they are constant), seconds become whole
    nanoseconds, and repeated texts become places in one table.
    """
    texts: dict[str, int] = {}

    def place(text: str) -> int:
        return texts.setdefault(text, len(texts)) if text else -1

    ops = dict(data["ops"])
    for column in ("target", "module", "source"):
        ops[column] = [place(text) for text in ops[column]]
    result = dict(data)
    result["ops"] = ops
    result["tides"] = [_compact_tide(tide) for tide in data["tides"]]
    if data["measured"]:
        result["measured"] = _compact_curve(data["measured"])
    result["texts"] = list(texts)
    return result


def _compact_tide(tide: dict[str, Any]) -> dict[str, Any]:
    is_full = len(tide["run"]) == tide["num_runs"]
    shut = {
        k: v for k, v in tide.items() if k not in ("live_bytes", "start_seconds", "run")
    }
    shut["run"] = None if is_full else _differences(tide["run"])
    shut["start"] = _nanoseconds(tide["start_seconds"])
    again = [i for i, flag in enumerate(tide["again"]) if flag]
    shut["again"] = _differences(again)
    shut["by_kind"] = {k: _column(v) for k, v in tide["by_kind"].items()}
    shut["outline"] = _compact_curve(tide["outline"]) if tide["outline"] else None
    return shut


def _compact_curve(curve: dict[str, Any]) -> dict[str, Any]:
    return {
        "label": curve["label"],
        "peak_bytes": curve["peak_bytes"],
        "run": _differences(curve["run"]),
        "start": _nanoseconds(curve["start_seconds"]),
        "live_bytes": _differences(curve["live_bytes"]),
    }


def _column(values: Sequence[int]) -> list[int] | int:
    return values[0] if len(set(values)) == 1 else _differences(values)


def _differences(values: Sequence[int]) -> list[int]:
    return [b - a for a, b in zip((0, *values), values, strict=False)]


def _nanoseconds(values: Sequence[float]) -> list[int]:
    return _differences([round(v * 1e9) for v in values])

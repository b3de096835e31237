"""The report as one HTML file: style, script and data inside, nothing from outside.

Names come from models and may hold anything. What is written into the page here is
escaped; what the script shows, it shows as text; the data block is base64, so nothing
in it is read as HTML; and the page's own policy lets no other script run and no request
leave.
"""

from __future__ import annotations

import base64
import gzip
import hashlib
import html
import json
import re
from functools import cache
from importlib.resources import files
from typing import Any

_SCRIPTS = "core plot tide xy frontier icicle lifetimes sections main".split()
_NOTEBOOK_SECTIONS = "tide frontier"
_COMMAND = (
    '<p class="command"><code>{}</code>'
    '<button type="button" data-copy>copy</button></p>'
)


def render_html(data: dict[str, Any], *, only: str = "") -> str:
    """The page. `only` names the sections to show, separated by spaces."""
    first, command = data["views"][0], data["command"]
    cards, facts = (
        "\n".join(_card(c) for c in first["cards"] if c["is_main"] is is_main)
        for is_main in (True, False)
    )
    parts = {
        "policy": _policy(_script()),
        "headline": _held(html.escape(first["headline"])),
        "command": _COMMAND.format(html.escape(command)) if command else "",
        "cards": cards,
        "facts": facts,
        "notes": "\n".join(_note(note) for note in data["notes"]),
        "notes_hidden": "" if data["notes"] else " hidden",
        "mode": f' class="notebook" data-only="{html.escape(only)}"' if only else "",
        "style": _style(),
        "script": _script(),
        "data": _embedded(data),
    }
    for name in ("version", "title", "fingerprint"):
        parts[name] = html.escape(data[name])
    return filled("page.html", parts)


def render_notebook(data: dict[str, Any]) -> str:
    """The cards, the tide and the frontier as a frame for a notebook cell."""
    page = html.escape(render_html(data, only=_NOTEBOOK_SECTIONS))
    charts = bool(data["views"][0]["tide"]) + bool(data["frontier"])
    height = 420 + 520 * charts
    return (
        f'<iframe title="{html.escape(data["title"])}" srcdoc="{page}" '
        'sandbox="allow-scripts allow-downloads" '
        f'style="width:100%;height:{height}px;border:0;border-radius:12px"></iframe>'
    )


def filled(name: str, parts: dict[str, str]) -> str:
    """A template with its parts, in one pass: nothing filled in is filled in again."""
    return re.sub(r"\{\{(\w+)\}\}", lambda hole: parts[hole[1]], asset(name))


@cache
def asset(name: str) -> str:
    return (files("lowtide.reporting") / "assets" / name).read_text("utf-8")


@cache
def _style() -> str:
    return asset("style.css").replace("{{dark}}", asset("dark.css").strip())


@cache
def _script() -> str:
    body = "\n".join(asset(f"{name}.js") for name in _SCRIPTS)
    return f'(async () => {{\n"use strict";\n{body}}})();\n'


def _policy(script: str) -> str:
    """No request leaves the page, and no script runs but its own."""
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    return (
        "default-src 'none'; style-src 'unsafe-inline'; img-src data: blob:; "
        f"script-src 'sha256-{digest}'; base-uri 'none'; form-action 'none'"
    )


def _embedded(data: Any) -> str:
    """The data as compressed JSON, in letters that HTML does not read.

    Columns of numbers and repeated names shrink to a tenth of their size.
    """
    encoded = json.dumps(data, separators=(",", ":"), allow_nan=False).encode()
    return base64.b64encode(gzip.compress(encoded, mtime=0)).decode()


def _card(card: dict[str, Any]) -> str:
    """A card, in the form in which the script writes another view's numbers into it."""
    name, label, before, value, detail = (
        _held(html.escape(card[key]))
        for key in ("id", "label", "before", "value", "detail")
    )
    number = card["number"]
    known = "" if number is None else f' data-number="{number}"'
    exact = f"{number:,} bytes".replace(",", "\u202f") if type(number) is int else ""
    return (
        f'<div class="card" id="card-{name}"{known} data-value="{value}">'
        f'<h3>{label}</h3><div class="value" title="{exact}">'
        f'<span class="before">{before}</span><span class="now">{value}</span></div>'
        f'<div class="detail">{detail}</div></div>'
    )


def _held(text: str) -> str:
    """The text with each number held to its unit, so that no line ends between."""
    return re.sub(r"(?<=\d) (?=(?:%|[KMGTP]?i?B|[mun]?s|min|h)\b|%)", "\u00a0", text)


def _note(note: dict[str, str]) -> str:
    tag = f'<span class="tag">{html.escape(note["kind"])}</span>'
    shown = "" if note["kind"] == "note" else tag
    return f"<li>{shown}{html.escape(note['text'])}</li>"

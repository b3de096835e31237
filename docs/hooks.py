"""Make the pages of the site that nobody writes by hand.

mkdocs calls the functions named `on_...` while it builds:

* each planner gets a page, made from its module docstring, and a row in the list;
* each verb of the command line shows the help that it prints;
* the tables of measurements are read from the files that the benchmarks wrote;
* the changelog is that of the project.

So the file of a new planner, or of a new option, is all the documentation it needs.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import typer
from mkdocs.exceptions import PluginError
from mkdocs.structure.files import File

from lowtide import planners
from lowtide.cli import app

# Hooks are loaded by their path, not as a package.
sys.path.insert(0, str(Path(__file__).parent))
import figures

# What a planner's docstring says, each part from the start of a line, and the heading
# it has on the page.
PARTS = {
    "Problem": "Problem",
    "Idea": "Idea",
    "Reference": "Reference",
    "Complexity": "Complexity",
    "Loses": "When it loses",
}
_PART = re.compile(rf"^({'|'.join(PARTS)})\b(:?)\s*", re.MULTILINE)
_HELP = re.compile(r"^<!-- help (\w+) -->$", re.MULTILINE)
_FIGURES = re.compile(r"^<!-- figures ([\w-]+) -->$", re.MULTILINE)
_LIST = "<!-- planners -->"
_WIDTH = 78


def on_config(config: Any) -> Any:
    """Add the planners' pages to the navigation."""
    (section,) = [entry["Planners"] for entry in config.nav if "Planners" in entry]
    section.extend({name: page_of(name)} for name in built_in())
    return config


def on_files(files: Any, config: Any) -> Any:
    """Add the pages that no file in `docs` holds."""
    for name in built_in():
        text = planner_page(name, planners.load(name).doc)
        files.append(File.generated(config, page_of(name), content=text))
    changelog = Path(config.config_file_path).with_name("CHANGELOG.md").read_text()
    # Its long lists would fill the results of every search.
    unsearched = "---\nsearch:\n  exclude: true\n---\n"
    files.append(File.generated(config, "changelog.md", content=unsearched + changelog))
    for name in figures.PICTURES:
        source = str(figures.RESULTS / name)
        files.append(File.generated(config, f"results/{name}", abs_src_path=source))
    return files


def on_page_markdown(markdown: str, *, page: Any, **_: Any) -> str:
    """Fill in what pages leave to the code: the list of planners, the verbs' help."""
    if _LIST in markdown:
        markdown = markdown.replace(_LIST, "\n".join(planner_rows()))
    markdown = _FIGURES.sub(lambda found: figures.table(found[1]), markdown)
    if not _HELP.search(markdown):
        return markdown
    helps = dict(helps_of_verbs())
    asked = _HELP.findall(markdown)
    if sorted(asked) != sorted(helps):
        odd = ", ".join(sorted(set(asked) ^ set(helps))) or "one of them twice"
        raise PluginError(f"{page.file.src_uri} does not show every verb once: {odd}")
    return _HELP.sub(lambda found: f"```text\n{helps[found[1]]}\n```", markdown)


def built_in() -> list[str]:
    """The planners of this project; other packages document their own."""
    return [n for n in planners.available() if find_spec(f"lowtide.planners.{n}")]


def page_of(name: str) -> str:
    """Where a planner's page is, within `docs`."""
    return f"planners/{name}.md"


def parts_of(doc: str) -> list[tuple[str, str]]:
    """The parts of a planner's docstring as (name, text), in their order.

    What stands before the first is no part. "Loses: this" says "this"; "Loses when
    that" stays as it is.
    """
    found = list(_PART.finditer(doc))
    ends = [part.start() for part in found[1:]] + [len(doc)]
    parts = []
    for part, end in zip(found, ends, strict=True):
        text = doc[part.end() if part[2] else part.start() : end].strip()
        parts.append((part[1], text[:1].upper() + text[1:]))
    return parts


def planner_page(name: str, doc: str) -> str:
    """A planner's page."""
    summary = doc.partition("\n\n")[0]
    lines = [f"# {name}", summary]
    for part, text in parts_of(doc):
        lines += [f"## {PARTS[part]}", _linked(text, name)]
    lines += [
        "## Use",
        f"```\nlowtide plan TARGET --budget 60% --planner {name}\n```",
        f"::: lowtide.planners.{name}.plan\n    options:\n      heading_level: 3",
    ]
    return "\n\n".join(lines) + "\n"


def planner_rows() -> Iterator[str]:
    """The list of planners, as lines of a table."""
    yield "| planner | what it does |"
    yield "|---|---|"
    for name in built_in():
        summary = planners.load(name).doc.partition("\n\n")[0].rstrip(".")
        yield f"| [{name}]({name}.md) | {' '.join(summary.split())} |"


def _linked(text: str, own: str) -> str:
    """The text with the names of other planners as links to their pages."""
    others = [name for name in built_in() if name != own]
    return re.sub(rf"`({'|'.join(others)})`", r"[\1](\1.md)", text)


def helps_of_verbs() -> Iterator[tuple[str, str]]:
    """Each verb with what `lowtide VERB --help` prints."""
    group: Any = typer.main.get_command(app)
    settings: Any = {"resilient_parsing": True, "terminal_width": _WIDTH}
    outer = group.make_context("lowtide", [], **settings)
    for name, verb in group.commands.items():
        inner = verb.make_context(name, [], parent=outer, **settings)
        yield name, verb.get_help(inner).rstrip()

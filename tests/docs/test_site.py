"""The documentation site: what it makes of planners and verbs.

That links and names in it are right is checked by building it: `make docs`.
"""

import json
import re
from pathlib import Path
from types import SimpleNamespace

import pytest
from mkdocs.config import load_config
from mkdocs.exceptions import PluginError
from mkdocs.structure.files import get_files

from benchmarks.stacks import STACKS
from docs import hooks
from lowtide import planners
from lowtide.cli import VERBS

ROOT = Path(__file__).parents[2]
NAMES = planners.available()


@pytest.fixture(scope="module")
def config():
    """The site's configuration, as plugins and hooks leave it."""
    found = load_config(str(ROOT / "mkdocs.yml"))
    return found.plugins.on_config(found)


@pytest.fixture(scope="module")
def pages(config):
    """The pages by path, those written and those made."""
    files = config.plugins.on_files(get_files(config), config=config)
    return {file.src_uri: file for file in files.documentation_pages()}


def paths(nav):
    """Every path in a part of the navigation."""
    for entry in nav:
        for value in entry.values() if isinstance(entry, dict) else [entry]:
            yield from paths(value) if isinstance(value, list) else [value]


def test_the_search_asks_nothing_of_the_network(config, pages):
    assert config.extra["polyfills"] == ["javascripts/iframe-worker.js"]
    assert "search:\n  exclude: true" in pages["changelog.md"].content_string


def test_every_page_is_in_the_navigation_once(config, pages):
    listed = list(paths(config.nav))
    assert sorted(listed) == sorted(pages)


@pytest.mark.parametrize("name", NAMES)
def test_every_planner_has_its_page(config, pages, name):
    assert hooks.page_of(name) in list(paths(config.nav))
    text = pages[hooks.page_of(name)].content_string
    assert text.startswith(f"# {name}\n")
    for heading in hooks.PARTS.values():
        assert text.count(f"\n## {heading}\n") == 1


@pytest.mark.parametrize("name", NAMES)
def test_every_planner_says_the_five_parts_in_order(name):
    parts = hooks.parts_of(planners.load(name).doc)
    assert [part for part, _ in parts] == list(hooks.PARTS)
    assert all(text.endswith((".", ")")) for _, text in parts)


def test_a_planner_that_leaves_out_a_part_is_noticed():
    doc = "Do it.\n\nProblem: this.\nIdea: so.\n\nWith Loses inside.\nLoses when not."
    assert hooks.parts_of(doc) == [
        ("Problem", "This."),
        ("Idea", "So.\n\nWith Loses inside."),
        ("Loses", "Loses when not."),
    ]


def test_planners_in_a_text_become_links():
    page = hooks.planner_page("rotor", "Do it.\n\nLoses to `auto`, not to `rotor`.")
    assert "Loses to [auto](auto.md), not to `rotor`." in page


def test_the_list_of_planners_names_them_all(pages):
    text = filled(pages["planners/index.md"].content_string)
    for name in NAMES:
        assert f"| [{name}]({name}.md) |" in text


def test_the_command_line_page_has_every_verb_with_its_examples(pages):
    text = filled(pages["command-line.md"].content_string)
    pairs = (pair for verbs in VERBS.values() for pair in verbs.items())
    for verb, examples in pairs:
        assert f"\n### {verb.__name__}\n" in text
        for example in examples:
            assert f"$ {example}\n" in text


def test_a_verb_that_is_not_shown_fails_the_build():
    with pytest.raises(PluginError, match=r"does not show every verb once: .*bench"):
        filled("<!-- help plan -->")


def filled(text):
    """A page's text with what our hooks put into it."""
    page = SimpleNamespace(file=SimpleNamespace(src_uri="page.md"))
    return hooks.on_page_markdown(text, page=page)


def test_every_figure_is_read_from_a_result():
    tables = hooks.figures._TABLES
    pages = [page.read_text() for page in (ROOT / "docs").rglob("*.md")]
    marker = re.compile(r"^<!-- figures ([\w-]+) -->$", re.MULTILINE)
    asked = [name for page in pages for name in marker.findall(page)]
    assert sorted(asked) == sorted(tables)
    for name in asked:
        rows = hooks.figures.table(name).splitlines()
        assert sum(row.startswith("|") for row in rows) >= 3, name
        assert re.match(r"\*.*(measured|predicted).*\.\*$", rows[0], re.I), name


def test_the_readme_shows_the_measured_headline():
    _, _, rows = hooks.figures.table("headline").partition("\n\n")
    assert rows in (ROOT / "README.md").read_text()


def test_included_files_are_included():
    """A formatter once split the marker, and the page showed it instead of the file."""
    for page in (ROOT / "docs").glob("*.md"):
        for line in page.read_text().splitlines():
            if line.replace(" ", "").startswith("--8"):
                assert line.startswith('--8<-- "'), f"{page.name}: {line}"


def test_every_stack_has_a_script_a_recipe_and_a_row():
    scripts = {path.stem for path in (ROOT / "examples" / "stacks").glob("*.py")}
    assert scripts == set(STACKS)
    for name, (library, _) in STACKS.items():
        recipe = (ROOT / "docs" / "recipes" / f"{library}.md").read_text()
        assert f'--8<-- "examples/stacks/{name}.py"' in recipe
    measured = json.loads((ROOT / "benchmarks/results/stacks.json").read_text())
    assert [row["name"] for row in measured] == list(STACKS)
    assert all(row["is_exact"] for row in measured)

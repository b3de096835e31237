"""The search of the documentation works on pages that are opened from disk."""

import shutil
from pathlib import Path

import pytest
from mkdocs.commands.build import build
from mkdocs.config import load_config

from tests.docs.pages import ROOT
from tests.real.test_report_browser import browser as browser

pytestmark = [pytest.mark.browser, pytest.mark.real]

# As in our own mkdocs.yml, without what takes long.
SETTINGS = """
site_name: two pages
theme: {name: material, font: false}
plugins: [search, offline]
extra: {polyfills: [javascripts/iframe-worker.js]}
"""


@pytest.fixture
def site(tmp_path, monkeypatch) -> Path:
    monkeypatch.setenv("NO_MKDOCS_2_WARNING", "1")
    (tmp_path / "mkdocs.yml").write_text(SETTINGS)
    docs = tmp_path / "docs"
    shutil.copytree(ROOT / "docs" / "javascripts", docs / "javascripts")
    (docs / "inner").mkdir()
    (docs / "index.md").write_text("# Sea\n\nNothing here.")
    (docs / "inner" / "moon.md").write_text("# Moon\n\nIt makes the springtide.")
    build(load_config(str(tmp_path / "mkdocs.yml")))
    return tmp_path / "site"


@pytest.mark.parametrize("page", ["index.html", "inner/moon.html"])
def test_a_word_is_found(browser, site, page):
    context = browser.new_context(offline=True)
    opened = context.new_page()
    opened.goto((site / page).as_uri())
    field = opened.locator("input.md-search__input")
    field.click()
    field.press_sequentially("springtide")
    found = opened.locator(".md-search-result__link").first
    found.wait_for(state="attached")
    assert found.get_attribute("href").partition("?")[0].endswith("inner/moon.html")
    context.close()

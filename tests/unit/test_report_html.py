"""The page as a file: escaped, whole, small. What it does is tested in a browser."""

import base64
import gzip
import html
import json
import re

import pytest

import lowtide
from lowtide.reporting.html import _script, _style
from tests.report_steps import NASTY, everything, gpt, renamed

DATA = re.compile(r'<script type="application/gzip" id="data">(.*?)</script>', re.S)


def embedded(page):
    (found,) = DATA.findall(page)
    return json.loads(gzip.decompress(base64.b64decode(found)))


@pytest.fixture(scope="module")
def made():
    return lowtide.report(*everything(gpt(3)), command="lowtide report x")


def test_the_page_without_data_is_small(made):
    page = made.to_html()
    assert len(page) - len(DATA.findall(page)[0]) < 150_000


def test_nothing_is_left_to_fill_in(made):
    page = made.to_html()
    assert "{{" not in page.replace(_script(), "")
    assert "<title>gpt - lowtide</title>" in page


def test_the_page_names_no_address(made):
    page = made.to_html()
    assert not re.search(r"https?://|//[a-z]+\.|@import|url\(", page)
    assert "default-src 'none'" in page


def test_cards_carry_exact_numbers(made):
    page = made.to_html()
    for card in made.to_dict()["views"][0]["cards"]:
        if isinstance(card["number"], int):
            number = f'id="card-{card["id"]}" data-number="{card["number"]}"'
            assert number in page
            assert f"{card['number']:,} bytes".replace(",", "\u202f") in page


@pytest.mark.parametrize(
    "word", [NASTY, "</script>", "<!--", '"><img src=x onerror=x>', "{{script}}", "]]>"]
)
def test_names_cannot_become_markup(word):
    step = renamed(gpt(2), word)
    made = lowtide.report(step, word, title=word, command=word)
    page = made.to_html()
    assert page.count("</script>") == 2
    shown = DATA.sub("", page).replace(_style(), "")
    shown = shown.replace(f"<script>{_script()}</script>", "")
    if "<" in word:
        assert word not in shown
    assert html.escape(word) in shown
    assert embedded(page)["title"] == word
    assert embedded(page)["ops"]["name"][0].endswith(word)


def test_the_data_in_the_page_is_the_reports_and_small(made):
    page = made.to_html()
    assert embedded(page) == json.loads(json.dumps(made.to_dict()))
    assert len(DATA.findall(page)[0]) < 0.2 * len(json.dumps(made.to_dict()))


def test_the_notebook_view_is_one_closed_frame(made):
    frame = made._repr_html_()
    assert frame.startswith("<iframe ")
    assert frame.endswith("></iframe>")
    assert 'sandbox="allow-scripts allow-downloads"' in frame
    inside = re.search(r'srcdoc="([^"]*)"', frame)
    assert inside
    page = html.unescape(inside[1])
    assert 'data-only="tide frontier"' in page
    assert embedded(page)["title"] == "gpt"


def test_no_number_is_infinite():
    step = gpt(1)
    with pytest.raises(ValueError, match="not JSON compliant"):
        lowtide.Report(
            {**lowtide.report(step).to_dict(), "batch": [float("inf")]}
        ).to_html()

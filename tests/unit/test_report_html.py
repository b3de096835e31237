"""The page as a file: escaped, whole, small. What it does is tested in a browser."""

import html
import json
import re

import pytest

import lowtide
from lowtide.reporting.html import _script, _style, compact
from tests.report_steps import NASTY, everything, gpt, renamed

DATA = re.compile(r'<script type="application/json" id="data">(.*?)</script>', re.S)


def embedded(page):
    (found,) = DATA.findall(page)
    return json.loads(found)


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
    for card in made.to_dict()["cards"]:
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


def test_compact_data_opens_to_the_same_numbers(made):
    data = made.to_dict()
    small = compact(data)
    for tide, shut in zip(data["tides"], small["tides"], strict=True):
        for kind, column in tide["by_kind"].items():
            assert opened(shut["by_kind"][kind], len(column)) == column
        assert opened(shut["outline"]["live_bytes"], 0) == tide["outline"]["live_bytes"]
        assert opened(shut["start"], 0) == [
            round(s * 1e9) for s in tide["start_seconds"]
        ]
    names = [small["texts"][i] if i >= 0 else "" for i in small["ops"]["module"]]
    assert names == data["ops"]["module"]
    assert len(json.dumps(small)) < 0.6 * len(json.dumps(data))


def opened(column, length):
    if isinstance(column, int):
        return [column] * length
    total, found = 0, []
    for step in column:
        total += step
        found.append(total)
    return found


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

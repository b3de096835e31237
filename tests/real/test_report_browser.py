"""The report in a real browser, with the network blocked.

Needs Chromium and Playwright; a missing one is a failure that says how to install it,
because a report that nobody opened is not tested. Leave these tests out with
`-m "not real"`.
"""

import io
import shutil
from contextlib import contextmanager

import pytest

import lowtide
from lowtide.step.format import format_bytes
from tests.report_steps import (
    NASTY,
    dropping,
    everything,
    frontier,
    gpt,
    measured,
    renamed,
)

pytestmark = [pytest.mark.browser, pytest.mark.real, pytest.mark.timeout(240)]

ARGS = (
    "--no-sandbox --disable-gpu --disable-background-networking --disable-sync "
    "--disable-component-update --no-first-run --disable-extensions"
).split()
CHARTS = (
    "tide-chart frontier-chart lifetimes-chart batch-peak batch-speed search-chart"
).split()


def find_chromium():
    for name in ("chromium", "chromium-browser", "google-chrome"):
        if path := shutil.which(name):
            return path
    pytest.fail(
        "tests marked `real` need Chromium, and none is installed. Install it with "
        "`apt-get install -y chromium`, or leave them out with -m 'not real'.",
        pytrace=False,
    )


@pytest.fixture(scope="module")
def browser():
    path = find_chromium()
    try:
        from playwright.sync_api import sync_playwright
    except ImportError:
        pytest.fail(
            "tests marked `real` need Playwright: `pip install playwright` (its own "
            "browsers are not needed), or leave them out with -m 'not real'.",
            pytrace=False,
        )
    with sync_playwright() as playwright:
        running = playwright.chromium.launch(executable_path=path, args=ARGS)
        yield running
        running.close()


@contextmanager
def opened(browser, path, *, width=1280, height=900, scheme="light"):
    """The page at this path; fails on any request, error or word on the console."""
    context = browser.new_context(
        viewport={"width": width, "height": height}, color_scheme=scheme, offline=True
    )
    page = context.new_page()
    said: list[str] = []
    page.on("console", lambda message: said.append(message.text))
    page.on("pageerror", lambda error: said.append(str(error)))
    page.on("dialog", lambda dialog: said.append(dialog.message))
    page.on(
        "request",
        lambda request: (
            said.append(request.url) if request.url != path.as_uri() else None
        ),
    )
    page.goto(path.as_uri())
    page.wait_for_selector("html[data-ready]")
    yield page
    assert said == []
    context.close()


@pytest.fixture(scope="module")
def step():
    return gpt(6)


@pytest.fixture(scope="module")
def made(step):
    return lowtide.report(*everything(step), command="lowtide report gpt.plan.json")


@pytest.fixture(scope="module")
def path(made, tmp_path_factory):
    return made.save(tmp_path_factory.mktemp("report") / "report.html")


def colors(page, chart):
    """How many different colors the canvas of a chart shows."""
    return page.evaluate(
        """id => {
          const canvas = document.querySelector(`#${id} canvas`);
          const { width, height } = canvas;
          const data = canvas.getContext("2d").getImageData(0, 0, width, height).data;
          const seen = new Set();
          for (let i = 0; i < data.length; i += 4)
            if (data[i + 3] > 200) seen.add(`${data[i]},${data[i + 1]},${data[i + 2]}`);
          return seen.size;
        }""",
        chart,
    )


def point_at(page, chart, share_x, share_y=0.5):
    """Move the pointer into a chart, by shares of its inner width and its height."""
    page.locator(f"#{chart}").scroll_into_view_if_needed()
    box = page.locator(f"#{chart}").bounding_box()
    left, right = (230, 14) if chart == "lifetimes-chart" else (68, 14)
    x = box["x"] + left + share_x * (box["width"] - left - right)
    page.mouse.move(x, box["y"] + share_y * box["height"])
    return x, box["y"] + share_y * box["height"]


def tip(page):
    return page.locator("#tip").inner_text()


def ticks(page, chart):
    """A fingerprint of what a chart shows, to see that it changed.

    Taken from its canvases: a screenshot also depends on where the page is scrolled to.
    """
    return page.evaluate(
        """id => [...document.querySelectorAll(`#${id} canvas`)]
          .map(canvas => canvas.toDataURL()).join(" ")""",
        chart,
    )


def test_every_section_is_there_and_every_chart_is_drawn(browser, path):
    with opened(browser, path) as page:
        headings = page.locator("main section:not([hidden]) h2").all_inner_texts()
        assert headings == [
            "The tide",
            "The frontier",
            "At the peak",
            "Lifetimes",
            "Kept and recomputed",
            "Batch size",
            "Prediction and measurement",
            "The search",
            "Notes",
        ]
        for chart in CHARTS:
            assert colors(page, chart) > 3, chart


def test_the_page_shows_the_plans_bytes(browser, path, step, made):
    plan = dropping(step, 0.6)
    with opened(browser, path) as page:

        def number(card):
            return int(page.locator(f"#card-{card}").get_attribute("data-number"))

        assert number("budget") == plan.budget_bytes
        assert number("peak") == plan.peak_bytes
        exact = page.locator("#card-peak .value").get_attribute("title")
        assert int("".join(filter(str.isdigit, exact))) == plan.peak_bytes
        card = page.locator("#card-peak").inner_text().replace("\xa0", " ")
        for nbytes in (step.eager_peak_bytes, plan.peak_bytes, plan.peak_bytes + 4096):
            assert format_bytes(nbytes) in card
        boxes = page.locator("#icicle-chart .box")
        assert int(boxes.first.get_attribute("data-bytes")) == plan.peak_bytes
        page.get_by_role("button", name="show all").click()
        rows = page.locator("#peak-table tbody tr").all()
        total = sum(int(row.get_attribute("data-bytes")) for row in rows)
        assert total == plan.peak_bytes
        cells = page.locator("#fidelity-table [data-value]").all()
        values = [float(cell.get_attribute("data-value")) for cell in cells[:6]]
        assert values == [
            plan.baseline_seconds,
            1.01 * plan.baseline_seconds,
            plan.peak_bytes,
            plan.peak_bytes + 4096,
            plan.seconds,
            1.02 * plan.seconds,
        ]
        kept = page.locator("#modules-table tr[data-kept]").all()
        total = sum(int(row.get_attribute("data-kept")) for row in kept)
        assert total == sum(step.sizes[s] for s in plan.kept)


def test_three_cards_and_the_chart_are_above_the_fold(browser, path):
    with opened(browser, path, height=900) as page:
        cards = page.locator("#cards .card h3").all_inner_texts()
        assert cards == ["Peak", "Time", "Bits"]
        assert "identical" in page.locator("#card-bits").inner_text()
        box = page.locator("#tide-chart").bounding_box()
        assert box["y"] + box["height"] <= 900
        assert page.locator("#frontier-chart").bounding_box()["y"] < 700


def test_the_icicle_opens_a_box_and_goes_back(browser, path):
    with opened(browser, path) as page:
        boxes = page.locator("#icicle-chart .box")
        whole = boxes.first.get_attribute("data-bytes")
        count = boxes.count()
        boxes.nth(1).hover()
        assert "of the peak" in tip(page)
        boxes.nth(1).click()
        assert "layers" in page.locator("#icicle-path").inner_text()
        assert int(boxes.first.get_attribute("data-bytes")) < int(whole)
        width = page.locator("#icicle-chart").bounding_box()["width"]
        assert boxes.first.bounding_box()["width"] == pytest.approx(width, abs=1)
        boxes.first.click()
        assert boxes.first.get_attribute("data-bytes") == whole
        assert boxes.count() == count
        boxes.first.focus()
        page.keyboard.press("ArrowRight")
        page.keyboard.press("Enter")
        assert int(boxes.first.get_attribute("data-bytes")) < int(whole)
        page.keyboard.press("Escape")
        assert boxes.first.get_attribute("data-bytes") == whole


def test_ops_are_found_by_the_keyboard(browser, path, made):
    data = made.to_dict()
    tide = data["views"][0]["tide"]
    found = [
        run
        for run, op in zip(tide["run"], tide["op"], strict=True)
        if "layers.2.mlp" in data["ops"]["module"][op]
    ]
    with opened(browser, path) as page:
        before = ticks(page, "tide-chart")
        status = page.locator("#tide-status")
        page.keyboard.press("/")
        page.keyboard.type("LAYERS.2.mlp")
        assert status.inner_text().startswith(f"{len(found)} runs match")
        assert ticks(page, "tide-chart") != before
        for place in (1, 2):
            page.keyboard.press("Enter")
            words = f"{place} of {len(found)}: run {found[place - 1] + 1}: "
            assert status.inner_text().startswith(words)
        page.keyboard.press("Shift+Enter")
        assert status.inner_text().startswith(f"1 of {len(found)}: ")
        assert "layers.2.mlp" in tip(page)
        page.keyboard.press("Escape")
        assert status.inner_text() == ""
        assert ticks(page, "tide-chart") == before


def test_hover_names_the_op_under_the_pointer(browser, path, made):
    data = made.to_dict()
    tide = data["views"][0]["tide"]
    run = tide["num_runs"] // 3
    op = tide["op"][run]
    with opened(browser, path) as page:
        point_at(page, "tide-chart", (run + 0.5) / tide["num_runs"])
        text = tip(page)
        assert data["ops"]["title"][op] in text
        assert data["ops"]["name"][op] in text
        assert data["ops"]["source"][op] in text
        assert f"run {run + 1} of {tide['num_runs']}" in text
        assert f"{format_bytes(tide['live_bytes'][run])} alive" in text
        # The baseline's bytes at the same op, and what the plan saves there.
        over = tide["outline"]
        base = [
            b for r, b in zip(over["run"], over["live_bytes"], strict=True) if r <= run
        ][-1]
        assert f"baseline\n{format_bytes(base)}" in text
        assert f"{format_bytes(base - tide['live_bytes'][run])} less, " in text
        point_at(page, "tide-chart", (tide["peak_run"] + 0.5) / tide["num_runs"])
        assert f"{format_bytes(tide['peak_bytes'])} alive" in tip(page)
        page.mouse.move(2, 2)
        assert page.locator("#tip").is_hidden()


def test_zoom_by_dragging_and_back(browser, path, made):
    tide = made.to_dict()["views"][0]["tide"]
    with opened(browser, path) as page:
        before = ticks(page, "tide-chart")
        point_at(page, "tide-chart", 0.25)
        page.mouse.down()
        point_at(page, "tide-chart", 0.40)
        x, y = point_at(page, "tide-chart", 0.50)
        page.mouse.up()
        point_at(page, "tide-chart", 0.001)
        first = tip(page)
        run = int(0.25 * tide["num_runs"])
        assert any(f"run {n} of" in first for n in (run, run + 1, run + 2)), first
        page.mouse.dblclick(x, y)
        point_at(page, "tide-chart", 0.001)
        assert "run 1 of" in tip(page)
        page.mouse.move(2, 2)
        assert ticks(page, "tide-chart") == before
        page.get_by_role("button", name="peak", exact=True).click()
        point_at(page, "tide-chart", 0.52)
        assert f"of {tide['num_runs']}" in tip(page)


def test_the_axis_can_be_time(browser, path, made):
    data = made.to_dict()
    tide = data["views"][0]["tide"]
    with opened(browser, path) as page:
        page.get_by_role("button", name="by time").click()
        share = 0.6
        point_at(page, "tide-chart", share)
        goal = share * tide["seconds"]
        expected = [
            data["ops"]["title"][op]
            for op, start in zip(tide["op"], tide["start_seconds"], strict=True)
            if abs(start - goal) < 0.03 * tide["seconds"]
        ]
        assert tip(page).splitlines()[0] in expected
        assert colors(page, "lifetimes-chart") > 3


def place_on_frontier(page, data, point):
    """Where the chart must draw a point: linear axes with a little room around."""
    points = [*data["points"], *data["references"]]
    xs = [p["peak_bytes"] for p in points]
    xs += [data["bound_bytes"], data["eager_peak_bytes"]]
    ys = [p["overhead"] for p in points]
    room = 0.06 * (max(xs) - min(xs))
    low, high = max(0, min(xs) - room), max(xs) + room
    top = 1.1 * max(0.02, *ys)
    bottom = min(0, *ys) - 0.04 * top
    page.locator("#frontier-chart").scroll_into_view_if_needed()
    box = page.locator("#frontier-chart").bounding_box()
    across = (point["peak_bytes"] - low) / (high - low)
    up = (point["overhead"] - bottom) / (top - bottom)
    return (
        box["x"] + 56 + across * (box["width"] - 64),
        box["y"] + box["height"] - 38 - up * (box["height"] - 60),
    )


def test_a_click_on_the_frontier_shows_that_plan_everywhere(browser, path, made):
    data = made.to_dict()
    points = data["frontier"]["points"]
    other = next(p for p in points if p["view"] > 0 and p["overhead"] > 0.05)
    with opened(browser, path) as page:
        before = ticks(page, "tide-chart")
        place = place_on_frontier(page, data["frontier"], other)
        page.mouse.move(*place)
        assert f"peak {format_bytes(other['peak_bytes'])}" in tip(page)
        page.mouse.click(*place)
        chip = page.locator("#chosen").inner_text()
        assert f"peak {format_bytes(other['peak_bytes'])}" in chip
        page.mouse.move(2, 2)
        assert ticks(page, "tide-chart") != before
        tide = data["views"][other["view"]]["tide"]
        point_at(page, "tide-chart", (tide["peak_run"] + 0.5) / tide["num_runs"])
        assert f"{format_bytes(other['peak_bytes'])} alive" in tip(page)
        view = data["views"][other["view"]]
        card = page.locator("#card-peak")
        assert int(card.get_attribute("data-number")) == other["peak_bytes"]
        assert "not compared" in page.locator("#card-bits").inner_text()
        headline = page.locator("#headline").inner_text().replace("\xa0", " ")
        assert headline == view["headline"]
        box = page.locator("#icicle-chart .box").first
        assert int(box.get_attribute("data-bytes")) == other["peak_bytes"]
        kept = page.locator("#modules-table tr[data-kept]").all()
        total = sum(int(row.get_attribute("data-kept")) for row in kept)
        assert total == sum(m["kept_bytes"] for m in view["modules"])
        assert (
            format_bytes(other["peak_bytes"])
            in page.locator("#peak-about").inner_text()
        )
        page.get_by_role("button", name="back").click()
        page.mouse.move(2, 2)
        assert page.locator("#chosen").is_hidden()
        assert ticks(page, "tide-chart") == before


def test_the_keyboard_walks_along_the_frontier(browser, path, made):
    points = made.to_dict()["frontier"]["points"]
    highest = max(p["peak_bytes"] for p in points)
    with opened(browser, path) as page:
        page.locator("#frontier-chart canvas").last.focus()
        for _ in range(len(points) + 1):
            page.keyboard.press("ArrowRight")
        assert f"peak {format_bytes(highest)}" in tip(page)
        page.keyboard.press("Enter")
        chip = page.locator("#chosen").inner_text()
        assert f"peak {format_bytes(highest)}" in chip


def test_search_finds_modules_and_storages(browser, path, made):
    rows = made.to_dict()["views"][0]["modules"]
    with opened(browser, path) as page:
        table = page.locator("#modules-table tbody tr")
        assert table.count() == len(rows)
        page.fill("#find", "mlp.norm")
        wanted = [m for m in rows if "mlp.norm" in m["label"]]
        assert table.count() == len(wanted) < len(rows)
        assert page.locator("#found").inner_text() == (
            f"{len(wanted)} of {len(rows)} rows"
        )
        table.first.get_by_role("button").click()
        inner = page.locator("#modules-table tr.inner")
        assert inner.count() == min(200, len(wanted[0]["storages"]))
        assert wanted[0]["storages"][0]["name"] in inner.first.inner_text()
        page.fill("#find", "no such thing")
        assert table.count() == 0
        page.fill("#find", "")
        assert table.count() == len(rows)


def brightness(page):
    return page.evaluate(
        """() => getComputedStyle(document.body).backgroundColor
             .match(/\\d+/g).slice(0, 3).reduce((a, b) => a + Number(b), 0)"""
    )


def test_dark_and_light(browser, path):
    with opened(browser, path, scheme="dark") as page:
        assert brightness(page) < 150
        before = ticks(page, "tide-chart")
        page.locator("#theme").click()
        assert brightness(page) > 600
        assert ticks(page, "tide-chart") != before
        page.reload()
        page.wait_for_selector("html[data-ready]")
        assert brightness(page) > 600
    with opened(browser, path) as page:
        assert brightness(page) > 600
        page.emulate_media(color_scheme="dark")
        assert brightness(page) < 150


def test_a_narrow_screen(browser, path):
    with opened(browser, path, width=400, height=800) as page:
        assert page.evaluate("document.documentElement.scrollWidth") == 400
        for chart in CHARTS:
            assert colors(page, chart) > 3, chart
        for heading in page.locator("h2").all():
            if heading.is_visible():
                box = heading.bounding_box()
                assert box["x"] + box["width"] <= 400


def test_the_keyboard_reaches_everything(browser, path, made):
    data = made.to_dict()
    with opened(browser, path) as page:
        reached = set()
        for _ in range(80):
            page.keyboard.press("Tab")
            reached.add(
                page.evaluate(
                    """() => document.activeElement.id
                         || document.activeElement.parentElement.id
                         || document.activeElement.textContent"""
                )
            )
        assert {"theme", "save-json", "tide-chart", "frontier-chart", "find"} <= reached
        page.locator("#tide-chart canvas").last.focus()
        page.keyboard.press("ArrowRight")
        page.keyboard.press("ArrowRight")
        first = page.locator("#tide-status").inner_text()
        op = data["views"][0]["tide"]["op"][2]
        assert first.startswith(f"run 3: {data['ops']['title'][op]}")


def test_names_with_markup_are_shown_as_text(browser, tmp_path):
    step = renamed(gpt(2), NASTY)
    plan = dropping(step, 0.5)
    made = lowtide.report(step, plan, frontier(step), NASTY, title=NASTY, command=NASTY)
    path = made.save(tmp_path / "nasty.html")
    with opened(browser, path) as page:
        assert page.locator("h1").inner_text() == NASTY
        assert page.title() == f"{NASTY} - lowtide"
        point_at(page, "tide-chart", 0.5)
        assert NASTY in tip(page)
        point_at(page, "lifetimes-chart", 0.5)
        assert NASTY in tip(page)
        assert NASTY in page.locator("#modules-table").inner_text()
        assert NASTY in page.locator("#peak-about").inner_text()
        assert NASTY in page.locator("#notes").inner_text()
        assert page.locator("script").count() == 2
        assert page.locator("img").count() == 0


def test_downloads_hold_the_same_data(browser, path, made):
    import csv
    import json
    from pathlib import Path

    data = made.to_dict()
    with opened(browser, path) as page:
        with page.expect_download() as waiting:
            page.locator("#save-json").click()
        saved = json.loads(Path(waiting.value.path()).read_text())
        assert saved == json.loads(json.dumps(data))
        with page.expect_download() as waiting:
            page.locator("#save-csv").click()
        rows = list(csv.DictReader(io.StringIO(Path(waiting.value.path()).read_text())))
        live = [int(row["live_bytes"]) for row in rows]
        assert live == data["views"][0]["tide"]["live_bytes"]


def test_printing_is_light_and_complete(browser, path):
    with opened(browser, path, scheme="dark") as page:
        page.emulate_media(media="print")
        page.evaluate("dispatchEvent(new Event('beforeprint'))")
        assert page.locator(".controls").first.is_hidden()
        assert colors(page, "tide-chart") > 3
        pdf = page.pdf(format="A4")
        assert pdf.startswith(b"%PDF")
        assert len(pdf) > 20_000
        page.evaluate("dispatchEvent(new Event('afterprint'))")


def test_a_report_on_a_difference(browser, step, tmp_path):
    first, second = dropping(step, 0.2), dropping(step, 0.8, "dtr")
    made = lowtide.report(lowtide.diff(first, second, step=step))
    with opened(browser, made.save(tmp_path / "diff.html")) as page:
        assert "What changed" in page.locator("#diff").inner_text()
        assert format_bytes(first.peak_bytes) in page.locator("#diff").inner_text()
        assert colors(page, "tide-chart") > 3
        assert "auto" in page.locator("#tide-legend").inner_text()


def test_the_notebook_frame(browser, made, tmp_path):
    path = tmp_path / "cell.html"
    path.write_text(f"<!doctype html><body>{made._repr_html_()}</body>")
    context = browser.new_context(offline=True)
    page = context.new_page()
    said = []
    page.on("console", lambda message: said.append(message.text))
    page.goto(path.as_uri())
    frame = page.frame_locator("iframe")
    frame.locator("html[data-ready]").wait_for()
    shown = frame.locator("main section:not([hidden]) h2").all_inner_texts()
    assert shown == ["The tide", "The frontier"]
    assert frame.locator("#card-peak").is_visible()
    assert said == []
    context.close()


@pytest.mark.slow
def test_twenty_thousand_ops_open_and_answer(browser, tmp_path):
    """How fast they do is measured by `benchmarks/page.py`."""
    step = gpt(420, tokens=64)
    assert len(step.ops) > 20_000
    plan = dropping(step, 0.5)
    seen = measured(step, plan)
    made = lowtide.report(step, plan, seen, frontier(step))
    path = made.save(tmp_path / "large.html")
    tide = made.to_dict()["views"][0]["tide"]
    with opened(browser, path) as page:
        point_at(page, "tide-chart", (tide["peak_run"] + 0.5) / tide["num_runs"])
        # In a column of pixels with many runs, the highest is the one that is named.
        assert f"{format_bytes(plan.peak_bytes)} alive" in tip(page)

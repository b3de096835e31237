"""How fast the report of a very large step opens and moves, in Chromium.

`python benchmarks/page.py` makes the report of a step of over 20,000 ops, opens it,
and then zooms and points 30 times. Needs Chromium and Playwright. The target is three
seconds to open it and 150 ms for each frame. Results go to
`benchmarks/results/page.json`.
"""

from __future__ import annotations

import json
import shutil
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))
import lowtide
from tests.report_steps import dropping, frontier, gpt, measured

RESULTS = Path(__file__).parent / "results" / "page.json"
CHART = "#tide-chart canvas:last-of-type"
ZOOM_AND_POINT = """async () => {
  const canvas = document.querySelector("#tide-chart canvas:last-of-type");
  const box = canvas.getBoundingClientRect();
  const start = performance.now();
  for (let n = 0; n < 30; n++) {
    canvas.dispatchEvent(new KeyboardEvent("keydown", { key: n % 2 ? "-" : "+" }));
    canvas.dispatchEvent(new PointerEvent("pointermove",
      { clientX: box.left + 100 + 20 * n, clientY: box.top + 100 }));
    await new Promise(requestAnimationFrame);
  }
  return (performance.now() - start) / 30;
}"""


def main() -> None:
    from playwright.sync_api import sync_playwright

    step = gpt(420, tokens=64)
    plan = dropping(step, 0.5)
    report = lowtide.report(step, plan, measured(step, plan), frontier(step))
    with tempfile.TemporaryDirectory() as folder, sync_playwright() as playwright:
        path = report.save(Path(folder) / "large.html")
        browser = playwright.chromium.launch(
            executable_path=shutil.which("chromium"), args=["--no-sandbox"]
        )
        page = browser.new_page(viewport={"width": 1280, "height": 900})
        start = time.monotonic()
        page.goto(Path(path).resolve().as_uri())
        page.wait_for_selector(CHART)
        opened = time.monotonic() - start
        row = {
            "ops": len(step.ops),
            "open_seconds": round(opened, 2),
            "frame_ms": round(page.evaluate(ZOOM_AND_POINT), 1),
        }
        browser.close()
    RESULTS.write_text(json.dumps(row, indent=1) + "\n")
    print(row)


if __name__ == "__main__":
    main()

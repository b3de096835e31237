"""Take the pictures of the docs from a report: light, dark, and on a narrow screen.

    python docs/images/take.py report.html [prefix]

Needs Chromium, Playwright and Pillow. Writes PREFIX-light.png, PREFIX-dark.png and
PREFIX-narrow.png beside this file; the default prefix is "report".
"""

import io
import shutil
import sys
from pathlib import Path

from PIL import Image
from playwright.sync_api import sync_playwright

HERE = Path(__file__).parent
VIEWS = (
    ("light", 1280, 1000, "light", 1),
    ("dark", 1280, 1000, "dark", 1),
    ("narrow", 400, 1000, "light", 2),
)


def main(report: str, prefix: str = "report") -> None:
    """Open the report three times and save what is seen."""
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(
            executable_path=shutil.which("chromium"), args=["--no-sandbox"]
        )
        for name, width, height, scheme, scale in VIEWS:
            page = browser.new_page(
                viewport={"width": width, "height": height},
                color_scheme=scheme,
                device_scale_factor=scale,
            )
            page.goto(Path(report).resolve().as_uri())
            page.wait_for_selector("html[data-ready]")
            if name == "narrow":
                page.evaluate(
                    "document.querySelector('#tide').scrollIntoView({behavior:'instant'})"
                )
            if name == "light":
                box = page.locator("#tide-chart").bounding_box()
                page.mouse.move(box["x"] + 0.66 * box["width"], box["y"] + 160)
            page.wait_for_timeout(300)
            save(page.screenshot(), HERE / f"{prefix}-{name}.png")
            page.close()
        browser.close()


def save(shot: bytes, path: Path) -> None:
    """Write the picture with fewer colors, which takes a third of the bytes."""
    picture = Image.open(io.BytesIO(shot)).convert("RGB")
    picture.quantize(256, kmeans=2).save(path, optimize=True)
    print(path, path.stat().st_size)


if __name__ == "__main__":
    main(*sys.argv[1:])

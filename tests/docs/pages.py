"""The written pages, and the fenced blocks in them."""

import re
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
PAGES = (
    ROOT / "README.md",
    ROOT / "CONTRIBUTING.md",
    ROOT / "examples" / "README.md",
    *sorted((ROOT / "docs").rglob("*.md")),
)
# A comment right above a block says why the block is not run.
_BLOCK = re.compile(
    r"(?:^<!-- not run: (?P<reason>[^\n]+) -->\n\n?)?"
    r"^```(?P<language>\w*)\n(?P<text>.*?)^```$",
    re.MULTILINE | re.DOTALL,
)
_INCLUDE = re.compile(r'^--8<-- "([^"\n]+)"$', re.MULTILINE)


@dataclass(frozen=True)
class Block:
    """One fenced block of a page."""

    page: Path
    line: int
    language: str
    text: str
    why_not_run: str = ""


def blocks_of(page: Path) -> list[Block]:
    """The fenced blocks of a page, with what they include from files."""
    whole = page.read_text()
    return [
        Block(
            page,
            whole.count("\n", 0, found.start("text")) + 1,
            found["language"],
            _INCLUDE.sub(lambda name: (ROOT / name[1]).read_text(), found["text"]),
            found["reason"] or "",
        )
        for found in _BLOCK.finditer(whole)
    ]


def name_of(page: Path) -> str:
    """A page as tests call it."""
    return page.relative_to(ROOT).as_posix()

"""The page of messages names every error, and quotes what the code really says."""

import ast
import inspect
import re

import pytest

from lowtide import errors
from tests.docs.pages import ROOT

PAGE = (ROOT / "docs" / "troubleshooting.md").read_text()
HEADINGS = re.findall(r"^### (.+)$", PAGE, re.MULTILINE)
# They say what is wrong with an argument, and what to write instead. Nothing is to add.
PLAIN = {errors.LowtideError, errors.InvalidArgumentError}


def messages():
    """Every string of the source; what a format string fills in is left out."""
    for path in (ROOT / "src" / "lowtide").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.JoinedStr):
                yield "".join(
                    str(part.value) if isinstance(part, ast.Constant) else "\0"
                    for part in node.values
                )
            elif isinstance(node, ast.Constant) and isinstance(node.value, str):
                yield node.value


MESSAGES = "\n".join(messages())


@pytest.mark.parametrize("heading", HEADINGS)
def test_headings_quote_messages(heading):
    parts = [re.escape(part.strip()) for part in heading.split("...")]
    assert re.search(r"[^\n]*".join(parts), MESSAGES), heading


def test_every_error_is_explained():
    kinds = {
        kind
        for _, kind in inspect.getmembers(errors, inspect.isclass)
        if issubclass(kind, errors.LowtideError)
    }
    missing = [
        kind.__name__ for kind in kinds - PLAIN if f"`{kind.__name__}`" not in PAGE
    ]
    assert missing == []


def test_reasons_in_bold_quote_messages():
    section = PAGE.partition("### cannot capture")[2].partition("\n### ")[0]
    for reason in re.findall(r"^- \*\*([^*]+)\*\*", section, re.MULTILINE):
        for part in reason.split("..."):
            assert part.strip() in MESSAGES, reason

"""Here it is the numbers that count: the search for the lowest peak may be short."""

import pytest

from lowtide.planners.auto import _search


@pytest.fixture(autouse=True)
def _short_search(monkeypatch: pytest.MonkeyPatch) -> None:
    """A twelfth of the work; `tests/unit` judges what the search finds in all of it."""
    monkeypatch.setattr(_search, "FLOOR_SECONDS", _search.FLOOR_SECONDS / 12)

"""Here it is the numbers that count, not how good a plan is: searches are short."""

from typing import Any

import pytest

from lowtide.planners.auto._search import Search


@pytest.fixture(autouse=True)
def _short_searches(monkeypatch: pytest.MonkeyPatch) -> None:
    """A second of work at most; `tests/unit` judges what searches find."""
    begin = Search.__init__

    def shortened(self: Search, step: Any, time_limit: float, **more: Any) -> None:
        begin(self, step, min(time_limit, 1.0), **more)

    monkeypatch.setattr(Search, "__init__", shortened)

"""What every test relies on: a clean environment and repeatable examples."""

import gc
import os
from typing import Any

import pytest
from hypothesis import settings

# One worker per core already: more threads inside each would only fight. Set before
# torch is imported, and inherited by the child processes that tests start.
if "PYTEST_XDIST_WORKER" in os.environ:
    os.environ.setdefault("OMP_NUM_THREADS", "1")

for _name in ("BUDGET", "PLANNER", "REPORT", "DISABLE"):
    os.environ.pop(f"LOWTIDE_{_name}", None)

settings.register_profile("lowtide", deadline=None, derandomize=True)
settings.load_profile("lowtide")


def pytest_collection_finish() -> None:
    """What was imported stays: nobody has to walk through it for garbage again."""
    gc.collect()
    gc.freeze()


@pytest.fixture(autouse=True, scope="session")
def _own_cache(tmp_path_factory):
    """Keeps profiles and plans of a test run out of the user's cache."""
    os.environ["LOWTIDE_CACHE_DIR"] = str(tmp_path_factory.mktemp("cache"))


# Here it is the numbers that count, not how good a plan is, except where a test is
# marked; `tests/unit` and `tests/conformance` judge what searches find.
SHORT_SEARCHES = ("docs", "exactness", "integrations")


@pytest.fixture(autouse=True)
def _short_searches(
    request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A tenth of a second of work at most, and no start from another planner's plan."""
    if request.path.parent.name not in SHORT_SEARCHES:
        return
    from lowtide.planners.auto import _others, _search

    begin = _search.Search.__init__
    is_judged = request.node.get_closest_marker("judges_plans") is not None
    most_seconds = 1.0 if is_judged else 0.1

    def shortened(
        self: _search.Search, step: Any, time_limit: float, **more: Any
    ) -> None:
        begin(self, step, min(time_limit, most_seconds), **more)

    monkeypatch.setattr(_search.Search, "__init__", shortened)
    if not is_judged:
        for module in (_others, _search):
            monkeypatch.setattr(module, "SMALL_OPS", 0)

"""What every test relies on: a clean environment and repeatable examples."""

import os

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


@pytest.fixture(autouse=True, scope="session")
def _own_cache(tmp_path_factory):
    """Keeps profiles and plans of a test run out of the user's cache."""
    os.environ["LOWTIDE_CACHE_DIR"] = str(tmp_path_factory.mktemp("cache"))

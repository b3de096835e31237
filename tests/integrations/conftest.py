"""Each test leaves torch, and what lowtide has put into it, as it was."""

from importlib.util import find_spec

import pytest
import torch
from torch import nn

from lowtide.integrations import roots
from lowtide.models._libraries import beside_torchvision

beside_torchvision("torch")

# Those of the extra "integrations": `make test-integrations` has them all.
_NEEDED = {
    "test_vision.py": ("timm", "diffusers"),
    "test_trl.py": ("trl",),
    "test_axolotl.py": ("axolotl",),
}
_QUICK = ("test_imports.py", "test_run.py", "test_accelerate.py")
collect_ignore = [
    file for file, names in _NEEDED.items() if not all(map(find_spec, names))
]


def pytest_ignore_collect(collection_path, config):
    """Where slow tests are left out, their libraries need not be imported either."""
    is_test = collection_path.name.startswith("test_")
    if is_test and collection_path.name not in _QUICK:
        return config.option.markexpr.startswith("not slow") or None
    return None


def pytest_collection_modifyitems(items):
    """Whole trainers take their time: they run with `make test-integrations`."""
    for item in items:
        if item.path.parent.name == "integrations" and item.path.name not in _QUICK:
            item.add_marker(pytest.mark.slow)


@pytest.fixture(autouse=True)
def _undone(monkeypatch):
    monkeypatch.delenv("LOWTIDE_BUDGET", raising=False)
    monkeypatch.setenv("LOWTIDE_PLANNER", "mu_two")  # finds a plan at once
    torch._dynamo.reset()
    calls, make = nn.Module.__call__, torch.optim.Optimizer.__init__
    yield
    nn.Module.__call__ = calls
    torch.optim.Optimizer.__init__ = make
    roots._asked.clear()
    roots._asked_for_all.clear()
    roots.planned_names.clear()

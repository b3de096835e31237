"""No library is imported before the program does it."""

from __future__ import annotations

import subprocess
import sys
import types

import pytest

from lowtide.integrations._imports import when_imported


def test_registering_imports_nothing():
    code = (
        "import sys\n"
        "import lowtide.integrations\n"
        "lowtide.integrations.register()\n"
        "heavy = {'torch', 'transformers', 'accelerate', 'lightning', 'torchvision'}\n"
        "sys.exit(f'loaded {heavy & set(sys.modules)}' if heavy & set(sys.modules) "
        "else 0)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_an_action_waits_for_the_import(tmp_path, monkeypatch):
    (tmp_path / "late_module.py").write_text("value = 1\n")
    monkeypatch.syspath_prepend(tmp_path)
    seen = []
    for _ in range(2):
        when_imported("late_module", seen.append)
    assert seen == []
    import late_module

    assert seen == [late_module]
    assert late_module.value == 1
    when_imported("late_module", lambda module: seen.append(module.value))
    assert seen == [late_module, 1]


@pytest.fixture
def axolotl(monkeypatch):
    """The parts of axolotl's interface that the plugin uses."""

    class BasePlugin:
        def register(self, cfg):
            """As axolotl calls it."""

        def get_input_args(self):
            """A dotted name of a pydantic model, or nothing."""

        def add_callbacks_post_trainer(self, cfg, trainer):
            return []

    base = types.ModuleType("axolotl.integrations.base")
    base.BasePlugin = BasePlugin
    for name in ("axolotl", "axolotl.integrations"):
        monkeypatch.setitem(sys.modules, name, types.ModuleType(name))
    monkeypatch.setitem(sys.modules, base.__name__, base)


def test_the_axolotl_plugin(axolotl):
    from lowtide.integrations.axolotl import LowtideArgs, LowtidePlugin

    plugin = LowtidePlugin()
    module, _, name = plugin.get_input_args().rpartition(".")
    assert getattr(sys.modules[module], name) is LowtideArgs
    cfg = LowtideArgs(lowtide_budget="6GiB")
    (callback,) = plugin.add_callbacks_post_trainer(cfg, trainer=None)
    assert callback.options["budget"] == "6GiB"
    assert LowtideArgs().lowtide_budget is None

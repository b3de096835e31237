"""Do something as soon as a module is imported, without importing it."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec
from importlib.util import find_spec
from types import ModuleType
from typing import Any

Action = Callable[[ModuleType], None]


def when_imported(name: str, action: Action) -> None:
    """Call the action with the module as soon as it has run, or now if it has.

    The same action is not done twice.
    """
    if action in _FINDER.known.setdefault(name, []):
        return
    _FINDER.known[name].append(action)
    if name in sys.modules:
        action(sys.modules[name])
    elif _FINDER not in sys.meta_path:
        sys.meta_path.insert(0, _FINDER)


class _Finder(MetaPathFinder):
    """Finds modules as Python does, and has actions done after some of them run."""

    def __init__(self) -> None:
        self.known: dict[str, list[Action]] = {}
        self.asked: set[str] = set()

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: Any = None
    ) -> ModuleSpec | None:
        if fullname not in self.known or fullname in self.asked:
            return None
        self.asked.add(fullname)
        try:
            spec = find_spec(fullname)
        finally:
            self.asked.remove(fullname)
        if spec is not None and spec.loader is not None:
            self.follow(fullname, spec.loader)
        return spec

    def follow(self, name: str, loader: Any) -> None:
        """Have the loader do the actions after it has run the module."""
        run = loader.exec_module

        def exec_module(module: ModuleType) -> None:
            run(module)
            for action in self.known[name]:
                action(module)

        loader.exec_module = exec_module


_FINDER = _Finder()

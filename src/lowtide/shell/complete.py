"""What the shell offers when the user presses Tab. Nothing here imports torch."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path


def _starting(names: Iterable[str], incomplete: str) -> list[str]:
    return [name for name in names if name.startswith(incomplete)]


def models(incomplete: str) -> list[str]:
    from lowtide.models import available

    return _starting(available(), incomplete)


def planners(incomplete: str) -> list[str]:
    from lowtide.planners import available

    return _starting(available(), incomplete)


def devices(incomplete: str) -> list[str]:
    import tomllib

    path = Path(__file__).parents[1] / "engine" / "costs" / "devices.toml"
    return _starting(tomllib.loads(path.read_text(encoding="utf-8")), incomplete)


def plans(incomplete: str) -> list[str]:
    return _files(incomplete, ".plan.json")


def targets(incomplete: str) -> list[str]:
    """Models, saved files, and Python files waiting for a function's name."""
    python = [f"{name}:" for name in _files(incomplete, ".py")]
    saved = _files(incomplete, ".step.json") + plans(incomplete)
    return [*models(incomplete), *saved, *python]


def _files(incomplete: str, ending: str) -> list[str]:
    """Files of this kind under the folder typed so far."""
    folder, slash, _ = incomplete.rpartition("/")
    try:
        there = sorted(Path(folder or ("/" if slash else ".")).iterdir())
    except OSError:
        return []
    names = [f"{folder}{slash}{p.name}" for p in there if p.name.endswith(ending)]
    return _starting(names, incomplete)

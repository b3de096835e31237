"""What the shell offers when the user presses Tab. Nothing here imports torch.

Typer shows those of the words that begin as what was typed.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path


def models() -> Iterable[str]:
    from lowtide.models import available

    return available()


def planners() -> Iterable[str]:
    from lowtide.planners import available

    return available()


def devices() -> Iterable[str]:
    import tomllib

    path = Path(__file__).parents[1] / "engine" / "costs" / "devices.toml"
    return tomllib.loads(path.read_text(encoding="utf-8"))


def plans(incomplete: str) -> list[str]:
    return _files(incomplete, ".plan.json")


def targets(incomplete: str) -> list[str]:
    """Models, saved files, and Python files waiting for a function's name."""
    python = [f"{name}:" for name in _files(incomplete, ".py")]
    saved = _files(incomplete, ".step.json") + plans(incomplete)
    return [*models(), *saved, *python]


def _files(incomplete: str, ending: str) -> list[str]:
    """Files of this kind in the folder typed so far."""
    folder, slash, _ = incomplete.rpartition("/")
    try:
        there = sorted(Path(folder or ("/" if slash else ".")).iterdir())
    except OSError:
        return []
    return [f"{folder}{slash}{p.name}" for p in there if p.name.endswith(ending)]

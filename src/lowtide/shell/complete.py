"""What the shell offers when the user presses Tab. Nothing here imports torch."""

from __future__ import annotations

from pathlib import Path


def models(incomplete: str) -> list[str]:
    """Built-in models."""
    from lowtide import models

    return [name for name in models.available() if name.startswith(incomplete)]


def planners(incomplete: str) -> list[str]:
    """Planners."""
    from lowtide.planners import available

    return [name for name in available() if name.startswith(incomplete)]


def devices(incomplete: str) -> list[str]:
    """Names in the shipped device descriptions."""
    import tomllib

    path = Path(__file__).parents[1] / "engine" / "costs" / "devices.toml"
    names = tomllib.loads(path.read_text(encoding="utf-8"))
    return [name for name in names if name.startswith(incomplete)]


def plans(incomplete: str) -> list[str]:
    """Saved plans."""
    return files(incomplete, ".plan.json")


def targets(incomplete: str) -> list[str]:
    """Models, saved files, and Python files waiting for a function's name."""
    python = [f"{name}:" for name in files(incomplete, ".py")]
    saved = files(incomplete, ".step.json") + files(incomplete, ".plan.json")
    return [*models(incomplete), *saved, *python]


def files(incomplete: str, ending: str) -> list[str]:
    """Files of this kind under the folder typed so far."""
    folder, slash, begin = incomplete.rpartition("/")
    try:
        found = sorted(Path(folder or ("/" if slash else ".")).iterdir())
    except OSError:
        return []
    return [
        f"{folder}{slash}{path.name}"
        for path in found
        if path.name.startswith(begin) and path.name.endswith(ending)
    ]

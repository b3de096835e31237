"""Device descriptions: what a device can do at best, and which part of it ops reach."""

from __future__ import annotations

import contextlib
import json
import logging
import tomllib
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from lowtide.engine.costs.cache import cache_directory
from lowtide.errors import InvalidArgumentError, OutputError
from lowtide.step.files import write_whole

log = logging.getLogger("lowtide.profile")

_SHIPPED = Path(__file__).with_name("devices.toml")
_OWN_FILE = "devices.toml"


@dataclass(frozen=True, slots=True)
class Device:
    """One entry of `devices.toml`; that file says what each number means."""

    name: str
    title: str
    bandwidth_bytes_per_second: float
    vector_flops: float
    matmul_flops: Mapping[str, float]
    overhead_seconds: float
    memory_bytes: int = 0
    alignment_bytes: int = 64
    draws_per_second: float = 1e9
    link_bytes_per_second: float = 0.0
    network_bytes_per_second: float = 0.0
    devices_per_machine: int = 8
    first_touch_seconds_per_byte: float = 0.0
    efficiency: Mapping[str, float] = field(default_factory=dict[str, float])
    source: str = ""


def find_device(name: str) -> Device:
    """The device of this name, or of `file.toml:name`. A user's entry wins.

    Raises:
        InvalidArgumentError: There is no such device, or its entry is not usable.
    """
    text = name.strip()
    if ".toml" in text:
        path, _, entry = text.partition(".toml")
        entries = _user_file(Path(path + ".toml"))
        entry = entry.lstrip(":") or next(iter(entries), "")
    else:
        entry = text.lower().replace("_", "-").removeprefix("nvidia-")
        entries = {**_read(_SHIPPED), **_own()}
        # A real device's name, such as cuda:0, describes no particular model.
        entry = "cpu" if entry.startswith("cpu") and entry not in entries else entry
    if entry not in entries:
        raise InvalidArgumentError(
            f"device={name!r}",
            "there is no description of such a device",
            f"Use one of: {', '.join(entries)}; or describe it in a file and pass "
            'device="file.toml:name"',
        )
    return _device(entry, entries[entry])


def own_file() -> Path | None:
    """Where the descriptions of the user's own devices are, if there is a place."""
    directory = cache_directory()
    return None if directory is None else directory / _OWN_FILE


def save_device(device: Device) -> Path:
    """Write a description into the cache directory; it replaces the shipped one.

    Raises:
        OutputError: There is no such directory, or it cannot be written to.
    """
    path = own_file()
    if path is None:
        raise OutputError(
            _OWN_FILE, "there is no home directory", "Set LOWTIDE_CACHE_DIR to a folder"
        )
    entries = {**_own(), device.name: asdict(device)}
    with contextlib.suppress(OSError):  # writing says what is wrong with the folder
        path.parent.mkdir(parents=True, exist_ok=True)
    text = "".join(_toml(name, entry) for name, entry in entries.items())
    return write_whole(path, text, force=True)


def _device(name: str, entry: Mapping[str, Any]) -> Device:
    try:
        return Device(name=name, **entry)
    except TypeError as error:
        raise InvalidArgumentError(
            f"device {name!r}",
            f"its description cannot be used ({str(error).split('() ')[-1]})",
            "Compare it with the entries of lowtide/engine/costs/devices.toml",
        ) from error


def _read(path: Path) -> dict[str, dict[str, Any]]:
    return tomllib.loads(path.read_text(encoding="utf-8"))


def _own() -> dict[str, dict[str, Any]]:
    path = own_file()
    try:
        return {} if path is None else _read(path)
    except (FileNotFoundError, NotADirectoryError):
        return {}
    except (OSError, ValueError) as error:
        log.warning("%s is ignored, it cannot be read: %s", path, error)
        return {}


def _user_file(path: Path) -> dict[str, dict[str, Any]]:
    try:
        return _read(path.expanduser())
    except (OSError, ValueError) as error:
        raise InvalidArgumentError(
            f"device={str(path)!r}",
            f"the file cannot be read: {error}",
            "Write one table per device, as in lowtide/engine/costs/devices.toml",
        ) from error


def _toml(name: str, entry: Mapping[str, Any]) -> str:
    lines = [f"{k} = {_value(v)}\n" for k, v in entry.items() if k != "name"]
    return f"[{name}]\n" + "".join(lines) + "\n"


def _value(value: Any) -> str:
    if isinstance(value, Mapping):
        inner = ", ".join(f"{k} = {_value(v)}" for k, v in value.items())
        return f"{{ {inner} }}"
    # What JSON makes of strings and numbers is TOML as well.
    return f"{value:.6g}" if isinstance(value, float) else json.dumps(value)

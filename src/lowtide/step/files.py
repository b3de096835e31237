"""Files in and out: read only what is a file, write all or nothing.

Every file lowtide writes goes through `write_whole`, so one rule holds everywhere: a
file that lowtide wrote as the same kind may be replaced, any other is kept unless
`force` is set.
"""

from __future__ import annotations

import contextlib
import os
import re
import secrets
import stat
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Self

from lowtide.errors import InvalidArgumentError, OutputError, StepFormatError
from lowtide.step.format import format_bytes

MOST_FILE_BYTES = 1 << 30
_HEAD_BYTES = 4096
# How files that lowtide writes begin, or end: records, pages, tables, traces, policies,
# texts, snapshots and pictures. No other file is ever taken for ours.
_BEGINNINGS = tuple(
    re.compile(pattern, re.DOTALL)
    for pattern in (
        rb'\A\{\s*"lowtide":\s*"\w+"',
        rb'\A(<!doctype html>).*<meta name="generator" content="lowtide ',
        rb"\A[a-z_]+(?:,[a-z_]+){5,}\n",
        rb'\A\{"schemaVersion":1,.{1,99}"otherData":\{"lowtide":"trace"',
        rb'\A"""What to save and what to recompute, for torch.utils.checkpoint',
        rb"\Alowtide report\n",
        rb"\A(\x80\x04).{1,40}lowtide\x94\x8c.snapshot",
        rb"\A(\x89PNG).{1,99}Software\x00lowtide",
        rb"\A(<\?xml).*<dc:title>lowtide</dc:title>",
        rb"\A(%PDF).*/Creator \(lowtide\)",
    )
)


def read_whole(path: str | Path, limit_bytes: int = MOST_FILE_BYTES) -> bytes:
    """The contents of a file, which must be a real one: a pipe might never end.

    Raises:
        InvalidArgumentError: There is no such file, or it cannot be opened.
        StepFormatError: It is no regular file, or larger than the limit.
    """
    try:
        with open(path, "rb", opener=_at_once) as file:
            found = os.fstat(file.fileno())
            is_file, size = stat.S_ISREG(found.st_mode), found.st_size
            data = file.read() if is_file and size <= limit_bytes else b""
    except FileNotFoundError as error:
        raise InvalidArgumentError(
            str(path),
            "there is no such file",
            "Write one with `lowtide profile ... -o NAME.step.json` or "
            "`lowtide plan ... -o NAME.plan.json`",
        ) from error
    except (OSError, ValueError) as error:
        raise InvalidArgumentError(
            str(path),
            f"it cannot be read: {_reason(error)}",
            "Give a file written by `lowtide profile -o` or `lowtide plan -o`",
        ) from error
    if not is_file:
        raise StepFormatError("it is a pipe or a device, not a file", path=path)
    if size > limit_bytes:
        raise StepFormatError(
            f"it has {format_bytes(size)}, more than the {format_bytes(limit_bytes)} "
            "that are read",
            path=path,
        )
    return data


class Saved:
    """A record that is saved as JSON, and checked when it is read."""

    __slots__ = ()

    def to_dict(self) -> dict[str, Any]:
        """Plain data that `from_dict` reads back."""
        return _records().data_of(self)

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Self:
        """Rebuild one; raises `StepFormatError` on anything that is none."""
        return _records().read(cls, data)

    def save(self, path: str | Path, *, force: bool = False) -> None:
        """Write it as JSON.

        One that is there already is replaced; any other file only with `force`.
        """
        write_whole(path, _records().json_of(self), force=force)

    @classmethod
    def load(cls, path: str | Path) -> Self:
        """Read one written by `save`; all of it is checked."""
        return _records().read(cls, _records().load_data(path), path)


def _records() -> Any:
    """How records are checked, which knows all of them."""
    from lowtide.step import records

    return records


def head_of(path: Path) -> bytes:
    """The first and last bytes of a regular file; nothing if there are none to get."""
    try:
        with open(path, "rb", opener=_at_once) as file:
            if stat.S_ISREG(os.fstat(file.fileno()).st_mode):
                head = file.read(_HEAD_BYTES)
                size = os.fstat(file.fileno()).st_size
                file.seek(max(len(head), size - _HEAD_BYTES))
                return head + file.read()
    except OSError:
        pass
    return b""


def kind_of(head: bytes) -> bytes:
    """What lowtide wrote, from how the file begins; nothing if lowtide did not.

    Two tables are of one kind if their columns are the same.
    """
    for pattern in _BEGINNINGS:
        if found := pattern.match(head):
            return b"".join(found[found.lastindex or 0].split())
    return b""


def refuse_foreign(path: Path, *, force: bool, content: bytes | None = None) -> None:
    """Raise `OutputError` if this file may not be replaced.

    Without `content`, which says what kind is to be written, a file of any kind that
    lowtide writes passes.
    """
    if path.is_dir():
        raise OutputError(str(path), "it is a folder", "Give the name of a file")
    if force or not path.is_file():
        return
    there = kind_of(head_of(path))
    if not there:
        found = "the file exists, and lowtide cannot tell that it wrote it"
    elif content is not None and there != kind_of(content):
        found = "the file exists, and holds something else that lowtide wrote"
    else:
        return
    raise OutputError(
        str(path),
        found,
        "Choose another name, or pass force=True (--force) to replace it",
    )


def write_whole(path: str | Path, content: str | bytes, *, force: bool = False) -> Path:
    """Write a file so that it is either complete or as it was before.

    A link stays, and what it points to is replaced. To a device or a pipe the content
    is written as it is.

    Raises:
        OutputError: The file may not be replaced, or it cannot be written.
    """
    target = Path(path)
    try:
        data = content.encode() if isinstance(content, str) else content
        real = Path(os.path.realpath(target))
        if real.exists() and not real.is_file() and not real.is_dir():
            _write_through(real, data)
            return target
        refuse_foreign(target, force=force, content=data)
        _replace(real, data)
    except OutputError:
        raise
    except UnicodeEncodeError as error:
        raise OutputError(
            str(target),
            f"a name has {error.object[error.start]!a}, half of a surrogate pair",
            "Give it a name without that character",
        ) from error
    except (OSError, ValueError) as error:
        raise OutputError(
            str(target),
            f"writing {len(content)} bytes failed: {_reason(error)}",
            "Check that the folder exists, may be written to and has room",
        ) from error
    return target


def _replace(target: Path, data: bytes) -> None:
    # A name of its own: the target's may already be as long as a name can be.
    draft = target.with_name(f".lowtide-{secrets.token_hex(6)}.part")
    try:
        with open(draft, "xb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        os.replace(draft, target)
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(draft)
        raise


def _write_through(target: Path, data: bytes) -> None:
    with open(target, "wb", opener=_at_once) as file:
        os.set_blocking(file.fileno(), True)
        file.write(data)


def _at_once(path: str, flags: int) -> int:
    """Open without waiting for a process at the other end of a pipe."""
    return os.open(path, flags | getattr(os, "O_NONBLOCK", 0), 0o666)


def _reason(error: Exception) -> str:
    return str(getattr(error, "strerror", None) or error)

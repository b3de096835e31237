"""Writing results: all or nothing, and never over something by accident."""

from __future__ import annotations

import contextlib
import os
import tempfile
from pathlib import Path

from lowtide.errors import OutputError


def write_whole(path: str | Path, content: str | bytes, *, force: bool = False) -> Path:
    """Write a file so that it is either complete or not there.

    Raises:
        OutputError: if the file exists and `force` is not set, or if it cannot be
            written. What was there before is still there then.
    """
    target = Path(path)
    if target.is_dir():
        raise OutputError(str(target), "it is a folder", "Give the name of a file")
    if target.exists() and not force:
        raise OutputError(
            str(target),
            "the file exists",
            "Choose another name, or pass force=True (--force) to replace it",
        )
    data = content.encode() if isinstance(content, str) else content
    temporary = ""
    try:
        handle, temporary = tempfile.mkstemp(
            prefix=f".{target.name}.", suffix=".part", dir=target.parent
        )
        with os.fdopen(handle, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        # mkstemp makes files for the owner alone; a report is for sharing.
        umask = os.umask(0)
        os.umask(umask)
        os.chmod(temporary, 0o666 & ~umask)
        os.replace(temporary, target)
    except OSError as error:
        if temporary:
            with contextlib.suppress(OSError):
                os.unlink(temporary)
        raise OutputError(
            str(target),
            f"writing {len(data)} bytes failed: {error.strerror or error}",
            "Check that the folder exists, may be written to and has room",
        ) from error
    return target

"""Commands that begin with their imports done, as forks of a process that has them.

What a command reads, writes and ends with is its own, as in a process started for it
alone. `tests.shell` uses this; this file is also the program of that process.
"""

from __future__ import annotations

import json
import os
import runpy
import signal
import socket
import subprocess
import sys
from importlib import import_module
from pathlib import Path

_ANSWER_SECONDS = 200
_MOST_BYTES = 1 << 17


class Warm:
    """A process that has imported these modules, and runs `lowtide` commands."""

    def __init__(self, *modules: str) -> None:
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, __file__, str(theirs.fileno()), *modules],
                env={**os.environ, "OMP_NUM_THREADS": "1"},
                stdin=subprocess.DEVNULL,
                pass_fds=[theirs.fileno()],
                start_new_session=True,
            )
        self._connection = ours
        ours.settimeout(_ANSWER_SECONDS)

    def start(
        self, words: list[str], cwd: Path, env: dict[str, str], files: list[int]
    ) -> None:
        """Begin a command with these as standard input, output and error."""
        asked = {"words": words, "cwd": str(cwd), "env": env}
        socket.send_fds(self._connection, [json.dumps(asked).encode()], files)

    def wait(self) -> int:
        """The exit code of the command."""
        try:
            return json.loads(self._connection.recv(_MOST_BYTES))
        except (TimeoutError, ValueError):
            os.killpg(self._process.pid, signal.SIGKILL)
            raise


def _serve(connection: socket.socket) -> None:
    """Fork for each command; in the fork, return with everything as it asks for."""
    while True:
        asked, files, _, _ = socket.recv_fds(connection, _MOST_BYTES, 3)
        if not asked:
            os._exit(0)  # the tests are over
        command = os.fork()
        if not command:
            connection.close()
            return _become(**json.loads(asked), files=files)
        for file in files:
            os.close(file)
        _, status = os.waitpid(command, 0)
        connection.sendall(json.dumps(os.waitstatus_to_exitcode(status)).encode())


def _become(words: list[str], cwd: str, env: dict[str, str], files: list[int]) -> None:
    os.chdir(cwd)
    os.environ.clear()
    os.environ.update(env)
    for number, file in enumerate(files):
        os.dup2(file, number)
        os.close(file)
    sys.stdin = sys.__stdin__ = os.fdopen(0, closefd=False)
    sys.stdout = sys.__stdout__ = os.fdopen(
        1, "w", closefd=False, buffering=1 if os.isatty(1) else -1
    )
    sys.stderr = sys.__stderr__ = os.fdopen(
        2, "w", closefd=False, buffering=1, errors="backslashreplace"
    )
    sys.argv = ["lowtide", *words]
    sys.path[0] = cwd


if __name__ == "__main__":
    for _module in sys.argv[2:]:
        import_module(_module)
    _serve(socket.socket(fileno=int(sys.argv[1])))
    runpy.run_module("lowtide", run_name="__main__", alter_sys=True)

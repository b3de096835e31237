"""Run something in a copy of this process, so that nothing here can be changed by it.

What runs aside is the user's own code: it may draw random numbers, append to lists,
count, print. A forked copy does all of that to its own memory, and only a pickled
answer comes back. There are processes that cannot be copied (no `fork`, or a GPU is in
use, which does not survive it), and copies that cannot do the work (a build of torch
for GPUs runs no backward in them after one has run here; a lock that another thread
held is never released in them). Then, if the caller allows it, the work is done here,
and the random streams are put back.
"""

from __future__ import annotations

import io
import logging
import multiprocessing
import os
import pickle
import signal
import sys
import time
import warnings
from collections.abc import Callable
from functools import cache
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, TypeVar

import torch
from torch._subclasses import FakeTensor, FakeTensorMode

from lowtide.engine.capture.tensors import span_of
from lowtide.engine.forms.draws import streams_put_back
from lowtide.errors import CaptureError

Answer = TypeVar("Answer")
# A copy inherits locks that other threads held and will never release.
_LONGEST_SECONDS = 1800.0
_LOOK_SECONDS = 5.0
# What torch says in the copy if it was built for GPUs, and a backward has run before.
_NO_BACKWARD_IN_A_COPY = "autograd's threading in combination with fork"


def run_aside(work: Callable[[], Answer], may_be_here: bool) -> Answer:
    """What `work` returns, or raises, without any of its effects.

    Raises:
        CaptureError: it can only be done here, which is not allowed.
    """
    if not hasattr(os, "fork") or torch.cuda.is_initialized():
        return _here(work, may_be_here)
    # What is buffered would otherwise be written twice.
    sys.stdout.flush()
    sys.stderr.flush()
    receiver, sender = multiprocessing.Pipe(duplex=False)
    with warnings.catch_warnings():
        # Python 3.12 warns of threads; the copy starts none and waits for none.
        warnings.simplefilter("ignore", DeprecationWarning)
        child = os.fork()
    if child == 0:
        receiver.close()
        _answer(work, sender)
    sender.close()
    try:
        answer: Any = None
        succeeded = _answers(receiver, child)
        if succeeded:
            succeeded, answer = pickle.loads(receiver.recv_bytes())
    except EOFError:
        raise CaptureError(
            "the dry run ended without an answer",
            fix="Check that the step runs without lowtide",
        ) from None
    finally:
        receiver.close()
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
    if succeeded:
        return answer
    if answer is None or _NO_BACKWARD_IN_A_COPY in str(answer):
        return _here(work, may_be_here)
    raise answer


def _answers(receiver: Connection, child: int) -> bool:
    """Wait until the copy answers; false if it waits for what will never come."""
    end = time.monotonic() + _LONGEST_SECONDS
    before = None
    while time.monotonic() < end:
        if receiver.poll(_LOOK_SECONDS):
            return True
        now = _asleep(child)
        if now is not None and now == before:
            return False
        before = now
    raise CaptureError(
        f"the dry run took longer than {_LONGEST_SECONDS:.0f} s",
        fix="Call lowtide before other threads are started",
    )


def _asleep(process: int) -> tuple[str, str] | None:
    """The processor time that a sleeping process has had; `None` if it is at work."""
    try:
        text = Path(f"/proc/{process}/stat").read_text()
    except OSError:
        return None
    state, *numbers = text.rpartition(")")[2].split()
    return (numbers[10], numbers[11]) if state == "S" else None


def _here(work: Callable[[], Answer], is_allowed: bool) -> Answer:
    if not is_allowed:
        raise CaptureError(
            "a copy of this process cannot run it",
            fix="Profile it by lowtide.profile before anything else runs",
        )
    level = logging.root.manager.disable
    logging.disable(logging.CRITICAL)
    try:
        with streams_put_back():
            return work()
    finally:
        logging.disable(level)


def _answer(work: Callable[[], Any], sender: Connection) -> None:
    """In the copy: do the work, send the answer, and end without any clean-up."""
    nowhere = os.open(os.devnull, os.O_RDWR)
    for descriptor in (0, 1, 2):
        os.dup2(nowhere, descriptor)
    # Streams and logs may be more than these descriptors: a notebook's, a file's.
    sys.stdout = sys.stderr = open(os.devnull, "w")  # noqa: SIM115
    logging.disable(logging.CRITICAL)
    try:
        # Threads of the parent's pools do not exist here.
        torch.set_num_threads(1)
        answer: tuple[bool, Any] = (True, work())
    except BaseException as error:
        answer = (False, error)
    try:
        data = _packed(answer)
    except Exception as error:
        failed = answer[1] if not answer[0] else error
        text = f"{type(failed).__name__}: {failed}"
        data = _packed((False, CaptureError(text, fix="")))
    try:
        sender.send_bytes(data)
    finally:
        os._exit(0)


class _Packer(pickle.Pickler):
    """Writes fake tensors as what they are like, and torch's ops by their names."""

    def reducer_override(self, value: Any) -> Any:
        if isinstance(value, FakeTensor):
            layout = (tuple(value.shape), value.stride(), value.storage_offset())
            return _fake_again, (*layout, value.dtype, str(value.device))
        if isinstance(value, torch._ops.OpOverload):
            namespace, _, name = value._schema.name.partition("::")
            return _op_again, (namespace, name, value._overloadname)
        return NotImplemented


def _packed(answer: Any) -> bytes:
    buffer = io.BytesIO()
    _Packer(buffer, protocol=pickle.HIGHEST_PROTOCOL).dump(answer)
    return buffer.getvalue()


_mode = cache(FakeTensorMode)


def _fake_again(
    shape: tuple[int, ...],
    stride: tuple[int, ...],
    offset: int,
    dtype: torch.dtype,
    device: str,
) -> torch.Tensor:
    with _mode():
        length = offset + span_of(shape, stride)
        flat = torch.empty(length, dtype=dtype, device=device)
        return flat.as_strided(shape, stride, offset)


def _op_again(namespace: str, name: str, overload: str) -> Any:
    return getattr(getattr(getattr(torch.ops, namespace), name), overload)

"""Work that is done in a copy of the process, or here where a copy cannot do it."""

import os
import threading

import pytest

from lowtide.engine.planning import aside
from lowtide.errors import CaptureError


def test_work_is_done_in_a_copy():
    assert aside.run_aside(os.getpid, may_be_here=False) != os.getpid()


def test_a_copy_that_waits_for_another_thread_is_given_up(monkeypatch):
    monkeypatch.setattr(aside, "_LOOK_SECONDS", 0.2)
    here = os.getpid()

    def work() -> int:
        if os.getpid() != here:
            threading.Event().wait()  # nobody else is there to set it
        return os.getpid()

    assert aside.run_aside(work, may_be_here=True) == here
    with pytest.raises(CaptureError, match="a copy of this process cannot run it"):
        aside.run_aside(work, may_be_here=False)

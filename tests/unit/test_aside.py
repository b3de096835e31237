"""Work that is done in a copy of the process, or here where a copy would hang."""

import os
import threading

import pytest
import torch

from lowtide.engine.aside import run_aside


def test_work_is_done_in_a_copy():
    assert run_aside(os.getpid) != os.getpid()


@pytest.mark.parametrize("version", ["cuda", "hip"])
def test_a_build_for_gpus_with_threads_of_its_own_is_not_copied(version, monkeypatch):
    monkeypatch.setattr(torch.version, version, "13.2")
    threads = ["thread"] * (threading.active_count() + 1)
    monkeypatch.setattr(os, "listdir", lambda _: threads)
    assert run_aside(os.getpid) == os.getpid()

"""What processes that train one model tell each other, and who of them is still there.

All of this goes through the store that the processes met at, never through an exchange
of tensors, which would have to come at the same time everywhere.
"""

from __future__ import annotations

import atexit
import json
import os
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import Any

import torch

from lowtide.errors import LowtideError, RankError

# How long a process waits for another that may be planning, in seconds; for one that
# has not come to its first step; and how long one that is alive can be silent.
_PATIENCE, _PATIENCE_AT_START, _SILENCE = 600.0, 60.0, 30.0
_LOOK = "Look at what it printed last"
# Where a process is: in which of its planned calls, on which rung of the ladder, and at
# which graph.
Where = tuple[int, int, int]


@dataclass(frozen=True)
class Group:
    """Processes that train one model, and what they tell each other."""

    ranks: tuple[int, ...]
    rank: int
    number: int = 0
    where: Where = (0, 0, 0)

    @property
    def place(self) -> str:
        return f"lowtide/{'-'.join(map(str, self.ranks))}/{self.number}"

    @property
    def is_first(self) -> bool:
        return self.rank == self.ranks[0]

    def tell(self, what: str, text: str) -> None:
        """Say something to all others."""
        with _at_store() as store:
            store.set(f"{self._key(what)}/{self.rank}", text)

    def wait_for_all(self, what: str) -> dict[int, str | None]:
        """What each of the others says, by their ranks."""
        others = (rank for rank in self.ranks if rank != self.rank)
        return {rank: self.wait_for(rank, what) for rank in others}

    def _key(self, what: str) -> str:
        return "/".join(map(str, (self.place, *self.where, what)))

    def goes_to(self, where: Where, error: Exception | None = None) -> Group:
        """Tell the others that this one has gone on, or why it cannot."""
        why: tuple[object, ...] | None = None
        if isinstance(error, RankError):
            why = error.rank, error.reason, error.fix
        elif isinstance(error, LowtideError):
            why = self.rank, str(error)
        elif error is not None:
            why = self.rank, f"{type(error).__name__}: {error}", _LOOK
        with _at_store() as store:
            store.set(f"{self.place}/at/{self.rank}", json.dumps([where, why]))
        return replace(self, where=where)

    def wait_for(self, rank: int, wanted: str) -> str | None:
        """What a rank says of what is wanted, or nothing if it goes another way.

        Raises:
            RankError: It cannot go on, or is not there any more.
        """
        key = f"{self._key(wanted)}/{rank}"
        pause, began, life = 0.001, time.monotonic(), _Life(rank)
        while True:
            where, why = self._position(rank)
            with _at_store() as store:
                if store.check([key]):
                    return store.get(key).decode()
            if why is not None:
                raise RankError(*why)
            if reason := life.ended():
                raise RankError(rank, reason, _LOOK)
            if where is not None and where > self.where:
                return None
            waited = time.monotonic() - began
            if waited > (_PATIENCE_AT_START if where is None else _PATIENCE):
                return None
            time.sleep(pause)
            pause = min(0.1, 2 * pause)

    def _position(self, rank: int) -> tuple[Where | None, Any]:
        key = f"{self.place}/at/{rank}"
        with _at_store() as store:
            if not store.check([key]):
                return None, None
            where, why = json.loads(store.get(key).decode())
        return (where[0], where[1], where[2]), why


class _Life:
    """Whether another process is there, as far as one can see."""

    def __init__(self, rank: int) -> None:
        self.rank, self.count, self.seen = rank, -1, time.monotonic()

    def ended(self) -> str:
        """Why one must take it for dead, or nothing."""
        with _at_store() as store:
            if store.check([f"lowtide/gone/{self.rank}"]):
                return "its process has ended"
            if not store.check([f"lowtide/alive/{self.rank}"]):
                return ""
            count = store.add(f"lowtide/alive/{self.rank}", 0)
        if count != self.count:
            self.count, self.seen = count, time.monotonic()
        if time.monotonic() - self.seen < _SILENCE:
            return ""
        return f"there has been no sign of life of it for {_SILENCE:.0f} s"


_beating: list[Any] = []


def show_life() -> None:
    """From now on, tell the others about once a second that this process is there."""
    if not met() or _beating[-1:] == [_store()]:
        return
    _beating[:] = [_store()]
    store, rank, pid = _connection(), torch.distributed.get_rank(), os.getpid()

    over = threading.Event()

    def beat() -> None:
        with suppress(RuntimeError):  # whoever had the store is gone
            while not over.wait(1.0):
                store.add(f"lowtide/alive/{rank}", 1)

    def say_goodbye() -> None:
        if os.getpid() == pid:  # not in a copy of the process
            over.set()
            thread.join(5.0)  # a thread in torch must not outlive the interpreter
            with suppress(RuntimeError):
                store.set(f"lowtide/gone/{rank}", "")

    store.add(f"lowtide/alive/{rank}", 1)
    thread = threading.Thread(target=beat, name="lowtide: alive", daemon=True)
    atexit.register(say_goodbye)
    thread.start()


def met() -> bool:
    """Whether there are other processes."""
    distributed = torch.distributed
    return (
        distributed.is_available()
        and distributed.is_initialized()
        and distributed.get_backend() != "fake"
        and distributed.get_world_size() > 1
    )


def _store() -> Any:
    # NOTE(torch>=2.13): the store that the processes met at has no public name.
    return torch.distributed.distributed_c10d._get_default_store()


def _connection() -> Any:
    """A new connection to the store: another thread may be waiting on the first."""
    with _at_store() as store:
        patience = store.timeout
        # Whoever has the store may be gone already, and minutes would be waited for it.
        store.set_timeout(timedelta(seconds=_SILENCE))
        try:
            return store.clone()
        finally:
            store.set_timeout(patience)


@contextmanager
def _at_store() -> Iterator[Any]:
    """The store, which is gone when the process that has it is."""
    try:
        yield _store()
    except RuntimeError as error:
        what = f"the store that the ranks met at is gone ({error})"
        raise RankError(0, what, _LOOK) from None

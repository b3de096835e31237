"""Time and scratch of single ops on the real device.

An op timed in a loop finds its inputs in the cache; in a step it mostly does not,
because everything that ran since its inputs were made has passed through the cache. So
ops are timed in rounds: small ones in groups that together fill most of the last-level
cache, each on its own arguments, and what a group leaves is swept by writing a spare
buffer. Its first argument, though, an op has mostly just been given by the op before:
that one is read before the clock starts. In a first study on
ResNet-50, DenseNet-121, GPT-2 and ViT (one thread, 32 MiB of cache) the sum of op times
was this part of the same ops inside the graph: timed in a loop 0.82 to 0.97, after a
sweep of 24 MiB before each run 0.93 to 0.99, of 64 MiB 0.96 to 1.15.

What is held at once is the arguments and results of one op, or of one group, which is
at most as large as the cache. An op for which there is no room beside the parameters
reads these: as much as it needs then is alive when it runs in the step, too.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from lowtide.engine.capture import recurrent
from lowtide.engine.capture.call import Call
from lowtide.engine.costs.cost import Cost
from lowtide.engine.costs.inputs import fresh_bytes, real_arguments, size_bytes
from lowtide.engine.costs.machine import cache_bytes, count_allocations

# Seconds of timed runs to spend on one group, and how many runs that may be. An op so
# slow that three runs do not fit gets two: their noise is small beside their length.
_GROUP_SECONDS = 0.25
_LEAST_RUNS, _MOST_RUNS = 3, 9
_SLOW_SECONDS = 0.1
# Less is the single numbers that almost every op takes.
_LEAST_SCRATCH_BYTES = 1024


def measure_calls(
    calls: Sequence[Call],
    device: torch.device,
    room_bytes: int | None = None,
    lent: Sequence[torch.Tensor] = (),
) -> Iterator[MeasuredCall]:
    """Measure each call, and yield it as soon as something is known of it.

    The random-number state of the process is the same afterwards. A group and what
    sweeps the cache behind it take no more than `room_bytes`; an op that needs more
    reads `lent` tensors in place of arguments of its own.
    """
    sweeper = _Sweeper(device, room_bytes)
    devices = [device] if device.type == "cuda" else []
    with torch.random.fork_rng(devices=devices), torch.no_grad():
        for group in _groups(calls, sweeper.cache_bytes):
            yield from _measure_group(group, device, sweeper, lent)


def _groups(calls: Sequence[Call], limit_bytes: int) -> list[list[Call]]:
    groups: list[list[Call]] = []
    room = 0
    for call in calls:
        size = size_bytes(call)
        if not groups or size > room:
            groups.append([])
            room = limit_bytes
        groups[-1].append(call)
        room -= size
    return groups


@dataclass(slots=True)
class MeasuredCall:
    """A call: how to run it, and what has been seen of it so far.

    If it cannot run alone, `error` says why.
    """

    call: Call
    args: tuple[Any, ...] = ()
    kwargs: dict[str, Any] = field(default_factory=dict[str, Any])
    error: str = ""
    scratch_bytes: int = 0
    seconds: list[float] = field(default_factory=list[float])

    def run(self) -> Any:
        if self.call.target is recurrent.LAYER:
            with recurrent.with_workspaces():
                return self.call.target(*self.args, **self.kwargs)
        return self.call.target(*self.args, **self.kwargs)

    @property
    def cost(self) -> Cost:
        """The median of its runs, and how far they lie apart."""
        middle = statistics.median(self.seconds)
        deviation = statistics.median(abs(t - middle) for t in self.seconds)
        spread = deviation / middle if middle > 0 else 0.0
        return Cost(middle, spread, self.scratch_bytes)

    def touch(self) -> None:
        """Bring the first argument into the cache, as the op before it would."""
        if self.args and isinstance(self.args[0], torch.Tensor):
            self.args[0].sum()

    def fail(self, failure: Exception) -> None:
        """Note why the op cannot run alone: made-up values may be refused."""
        first = next(iter(str(failure).splitlines()), "")
        self.error = f"{type(failure).__name__}: {first[:200]}"


def _measure_group(
    group: Sequence[Call],
    device: torch.device,
    sweeper: _Sweeper,
    lent: Sequence[torch.Tensor],
) -> list[MeasuredCall]:
    clock = _CudaClock() if device.type == "cuda" else _HostClock()
    size = sum(map(size_bytes, group))
    # Scratch is not known before an op has run. Mostly it is less than the op's size.
    is_large = not sweeper.make_room(2 * size)
    if sweeper.is_tight:
        sweeper.clear()
    prepared = [_prepare(call, device, lent if is_large else ()) for call in group]
    sweeper.make_room(size + max(p.scratch_bytes for p in prepared))
    sweep_bytes = sweeper.cache_bytes - size
    spent, runs = 0.0, 0
    while not _enough(runs, spent) and not all(p.error for p in prepared):
        sweeper.sweep(sweep_bytes)
        # Results live until the round ends, so that none is made where the one before
        # has just been freed and is still in the cache.
        results: list[Any] = []
        clock.start()
        for p in prepared:
            if not p.error:
                try:
                    p.touch()
                    results.append(clock.time(p.run))
                except Exception as failure:
                    p.fail(failure)
        taken = clock.stop()
        for p, seconds in zip((p for p in prepared if not p.error), taken, strict=True):
            p.seconds.append(seconds)
        del results
        spent += sum(taken)
        runs += 1
    for p in prepared:
        p.args, p.kwargs = (), {}  # they are as large as the cache
    return prepared


def _enough(runs: int, spent: float) -> bool:
    if runs < 2:
        return False
    if spent / runs > _SLOW_SECONDS:
        return True
    return runs >= _MOST_RUNS or (runs >= _LEAST_RUNS and spent > _GROUP_SECONDS)


def _prepare(
    call: Call, device: torch.device, lent: Sequence[torch.Tensor]
) -> MeasuredCall:
    """Arguments with which the call runs, found by running it."""
    ready = MeasuredCall(call)
    # Whole numbers of unknown meaning: one divides, and index 0 is always there.
    for whole_number in (1, 0):
        try:
            ready.args, ready.kwargs = real_arguments(
                call, device, whole_number=whole_number, lent=lent
            )
            ready.scratch_bytes = _scratch(ready, device)
            ready.error = ""
            break
        except Exception as failure:
            ready.fail(failure)
    return ready


def _scratch(p: MeasuredCall, device: torch.device) -> int:
    """Run the op; return the bytes that it takes beyond its results and gives back.

    The first run may also set things up for good (compiled kernels, packed weights), so
    the second one is counted.
    """
    p.run()
    _, most_bytes = count_allocations(p.run, device)
    scratch_bytes = most_bytes - fresh_bytes(p.call)
    return scratch_bytes if scratch_bytes >= _LEAST_SCRATCH_BYTES else 0


class _Sweeper:
    """Pushes everything else out of the last-level cache."""

    def __init__(self, device: torch.device, room_bytes: int | None) -> None:
        self.device = device
        self.cache_bytes = self.spare_bytes = cache_bytes(device) * 3 // 4
        self.room_bytes = room_bytes
        self.is_tight = room_bytes is not None and room_bytes // 2 < self.cache_bytes
        if room_bytes is not None:
            self.cache_bytes = min(self.cache_bytes, room_bytes // 2)
        self._spare: torch.Tensor | None = None

    def make_room(self, nbytes: int) -> bool:
        """Leave so much for ops; false if there is less."""
        if self.room_bytes is None:
            return True
        left = self.room_bytes - nbytes
        self.spare_bytes = min(self.cache_bytes, max(0, left))
        if self._spare is not None and self._spare.nbytes > self.spare_bytes:
            self.clear()
        return left >= 0

    def clear(self) -> None:
        """Give back what it sweeps with."""
        self._spare = None

    def sweep(self, nbytes: int) -> None:
        if nbytes <= 0:
            self.clear()  # what runs next takes more than a group may
            return
        nbytes = min(nbytes, self.spare_bytes)
        if self._spare is None:
            length = self.spare_bytes // 4
            self._spare = torch.ones(length, device=self.device, dtype=torch.float32)
        self._spare[: nbytes // 4].neg_()


class _HostClock:
    """Wall time, without the time that other processes held the core.

    An op on one thread takes as long as it computes; where the wall clock says much
    more, the thread was made to wait. With several threads there is no telling.
    """

    def __init__(self) -> None:
        self._alone = torch.get_num_threads() == 1
        self._taken: list[float] = []

    def start(self) -> None:
        self._taken = []

    def time(self, run: Callable[[], Any]) -> Any:
        busy = time.thread_time()
        begin = time.perf_counter()
        result = run()
        wall = time.perf_counter() - begin
        busy = time.thread_time() - busy
        waited = self._alone and wall > 1.05 * busy + 2e-5
        self._taken.append(busy if waited else wall)
        return result

    def stop(self) -> list[float]:
        return self._taken


class _CudaClock:
    """Times by events on the stream, read when the round is over."""

    def start(self) -> None:
        self._events: list[tuple[torch.cuda.Event, torch.cuda.Event]] = []

    def time(self, run: Callable[[], Any]) -> Any:
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        result = run()
        end.record()
        self._events.append((begin, end))
        return result

    def stop(self) -> list[float]:
        torch.cuda.synchronize()
        return [begin.elapsed_time(end) / 1e3 for begin, end in self._events]

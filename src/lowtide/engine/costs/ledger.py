"""Bytes over a step that really runs: a check that knows no captured graph.

The step runs eagerly under a dispatch mode. Every storage an op brings forth is entered
when it appears and struck out when it is destroyed, so the timeline is that of the
process's own tensors, whatever lowtide believes about the step. What kernels take and
give back inside is not seen here; the operating system's count has it.
"""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import torch

from lowtide.engine.capture.step import ALIGNMENT_BYTES
from lowtide.engine.capture.tensors import Seeing, storage_key, tensors_in


@dataclass(frozen=True, slots=True)
class LedgerTimeline:
    """What a step held, after each storage that came or went.

    Attributes:
        peak_bytes: Most bytes alive at once, residents included.
        activation_peak_bytes: Most bytes alive at once beyond residents and gradients.
        resident_bytes: Bytes alive before the step began.
        live_bytes: Bytes alive after each change.
    """

    peak_bytes: int
    activation_peak_bytes: int
    resident_bytes: int
    live_bytes: tuple[int, ...]


def ledger(
    function: Callable[[], Any],
    *,
    modules: Iterable[torch.nn.Module] = (),
    batch: Any = None,
) -> LedgerTimeline:
    """Run a whole step once and return the bytes it held over time.

    Resident are the modules' parameters, buffers and gradients, and the tensors of the
    batch, in any nesting.
    """
    modules = list(modules)
    parameters = [p for module in modules for p in module.parameters()]
    buffers = [b for module in modules for b in module.buffers()]
    book = Book()
    book.enter((parameters, buffers, [p.grad for p in parameters], batch))
    resident_bytes = book.live
    book.entries.clear()
    # Garbage of earlier work must not be freed in the middle of this.
    gc.collect()
    with book:
        result = function()
    book.is_open = False
    kept = tensors_in([p.grad for p in parameters])
    gradients = {book.numbers.get(storage_key(g)) for g in kept}
    del result
    live, held_by_gradients = resident_bytes, 0
    live_bytes: list[int] = []
    activation_peak = 0
    for number, change in book.entries:
        live += change
        held_by_gradients += change if number in gradients else 0
        live_bytes.append(live)
        activations = live - resident_bytes - held_by_gradients
        activation_peak = max(activation_peak, activations)
    peak = max(live_bytes, default=resident_bytes)
    return LedgerTimeline(peak, activation_peak, resident_bytes, tuple(live_bytes))


class Book(Seeing):
    """Numbers the storages that ops bring forth; entries are (number, bytes)."""

    # What a higher-order op makes is seen when it returns.
    supports_higher_order_operators = True

    def __init__(self) -> None:
        super().__init__()
        self.numbers: dict[int, int] = {}
        self.entries: list[tuple[int, int]] = []
        self.is_open = True
        self.live = 0
        self._count = 0

    def see(self, op: Any, args: Any, kwargs: Any, outputs: Any) -> None:
        self.enter(outputs)

    def enter(self, tree: Any) -> None:
        for tensor in tensors_in(tree):
            key = storage_key(tensor)
            if key in self.numbers:
                continue
            storage = tensor.untyped_storage()
            unit = ALIGNMENT_BYTES.get(tensor.device.type, 1)
            nbytes = -(-storage.nbytes() // unit) * unit
            self.numbers[key] = self._count
            self._note(self._count, nbytes)
            weakref.finalize(storage, self.strike, key, self._count, nbytes)
            self._count += 1

    def strike(self, key: int, number: int, nbytes: int) -> None:
        if self.numbers.get(key) == number:
            del self.numbers[key]
        if self.is_open:
            self._note(number, -nbytes)

    def _note(self, number: int, change: int) -> None:
        self.live += change
        if change:
            self.entries.append((number, change))

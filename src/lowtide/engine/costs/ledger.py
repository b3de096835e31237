"""Bytes by kind over a step that really runs: a check that knows no captured graph.

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
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.module_tracker import ModuleTracker

from lowtide.engine.capture.step import ALIGNMENT_BYTES
from lowtide.step.graph import KINDS, Kind


@dataclass(frozen=True, slots=True)
class LedgerTimeline:
    """What a step held, after each storage that came or went.

    Attributes:
        peak_bytes: Most bytes alive at once, residents included.
        resident_bytes: Bytes alive before the step began.
        live_bytes: Bytes alive after each change.
        by_kind: The same by kind; the columns sum to `live_bytes`.
        ops: For each change, the op that had begun last.
    """

    peak_bytes: int
    resident_bytes: int
    live_bytes: tuple[int, ...]
    by_kind: dict[Kind, tuple[int, ...]]
    ops: tuple[str, ...]

    @property
    def peak_index(self) -> int:
        """The first change that reaches the peak."""
        return self.live_bytes.index(self.peak_bytes) if self.live_bytes else 0

    @property
    def activation_peak_bytes(self) -> int:
        """Most bytes at once beyond what was there before and the gradients."""
        gradients = self.by_kind.get("gradient", (0,) * len(self.live_bytes))
        pairs = zip(self.live_bytes, gradients, strict=True)
        return max((n - self.resident_bytes - g for n, g in pairs), default=0)

    def at_peak(self) -> dict[Kind, int]:
        """Bytes by kind at the peak; kinds that have none are left out."""
        if not self.live_bytes:
            return {}
        index = self.peak_index
        return {k: v[index] for k, v in self.by_kind.items() if v[index]}


def ledger(
    function: Callable[[], Any],
    *,
    modules: Iterable[torch.nn.Module] = (),
    batch: Any = None,
    optimizer: torch.optim.Optimizer | None = None,
    alignment_bytes: int | None = None,
) -> LedgerTimeline:
    """Run `function` once and return the bytes it held over time.

    Args:
        function: The whole step: forward, backward and, if wanted, the optimizer.
        modules: Whose parameters and buffers are resident.
        batch: Tensors that are resident as inputs, in any nesting.
        optimizer: Whose state is resident.
        alignment_bytes: What sizes are rounded up to; by default the granularity of
            the device's allocator.
    """
    modules = list(modules)
    book = _Book(alignment_bytes)
    for module in modules:
        book.residents(module.parameters(), "parameter")
        book.residents(module.buffers(), "buffer")
        book.residents((p.grad for p in module.parameters()), "gradient")
    book.residents(pytree.tree_leaves(batch), "input")
    if optimizer is not None:
        state = (v for entries in optimizer.state.values() for v in entries.values())
        book.residents(state, "optimizer_state")
    before = book.live
    # Garbage of earlier work must not be freed in the middle of this.
    gc.collect()
    with _Watch(book):
        result = function()
    book.close(modules, optimizer)
    del result
    return book.timeline(before)


class _Book:
    """Entries (storage number, bytes come or gone, op), and what each number is."""

    def __init__(self, alignment_bytes: int | None) -> None:
        self.unit = alignment_bytes
        self.numbers: dict[int, int] = {}
        self.sizes: list[int] = []
        self.kinds: list[Kind] = []
        self.entries: list[tuple[int, int, str]] = []
        self.first = 0
        self.live = 0
        self.op = ""
        self.open = True

    def residents(self, tensors: Iterable[Any], kind: Kind) -> None:
        for tensor in tensors:
            if isinstance(tensor, torch.Tensor):
                self.enter(tensor, kind)
        self.first = len(self.entries)

    def enter(self, tensor: torch.Tensor, kind: Kind) -> None:
        storage = tensor.untyped_storage()
        key = storage._cdata
        if key in self.numbers:
            return
        unit = self.unit or ALIGNMENT_BYTES.get(tensor.device.type, 1)
        nbytes = -(-storage.nbytes() // unit) * unit
        number = len(self.sizes)
        self.numbers[key] = number
        self.sizes.append(nbytes)
        self.kinds.append(kind)
        self._enter(number, nbytes)
        weakref.finalize(storage, self.strike, key, number)

    def strike(self, key: int, number: int) -> None:
        if self.numbers.get(key) == number:
            del self.numbers[key]
        if self.open:
            self._enter(number, -self.sizes[number])

    def _enter(self, number: int, change: int) -> None:
        self.live += change
        if change:
            self.entries.append((number, change, self.op))

    def close(
        self,
        modules: Iterable[torch.nn.Module],
        optimizer: torch.optim.Optimizer | None,
    ) -> None:
        """End the account; what has become a gradient or a state is called so."""
        self.open = False
        for module in modules:
            for parameter in module.parameters():
                self._rename(parameter.grad, "gradient")
        if optimizer is not None:
            for entries in optimizer.state.values():
                for value in entries.values():
                    self._rename(value, "optimizer_state")

    def _rename(self, value: Any, kind: Kind) -> None:
        if isinstance(value, torch.Tensor):
            number = self.numbers.get(value.untyped_storage()._cdata)
            if number is not None and self.kinds[number] in ("activation", "temporary"):
                self.kinds[number] = kind

    def timeline(self, resident_bytes: int) -> LedgerTimeline:
        now: dict[Kind, int] = dict.fromkeys(KINDS, 0)
        live: list[int] = []
        columns: dict[Kind, list[int]] = {k: [] for k in KINDS}
        ops: list[str] = []
        for place, (number, change, op) in enumerate(self.entries):
            now[self.kinds[number]] += change
            if place < self.first:
                continue
            ops.append(op)
            live.append(sum(now.values()))
            for kind, column in columns.items():
                column.append(now[kind])
        return LedgerTimeline(
            peak_bytes=max(live, default=resident_bytes),
            resident_bytes=resident_bytes,
            live_bytes=tuple(live),
            by_kind={k: tuple(v) for k, v in columns.items() if any(v)},
            ops=tuple(ops),
        )


class _Watch(TorchDispatchMode):
    # What a higher-order op makes is seen when it returns.
    supports_higher_order_operators = True

    def __init__(self, book: _Book) -> None:
        super().__init__()
        self.book = book
        self.tracker = ModuleTracker()

    @classmethod
    def ignore_compile_internals(cls) -> bool:
        """What torch.compile does to itself is not part of the step."""
        return True

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        self.book.op = str(func)
        result = func(*args, **(kwargs or {}))
        kind: Kind = "temporary" if self.tracker.is_bw else "activation"
        for value in pytree.tree_leaves(result):
            if isinstance(value, torch.Tensor):
                self.book.enter(value, kind)
        return result

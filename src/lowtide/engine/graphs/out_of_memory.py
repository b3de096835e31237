"""Who filled the memory, when an allocation of a planned step fails.

The error itself names the allocation that failed, which is seldom the one to blame.
What a planned graph holds is in the local names of its generated code, and these lead
to the modules that made it. So the error gets a note: bytes by module, and the budget
under which the same step would have stayed within what was there.
"""

from __future__ import annotations

import re
import traceback
from collections import Counter
from collections.abc import Iterator

import torch

from lowtide.engine.capture.call import module_of
from lowtide.engine.capture.piece import Piece
from lowtide.engine.capture.tensors import storage_key, tensors_in
from lowtide.step.format import format_bytes

_ON_CPU = re.compile(r"DefaultCPUAllocator: .*allocate")
_SAVED = re.compile(r"saved_(\d+)")
_SHOWN = 5
# What the allocator's blocks and other libraries take beside the tensors.
_SPARE = 0.95


def explain(error: BaseException, piece: Piece) -> None:
    """Add a note to an error if it says that there was no memory left."""
    if not is_out_of_memory(error) or getattr(error, "__notes__", None):
        return
    held = held_by(error, piece)
    total = sum(held.values())
    lines = [f"lowtide: the step held {format_bytes(total)} when this failed:"]
    lines += [
        f"  {format_bytes(nbytes):>10}  {name}"
        for name, nbytes in held.most_common(_SHOWN)
    ]
    rest = total - sum(nbytes for _, nbytes in held.most_common(_SHOWN))
    if rest:
        lines.append(f"  {format_bytes(rest):>10}  others")
    fits = f"{max(1, int(_SPARE * total) >> 20)} MiB"
    lines.append(f'A budget that fits: lowtide.optimize(..., budget="{fits}").')
    error.add_note("\n".join(lines))


def is_out_of_memory(error: BaseException) -> bool:
    """Whether an allocation failed, on the CPU or on another device."""
    return isinstance(error, torch.OutOfMemoryError | MemoryError) or (
        isinstance(error, RuntimeError) and bool(_ON_CPU.search(str(error)))
    )


def held_by(error: BaseException, piece: Piece) -> Counter[str]:
    """Bytes of the tensors that the failed code could still reach, by module."""
    modules = {node.name: module_of(node) for node in piece.joint.graph.nodes}
    held: Counter[str] = Counter()
    seen: set[int] = set()
    # A kernel in Python has names of its own for what the graph's code handed to it.
    graph_first = sorted(
        _tensors(error), key=lambda e: e[0] not in modules and not _SAVED.match(e[0])
    )
    for name, tensor in graph_first:
        if storage_key(tensor) in seen:
            continue
        seen.add(storage_key(tensor))
        held[_owner(name, piece, modules)] += tensor.untyped_storage().nbytes()
    return held


def _tensors(error: BaseException) -> Iterator[tuple[str, torch.Tensor]]:
    for frame, _ in reversed(list(traceback.walk_tb(error.__traceback__))):
        for name, value in frame.f_locals.items():
            for tensor in tensors_in(value):
                yield name, tensor


def _owner(name: str, piece: Piece, modules: dict[str, str]) -> str:
    """What made the value that the generated code knows by this name."""
    saved = _SAVED.fullmatch(name)
    if saved and int(saved[1]) < len(piece.storages):
        storage = piece.storages[int(saved[1])]
        base = piece.bases.get(storage.id)
        name = storage.name if base is None else base.name
    for node, storages in piece.storage_of.items():
        if node.name == name and node.op == "placeholder":
            kind = piece.storages[storages[0]].kind if storages else "input"
            return {"input": "inputs", "temporary": "gradients from outside"}.get(
                kind, f"{kind}s"
            )
    return modules.get(name) or "the model itself"

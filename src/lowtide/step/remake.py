"""The one walk from missing storages to the ops that make them again."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass, field

from lowtide.step.graph import StepGraph


@dataclass(slots=True)
class Remaking:
    """What has to run before some storages are there.

    `ops` come inputs first, so they can run in this order. `lost` are the storages met
    on the way that nothing can make: they have to be kept.
    """

    ops: list[int] = field(default_factory=list[int])
    lost: set[int] = field(default_factory=set[int])


def remaking(
    step: StepGraph,
    needed: Iterable[int],
    alive: Collection[int],
    *,
    maker_of: Callable[[int], int] | None = None,
    visited: set[int] | None = None,
) -> Remaking:
    """The ops that make the needed storages from what is alive.

    Args:
        step: The step.
        needed: The storages to make; those alive need nothing.
        alive: The storages that are there.
        maker_of: The op that makes a storage, or -1 if none can; by default the
            fastest one that may run twice.
        visited: Ops that earlier walks have dealt with. This walk passes them over and
            adds its own.
    """
    maker_of = maker_of or step.remakers.__getitem__
    visited = set() if visited is None else visited
    found = Remaking()
    # An op waits on the stack (as -1 - op) until everything it reads is made.
    stack: list[int] = [s for s in needed if s not in alive]
    stack.reverse()
    while stack:
        top = stack.pop()
        if top < 0:
            found.ops.append(-1 - top)
            continue
        maker = maker_of(top)
        if maker < 0:
            found.lost.add(top)
        elif maker not in visited:
            visited.add(maker)
            stack.append(-1 - maker)
            stack.extend(s for s in reversed(step.ops[maker].reads) if s not in alive)
    return found


def makers_in(step: StepGraph, piece: int) -> Callable[[int], int]:
    """What makes a storage again while only ops of one piece can run."""
    ops, remakers = step.ops, step.remakers

    def maker_of(storage: int) -> int:
        maker = remakers[storage]
        return maker if maker >= 0 and ops[maker].piece == piece else -1

    return maker_of


def missing_cone(
    step: StepGraph, needed: Iterable[int], alive: Collection[int]
) -> list[int]:
    """Ops that make the needed storages from what is alive, in baseline order.

    Storages that cannot be made again are passed over: the caller keeps them.
    """
    return sorted(remaking(step, needed, alive).ops)

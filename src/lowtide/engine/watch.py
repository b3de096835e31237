"""What happens at run time, for those who must know."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from lowtide.engine.bits import Unchanged
from lowtide.engine.capture.piece import Piece
from lowtide.errors import VerificationError
from lowtide.step.graph import Phase

Around = Callable[[Piece, Phase, list[Any], Callable[[list[Any]], Any]], Any]


@dataclass
class Watch:
    """What happened at run time, for those who must know.

    `forwards` and `backwards` count the runs of planned graphs, `graphs` the graphs
    that were planned, `unplanned` those without a backward, `left` says for each graph
    that runs as it is why it could not be planned. `around`, if given, is
    called instead of each run, with the piece, the phase, the arguments and the run.
    `surprises` counts backwards of other outputs than were planned for, `seen_absent`
    is what the last of them went without, `expected_absent` what to plan for instead of
    a guess. `held` has an entry for each forward whose backward may still come.
    `unchanged` is asked once, when the next backward begins. `told` are the
    parameters of which it was said that their gradients are summed otherwise.
    """

    forwards: int = 0
    backwards: int = 0
    graphs: int = 0
    unplanned: int = 0
    left: list[str] = field(default_factory=list[str])
    held: dict[int, tuple[int, int]] = field(default_factory=dict[int, tuple[int, int]])
    around: Around | None = None
    surprises: int = 0
    seen_absent: frozenset[int] | None = None
    expected_absent: frozenset[int] | None = None
    unchanged: Unchanged | None = None
    told: set[str] = field(default_factory=set[str])

    @property
    def held_bytes(self) -> int:
        """Bytes that graphs keep for backwards that have not run yet."""
        return sum(nbytes for _, nbytes in self.held.values())

    def run(
        self, piece: Piece, phase: Phase, args: list[Any], run: Callable[..., Any]
    ) -> Any:
        """Run one half of a piece."""
        if phase == "forward":
            self.forwards += 1
        else:
            self.backwards += 1
            if self.unchanged is not None:
                self.check_unchanged(self.unchanged)
            own = [k for k, (owner, _) in self.held.items() if owner == id(piece)]
            for key in own[-1:]:
                del self.held[key]
        return self.around(piece, phase, args, run) if self.around else run(args)

    def check_unchanged(self, unchanged: Unchanged) -> None:
        """Raise if what a backward is computed from is not what its forward saw."""
        self.unchanged = None
        changed = unchanged.first_changed()
        if changed is not None:
            raise VerificationError(
                changed,
                "its memory was changed between the forward and the backward, and what "
                "is recomputed from it would be wrong",
            )

    def hold(self, piece: Piece, outputs: Any) -> None:
        """Count what a forward keeps until its backward has run or cannot come."""
        node = compiled_node(outputs)
        if node is None:
            return
        token = _Held()
        self.held[id(token)] = id(piece), piece.kept_bytes
        weakref.finalize(token, self.held.pop, id(token), None)
        node.lowtide_held = token  # lives as long as autograd's graph does


class _Held:
    """Stands in autograd's graph for what a forward has kept."""


def compiled_node(outputs: Any) -> Any:
    """The context of the compiled function: an output's `grad_fn`, or a view of it."""
    for value in outputs if isinstance(outputs, list | tuple) else (outputs,):
        node = getattr(value, "grad_fn", None)
        for _ in range(3):
            if node is None:
                break
            if hasattr(node, "set_materialize_grads"):
                return node
            node = node.next_functions[0][0] if node.next_functions else None
    return None

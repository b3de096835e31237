"""What happens while planned graphs run: counts, what is held, what surprises."""

from __future__ import annotations

import logging
import time
import weakref
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch

from lowtide.engine.bits import Unchanged
from lowtide.engine.capture.piece import Piece
from lowtide.engine.capture.questions import Answers
from lowtide.engine.graphs.out_of_memory import explain
from lowtide.engine.graphs.outside import Observation
from lowtide.engine.graphs.updates import Updates
from lowtide.errors import VerificationError
from lowtide.step.format import format_seconds
from lowtide.step.graph import Phase

log = logging.getLogger("lowtide.run")

Around = Callable[[Piece, Phase, list[Any], Callable[[list[Any]], Any]], Any]

# How many steps are timed to tell what they spend outside the planned graphs.
_TIMED_STEPS = 3


@dataclass
class Watch:
    """Sees every run of a planned graph.

    Attributes:
        forwards: How many planned forwards have run; `backwards` likewise.
        graphs: How many graphs were captured.
        generation: How often all that was planned has been forgotten.
        unplanned: How many graphs had no backward.
        left: For each graph that cannot be planned, why.
        held: An entry for each forward whose backward may still come: which piece, and
            how many bytes it keeps.
        around: Called instead of each run, with the piece, the phase, the arguments and
            the run.
        surprises: How many backwards were of other outputs than were planned for.
        seen_absent: The gradients that the last surprise went without.
        expected_absent: Those to plan without, instead of a guess.
        unchanged: Asked once, when the next backward begins.
        told: What the user has been told already.
        answers: What code is told that asks whether it is being compiled.
        visits: How often each graph has run its forward in this step, if anyone asks.
        updates: Those that run in the backward.
        returned: What the last forward returned, as long as somebody holds it, by the
            storage that it is in.
        dropped: Those storages of which nothing was held when the backward began.
        observation: Told when a backward begins, and when it has ended.
        most_in_flight: How many forwards of one graph were waiting, at most, when the
            backward of one of them began.
        outside_seconds: What a step spends between its graphs: the least of the first
            steps, as the very first does things that are done once. Plans do not count
            it, since it is the same in all of them.
    """

    forwards: int = 0
    backwards: int = 0
    graphs: int = 0
    generation: int = 0
    unplanned: int = 0
    left: list[str] = field(default_factory=list[str])
    held: dict[int, tuple[int, int]] = field(default_factory=dict[int, tuple[int, int]])
    around: Around | None = None
    surprises: int = 0
    seen_absent: frozenset[int] | None = None
    expected_absent: frozenset[int] | None = None
    unchanged: Unchanged | None = None
    told: set[str] = field(default_factory=set[str])
    answers: Answers = field(default_factory=Answers)
    visits: dict[Piece, int] | None = None
    observation: Observation | None = None
    updates: Updates | None = None
    returned: tuple[Piece, dict[int, list[weakref.ref[Any]]]] | None = None
    dropped: tuple[Piece, frozenset[int]] | None = None
    most_in_flight: int = 0
    outside_seconds: float | None = None
    _num_timed: int = 0
    _gaps: float = 0.0
    _ended: float = 0.0

    @property
    def held_bytes(self) -> int:
        """Bytes that graphs keep for backwards that have not run yet."""
        return sum(nbytes for _, nbytes in self.held.values())

    def run(
        self, piece: Piece, phase: Phase, args: list[Any], run: Callable[..., Any]
    ) -> Any:
        is_first = phase == "forward" and not self.held
        self._gaps = 0.0 if is_first else self._gaps + self.now() - self._ended
        if phase == "forward":
            self.forwards += 1
            if self.visits is not None:
                self.visits[piece] = self.visits.get(piece, 0) + 1
        else:
            self.backwards += 1
            if self.unchanged is not None:
                self.check_unchanged(self.unchanged)
            own = [k for k, (owner, _) in self.held.items() if owner == id(piece)]
            self.most_in_flight = max(self.most_in_flight, len(own))
            for key in own[-1:]:
                del self.held[key]
            self.note_dropped(piece)
        try:
            outputs = self.around(piece, phase, args, run) if self.around else run(args)
        except RuntimeError as error:
            explain(error, piece)
            raise
        self._ended = self.now()
        if phase == "backward" and self.observation is not None:
            self.observation.note_end()
        if phase == "backward" and not self.held and self._num_timed < _TIMED_STEPS:
            self.note_time_outside()
        return outputs

    def now(self) -> float:
        """The time, in the first steps that of the GPU too."""
        if self._num_timed < _TIMED_STEPS and torch.cuda.is_initialized():
            torch.cuda.synchronize()
        return time.perf_counter()

    def note_time_outside(self) -> None:
        """At the end of one of the first steps."""
        self._num_timed += 1
        least = self.outside_seconds
        self.outside_seconds = self._gaps if least is None else min(least, self._gaps)
        if self._num_timed == _TIMED_STEPS:
            told = format_seconds(self.outside_seconds)
            log.info("a step spends %s outside the captured graphs", told)

    def stop_observing(self) -> None:
        """Give up watching this step: lowtide itself takes memory in it, to plan."""
        if self.observation is not None:
            self.observation.end()
            self.observation = None

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

    def note_returned(self, piece: Piece, outputs: Any) -> None:
        """Remember what a forward hands to the caller, without holding it."""
        changed = set(piece.mutated_inputs.values())
        nodes = [n for k, n in enumerate(piece.forward_outputs) if k not in changed]
        found: dict[int, list[weakref.ref[Any]]] = {}
        for node, value in zip(nodes, outputs, strict=False):
            if isinstance(value, torch.Tensor):
                for s in piece.storage_of.get(node, ()):
                    found.setdefault(s, []).append(weakref.ref(value))
        self.returned = piece, found

    def note_dropped(self, piece: Piece) -> None:
        """When a backward begins: what of its forward's outputs nobody holds."""
        returned, self.returned = self.returned, None
        if returned is not None and returned[0] is piece:
            gone = [
                s for s, refs in returned[1].items() if all(r() is None for r in refs)
            ]
            self.dropped = piece, frozenset(gone)

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
    """The compiled function's node in autograd's graph, found from its outputs."""
    for value in outputs if isinstance(outputs, list | tuple) else (outputs,):
        node = getattr(value, "grad_fn", None)
        for _ in range(3):
            if node is None:
                break
            if hasattr(node, "set_materialize_grads"):
                return node
            node = node.next_functions[0][0] if node.next_functions else None
    return None

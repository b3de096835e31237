"""Watch one training step run on fake tensors and put its graphs together.

The step runs as the user wrote it, but on tensors without bytes: nothing is computed
and nothing is allocated. What dynamo captures arrives as pieces; what runs between and
around them (a loss outside the model, code behind a graph break) is seen op by op by a
dispatch mode. `compose` makes one `StepGraph` of both: the pieces' ops can be planned,
and each stretch outside becomes one op that runs once, with the bytes it holds and
needs.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, NamedTuple

import torch

from lowtide.engine.capture.piece import Piece
from lowtide.engine.capture.step import step_of
from lowtide.engine.capture.tensors import Seeing, result_bytes, storage_key, tensors_in
from lowtide.step.graph import Op, Phase, Region, StepGraph, Storage, check_graph


class OutsideCall(NamedTuple):
    """The storages that an op which ran outside every piece read and made."""

    reads: tuple[int, ...]
    writes: tuple[int, ...]


@dataclass
class Visit:
    """A piece's forward or backward, with what crosses its border."""

    piece: Piece
    phase: Phase
    inputs: list[Any]
    outputs: list[Any]

    @property
    def handed(self) -> list[Any]:
        """What came from outside: a forward's inputs, a backward's tangents."""
        if self.phase == "forward":
            return self.inputs
        return self.inputs[len(self.inputs) - len(self.piece.tangents) :]


Stretch = list[OutsideCall]


@dataclass
class Recording:
    """What happened, in order: a stretch outside before each visit, and at the end."""

    events: list[Stretch | Visit] = field(default_factory=lambda: [[]])
    nbytes: dict[int, int] = field(default_factory=dict[int, int])

    @property
    def pieces(self) -> list[Piece]:
        """The pieces in the order of their forwards."""
        found = [e.piece for e in self.events if isinstance(e, Visit)]
        return list({id(p): p for p in found}.values())

    @property
    def visits(self) -> Counter[int]:
        """How often each piece's forward ran, by its id."""
        return Counter(
            id(e.piece)
            for e in self.events
            if isinstance(e, Visit) and e.phase == "forward"
        )


class Recorder(Seeing):
    """Writes down every op that reaches the dispatcher outside the pieces."""

    def __init__(self) -> None:
        super().__init__()
        self.recording = Recording()
        self.inside = 0
        self._alive: list[Any] = []

    def see(self, op: Any, args: Any, kwargs: Any, outputs: Any) -> None:
        if self.inside:
            return
        reads = self.keys((args, kwargs))
        made = self.keys(outputs, op, tensors_in((args, kwargs)))
        writes = tuple(k for k in made if k not in reads)
        stretch = self.recording.events[-1]
        if writes and isinstance(stretch, list):
            stretch.append(OutsideCall(reads, writes))

    def keys(
        self, tree: Any, maker: Any = None, given: Sequence[torch.Tensor] = ()
    ) -> tuple[int, ...]:
        """The storages of a tree's tensors, which `maker` makes of what it is given.

        Each stays alive, so keys stay apart.
        """
        found = {storage_key(v): v for v in tensors_in(tree)}
        for key, value in found.items():
            if key not in self.recording.nbytes:
                self._alive.append(value)
                self.recording.nbytes[key] = result_bytes(maker, given, value)
        return tuple(found)

    def visit(
        self, piece: Piece, phase: Phase, values: list[Any], run: Callable[..., Any]
    ) -> Any:
        """Let a piece run, and write down that it did."""
        inputs = list(values)  # the piece empties the list
        self.inside += 1
        try:
            outputs = run(values)
        finally:
            self.inside -= 1
        visit = Visit(piece, phase, inputs, list(outputs))
        self.keys((visit.inputs, visit.outputs))
        self.recording.events += [visit, []]
        return outputs


def compose(recording: Recording, *, name: str = "step") -> StepGraph:
    """One step of all pieces and what runs between them.

    With one piece it is that piece's `step_of`, whose turn carries the scratch of
    everything outside.
    """
    pieces = recording.pieces
    if len(pieces) > 1:
        return _Composer(recording, name).compose()
    step = step_of(pieces[0])
    between = recording.events[2]
    assert isinstance(between, list)
    turn = step.ops[step.turn]
    tangents = sum(step.sizes[s] for s in turn.writes)
    peak = _stretch_peak(between, set(), recording, step.alignment_bytes)
    turn = replace(turn, scratch_bytes=max(0, peak - tangents))
    ops = (*step.ops[: turn.id], turn, *step.ops[turn.id + 1 :])
    return replace(step, ops=ops, name=name)


def _stretch_peak(
    stretch: Stretch, wanted_later: set[int], recording: Recording, unit: int
) -> int:
    """Most bytes that a stretch outside holds at once of what it makes.

    A storage is taken to live until the op after its last use has run: the formulas of
    autograd are C++ expressions, whose temporaries die when the whole expression ends.
    """
    last = {k: place for place, c in enumerate(stretch) for k in (*c.reads, *c.writes)}
    made: dict[int, int] = {}
    peak = 0
    for place, call in enumerate(stretch):
        for key in call.writes:
            made[key] = _rounded(recording.nbytes[key], unit)
        peak = max(peak, sum(made.values()))
        # Single numbers stay: the loss itself is in the caller's hands.
        made = {
            k: n
            for k, n in made.items()
            if last[k] >= place or n <= unit or k in wanted_later
        }
    return peak


def _rounded(nbytes: int, unit: int) -> int:
    return -(-nbytes // unit) * unit


def _key(value: Any) -> int | None:
    return storage_key(value) if isinstance(value, torch.Tensor) else None


class _Composer:
    """Numbers the storages of several pieces in one list and joins their ops."""

    def __init__(self, recording: Recording, name: str) -> None:
        self.recording, self.name = recording, name
        self.pieces = recording.pieces
        self.parts = [step_of(p) for p in self.pieces]
        self.unit = max(p.alignment_bytes for p in self.parts)
        self.storages: list[Storage] = []
        self.by_key: dict[int, int] = {}
        self.maps: list[dict[int, int]] = [{} for _ in self.pieces]
        self.ops: list[Op] = []
        self.regions: list[Region] = []
        self.ranges = [[p.fingerprint, 0, 0, 0, 0] for p in self.parts]

    def compose(self) -> StepGraph:
        events = self.recording.events
        later = self.read_later()
        for place, event in enumerate(events):
            if isinstance(event, Visit):
                self.visit(event)
            elif place == 0:
                self.before(event)
            elif place < len(events) - 1:
                following = events[place + 1]
                assert isinstance(following, Visit)
                self.outside(event, following, later[place])
        outputs = [self.maps[i][s] for i, p in enumerate(self.parts) for s in p.outputs]
        # What one piece hands to another is held by neither to the end. What a
        # backward takes from its own forward may well be in the caller's hands.
        handed = [v for e in events if isinstance(e, Visit) for v in e.handed]
        handed_on = {self.by_key[k] for v in handed if (k := _key(v)) in self.by_key}
        held = tuple(
            s
            for s in dict.fromkeys(outputs)
            if not self.storages[s].resident and s not in handed_on
        )
        extra = _together([part.facts["eager_extra_bytes"] for part in self.parts])
        step = StepGraph(
            ops=tuple(self.ops),
            storages=tuple(self.storages),
            outputs=held,
            regions=tuple(self.regions),
            alignment_bytes=self.unit,
            name=self.name,
            device=self.parts[0].device,
            notes=(
                f"the step is {len(self.pieces)} graphs: graph breaks between them",
            ),
            facts={"pieces": self.ranges, "eager_extra_bytes": extra},
        )
        check_graph(step)
        return step

    def read_later(self) -> list[set[int]]:
        """For each place, the storages that any later event reads."""
        found: list[set[int]] = []
        wanted: set[int] = set()
        for event in reversed(self.recording.events):
            found.append(set(wanted))
            if isinstance(event, Visit):
                wanted.update(map(storage_key, tensors_in(event.inputs)))
            else:
                wanted.update(k for call in event for k in call.reads)
        return found[::-1]

    def storage(self, key: int | None, template: Storage) -> int:
        """The number of the storage with this key, which is new if nobody has it."""
        if key is not None and key in self.by_key:
            return self.by_key[key]
        number = len(self.storages)
        self.storages.append(replace(template, id=number))
        if key is not None:
            self.by_key[key] = number
        return number

    def placed(self, index: int, s: int, key: int | None = None) -> int:
        """The number here of a piece's own storage."""
        mapping = self.maps[index]
        if s not in mapping:
            mapping[s] = self.storage(key, self.parts[index].storages[s])
        return mapping[s]

    def before(self, stretch: Stretch) -> None:
        """What was made before the first piece is an input of the step."""
        for key in (k for call in stretch for k in call.writes):
            nbytes = self.recording.nbytes[key]
            self.storage(key, Storage(0, "input", nbytes, "input", resident=True))

    def outside(self, stretch: Stretch, following: Visit, later: set[int]) -> None:
        index = self.pieces.index(following.piece)
        made = dict.fromkeys(k for call in stretch for k in call.writes)
        read = dict.fromkeys(k for call in stretch for k in call.reads)
        kind = "activation" if following.phase == "forward" else "temporary"
        writes = [
            self.storage(
                key,
                Storage(0, f"outside {key % 9973}", self.recording.nbytes[key], kind),
            )
            for key in made
            if key in later
        ]
        reads = [self.by_key[k] for k in read if k in self.by_key and k not in made]
        if following.phase == "backward":
            part = self.parts[index]
            writes += self.tangents(index, following)
            reads += [self.placed(index, s) for s in part.ops[part.turn].reads]
        writes = list(dict.fromkeys(writes))
        peak = _stretch_peak(stretch, later, self.recording, self.unit)
        remains = sum(_rounded(self.storages[s].nbytes, self.unit) for s in writes)
        self.ops.append(
            Op(
                id=len(self.ops),
                name="outside",
                target="lowtide::outside",
                reads=tuple(dict.fromkeys(reads)),
                writes=tuple(writes),
                scratch_bytes=max(0, peak - remains),
                phase=following.phase,
                piece=-1,
                once="runs outside",
                opens=len(self.regions),
                signature="outside",
            )
        )

    def tangents(self, index: int, visit: Visit) -> list[int]:
        """Storages of the gradients that enter a backward, those nobody else made."""
        piece = self.pieces[index]
        fresh: list[int] = []
        for place, node in enumerate(piece.tangents):
            key = _key(visit.handed[place])
            known = key in self.by_key
            if place not in piece.absent_tangents:
                found = [self.placed(index, s, key) for s in piece.storage_of[node]]
                fresh += found if not known else []
        return fresh

    def visit(self, visit: Visit) -> None:
        index = self.pieces.index(visit.piece)
        piece = self.pieces[index]
        self.regions.append(Region(index, visit.phase))
        if visit.phase == "forward":
            crossing = [*zip(piece.primals, visit.inputs, strict=False)]
            crossing += zip(piece.forward_outputs, visit.outputs, strict=False)
        else:
            crossing = [*zip(piece.gradients, visit.outputs, strict=False)]
        for node, value in crossing:
            for s in piece.storage_of.get(node, ()):
                if isinstance(value, torch.Tensor):
                    self.placed(index, s, storage_key(value))
        start = len(self.ops)
        for op in self.parts[index].ops:
            if op.phase == visit.phase and op.opens < 0:
                place = partial(self.placed, index)
                self.ops.append(op.over_storages(place, id=len(self.ops), piece=index))
        slot = 1 if visit.phase == "forward" else 3
        self.ranges[index][slot : slot + 2] = [start, len(self.ops)]


def _together(extras: Sequence[int]) -> int:
    """What eager needs beside several graphs: the most for one, less all savings."""
    return max(0, *extras) + sum(e for e in extras if e < 0)

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
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode

from lowtide.engine.capture.piece import Piece
from lowtide.engine.capture.step import ALIGNMENT_BYTES, step_of
from lowtide.step.graph import Op, Phase, Region, StepGraph, Storage, check_graph


@dataclass
class OutsideCall:
    """One op that ran outside every piece."""

    target: Any
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    outputs: Any
    reads: tuple[int, ...]
    writes: tuple[int, ...]


@dataclass
class Visit:
    """A piece's forward or backward, with the storages that cross its border."""

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


@dataclass
class Recording:
    """What happened, in order: stretches outside, and visits to pieces."""

    events: list[OutsideCall | Visit] = field(default_factory=list[Any])
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

    @property
    def most_visits(self) -> int:
        """How often the piece that ran most often ran."""
        return max(self.visits.values(), default=0)


class Recorder(TorchDispatchMode):
    """Writes down every op that reaches the dispatcher outside the pieces."""

    def __init__(self) -> None:
        super().__init__()
        self.recording = Recording()
        self.inside = 0
        self._alive: list[Any] = []

    @classmethod
    def ignore_compile_internals(cls) -> bool:
        """Dynamo may compile under this mode; what it does inside is not the step's."""
        return True

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        kwargs = kwargs or {}
        outputs = func(*args, **kwargs)
        if not self.inside:
            self._note(func, args, kwargs, outputs)
        return outputs

    def _note(self, func: Any, args: Any, kwargs: Any, outputs: Any) -> None:
        reads = self.keys((args, kwargs))
        made = self.keys(outputs)
        writes = tuple(k for k in made if k not in reads)
        if not writes:
            return
        self.recording.events.append(
            OutsideCall(func, args, kwargs, outputs, reads, writes)
        )

    def keys(self, tree: Any) -> tuple[int, ...]:
        """The storages of a tree's tensors; each stays alive, so ids stay apart."""
        found: dict[int, None] = {}
        for value in pytree.tree_leaves(tree):
            if isinstance(value, torch.Tensor):
                found[self.key(value)] = None
        return tuple(found)

    def key(self, value: torch.Tensor) -> int:
        """The storage of one tensor."""
        storage = value.untyped_storage()
        key = int(storage._cdata)
        if key not in self.recording.nbytes:
            self._alive.append(value)
            self.recording.nbytes[key] = int(storage.nbytes())
        return key

    def visit(
        self, piece: Piece, phase: Phase, inputs: Sequence[Any], outputs: Sequence[Any]
    ) -> None:
        """Write down that a piece ran."""
        self.keys((list(inputs), list(outputs)))
        self._alive.extend((list(inputs), list(outputs)))
        self.recording.events.append(Visit(piece, phase, list(inputs), list(outputs)))

    @contextmanager
    def within(self) -> Iterator[None]:
        """What runs in this block belongs to a piece."""
        self.inside += 1
        try:
            yield
        finally:
            self.inside -= 1


CostOf = Callable[[OutsideCall], float]


def compose(
    recording: Recording, *, name: str = "step", seconds_of: CostOf | None = None
) -> StepGraph:
    """One step of all pieces and what runs between them.

    With one piece it is that piece's `step_of`, whose turn carries the time and the
    scratch of everything outside.
    """
    pieces = recording.pieces
    stretches = _stretches(recording)
    if len(pieces) == 1:
        return _one_piece(pieces[0], stretches, recording, name, seconds_of)
    return _Composer(recording, name, seconds_of).compose(stretches)


Stretch = list[OutsideCall]


def _stretches(recording: Recording) -> list[Stretch | Visit]:
    """Events with runs of outside calls put together, one before each visit."""
    found: list[Stretch | Visit] = []
    current: Stretch = []
    for event in recording.events:
        if isinstance(event, Visit):
            found += [current, event]
            current = []
        else:
            current.append(event)
    found.append(current)
    return found


def _one_piece(
    piece: Piece,
    stretches: list[Stretch | Visit],
    recording: Recording,
    name: str,
    seconds_of: CostOf | None,
) -> StepGraph:
    step = step_of(piece, name=name)
    between = stretches[2]
    assert isinstance(between, list)
    unit = step.alignment_bytes
    tangents = sum(step.sizes[s] for s in step.ops[step.turn].writes)
    peak = _stretch_peak(between, set(), recording, unit)
    turn = replace(
        step.ops[step.turn],
        scratch_bytes=max(0, peak - tangents),
        seconds=_stretch_seconds(between, seconds_of),
    )
    ops = (*step.ops[: turn.id], turn, *step.ops[turn.id + 1 :])
    return replace(step, ops=ops)


def _stretch_peak(
    stretch: Stretch, wanted_later: set[int], recording: Recording, unit: int
) -> int:
    """Most bytes that a stretch outside holds at once of what it makes.

    A storage is taken to live until the op after its last use has run: the formulas of
    autograd are C++ expressions, whose temporaries die when the whole expression ends.
    """
    last: dict[int, int] = {}
    for place, call in enumerate(stretch):
        for key in (*call.reads, *call.writes):
            last[key] = place
    made: dict[int, int] = {}
    peak = 0
    for place, call in enumerate(stretch):
        for key in call.writes:
            made[key] = _rounded(recording.nbytes[key], unit)
        peak = max(peak, sum(made.values()))
        # Single numbers stay: the loss itself is in the caller's hands.
        gone = [k for k in made if last[k] < place and made[k] > unit]
        for key in gone:
            if key not in wanted_later:
                del made[key]
    return peak


def _stretch_seconds(stretch: Stretch, seconds_of: CostOf | None) -> float:
    return sum(map(seconds_of, stretch)) if seconds_of else 0.0


def _rounded(nbytes: int, unit: int) -> int:
    return -(-nbytes // unit) * unit


class _Composer:
    """Numbers the storages of several pieces in one list and joins their ops."""

    def __init__(
        self, recording: Recording, name: str, seconds_of: CostOf | None
    ) -> None:
        self.recording, self.name, self.seconds_of = recording, name, seconds_of
        self.pieces = recording.pieces
        self.parts = [step_of(p) for p in self.pieces]
        self.unit = max(p.alignment_bytes for p in self.parts)
        self.storages: list[Storage] = []
        self.by_key: dict[int, int] = {}
        self.maps: list[dict[int, int]] = [{} for _ in self.pieces]
        self.ops: list[Op] = []
        self.regions: list[Region] = []
        self.ranges = [[p.fingerprint, 0, 0, 0, 0] for p in self.parts]

    def compose(self, stretches: list[Stretch | Visit]) -> StepGraph:
        later = self.read_later(stretches)
        for place, event in enumerate(stretches):
            if isinstance(event, Visit):
                self.visit(event)
            elif place == 0:
                self.before(event)
            elif place < len(stretches) - 1:
                following = stretches[place + 1]
                assert isinstance(following, Visit)
                self.outside(event, following, later[place])
        outputs = [self.maps[i][s] for i, p in enumerate(self.parts) for s in p.outputs]
        # What one piece hands to another is held by neither to the end. What a
        # backward takes from its own forward may well be in the caller's hands.
        handed_on = {
            self.by_key[k]
            for event in stretches
            if isinstance(event, Visit)
            for v in event.handed
            if (k := self.key_of(v)) in self.by_key
        }
        held = tuple(
            s
            for s in dict.fromkeys(outputs)
            if not self.storages[s].resident and s not in handed_on
        )
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
            facts={
                "pieces": self.ranges,
                "eager_extra_bytes": max(
                    part.facts["eager_extra_bytes"] for part in self.parts
                ),
            },
        )
        check_graph(step)
        return step

    def key_of(self, value: Any) -> int | None:
        if not isinstance(value, torch.Tensor):
            return None
        return int(value.untyped_storage()._cdata)

    def read_later(self, stretches: list[Stretch | Visit]) -> list[set[int]]:
        """For each place, the storages that any later event reads."""
        found: list[set[int]] = []
        wanted: set[int] = set()
        for event in reversed(stretches):
            found.append(set(wanted))
            if isinstance(event, Visit):
                wanted.update(k for v in event.inputs if (k := self.key_of(v)))
            else:
                wanted.update(k for call in event for k in call.reads)
        return found[::-1]

    def storage(self, key: int | None, template: Storage) -> int:
        if key is not None and key in self.by_key:
            return self.by_key[key]
        number = len(self.storages)
        self.storages.append(replace(template, id=number))
        if key is not None:
            self.by_key[key] = number
        return number

    def before(self, stretch: Stretch) -> None:
        """What was made before the first piece is an input of the step."""
        for call in stretch:
            for key in call.writes:
                nbytes = self.recording.nbytes[key]
                self.storage(
                    key, Storage(0, "input", nbytes, kind="input", resident=True)
                )

    def outside(self, stretch: Stretch, following: Visit, later: set[int]) -> None:
        index = next(i for i, p in enumerate(self.pieces) if p is following.piece)
        made = dict.fromkeys(k for call in stretch for k in call.writes)
        read = dict.fromkeys(k for call in stretch for k in call.reads)
        phase = following.phase
        writes: dict[int, None] = {}
        for key in made:
            if key in later:
                nbytes = self.recording.nbytes[key]
                kind = "activation" if phase == "forward" else "temporary"
                template = Storage(0, f"outside {key % 9973}", nbytes, kind=kind)
                writes[self.storage(key, template)] = None
        if phase == "backward":
            writes.update(dict.fromkeys(self.tangents(index, following)))
        reads = [self.by_key[k] for k in read if k in self.by_key and k not in made]
        if phase == "backward":
            reads += [
                self.maps[index][s]
                for s in self.parts[index].ops[self.parts[index].turn].reads
            ]
        peak = _stretch_peak(stretch, later, self.recording, self.unit)
        remains = sum(_rounded(self.storages[s].nbytes, self.unit) for s in writes)
        self.ops.append(
            Op(
                id=len(self.ops),
                name="outside",
                target="lowtide::outside",
                reads=tuple(dict.fromkeys(reads)),
                writes=tuple(writes),
                seconds=_stretch_seconds(stretch, self.seconds_of),
                scratch_bytes=max(0, peak - remains),
                phase=phase,
                piece=-1,
                once="runs outside",
                opens=len(self.regions),
                signature="outside",
            )
        )

    def tangents(self, index: int, visit: Visit) -> list[int]:
        """Storages of the gradients that enter a backward, those nobody else made."""
        piece, mapping = self.pieces[index], self.maps[index]
        first = len(visit.inputs) - len(piece.tangents)
        fresh: list[int] = []
        for place, node in enumerate(piece.tangents):
            if place in piece.absent_tangents:
                continue
            key = self.key_of(visit.inputs[first + place])
            known = key in self.by_key
            for s in piece.storage_of[node]:
                template = self.parts[index].storages[s]
                mapping[s] = self.storage(key, template)
                if not known:
                    fresh.append(mapping[s])
        return fresh

    def visit(self, visit: Visit) -> None:
        index = next(i for i, p in enumerate(self.pieces) if p is visit.piece)
        part, piece, mapping = self.parts[index], self.pieces[index], self.maps[index]
        self.regions.append(Region(index, visit.phase))
        if visit.phase == "forward":
            for node, value in zip(piece.primals, visit.inputs, strict=False):
                for s in piece.storage_of[node]:
                    if s not in mapping:
                        known = self.by_key.get(self.key_of(value) or -1)
                        template = part.storages[s]
                        mapping[s] = (
                            known
                            if known is not None
                            else self.storage(self.key_of(value), template)
                        )
            outputs = zip(piece.forward_outputs, visit.outputs, strict=False)
        else:
            outputs = zip(piece.gradients, visit.outputs, strict=False)
        for node, value in outputs:
            key = self.key_of(value)
            for s in piece.storage_of.get(node, ()):
                if key is not None and s not in mapping:
                    mapping[s] = self.storage(key, part.storages[s])
        start = len(self.ops)
        for op in part.ops:
            if op.phase == visit.phase and op.opens < 0:
                self.ops.append(self.moved(op, index))
        slot = 1 if visit.phase == "forward" else 3
        self.ranges[index][slot : slot + 2] = [start, len(self.ops)]

    def moved(self, op: Op, index: int) -> Op:
        part, mapping = self.parts[index], self.maps[index]
        for s in (*op.reads, *op.writes):
            if s not in mapping:
                mapping[s] = self.storage(None, part.storages[s])
        return replace(
            op,
            id=len(self.ops),
            reads=tuple(mapping[s] for s in op.reads),
            writes=tuple(mapping[s] for s in op.writes),
            piece=index,
        )


__all__ = ["ALIGNMENT_BYTES", "Recorder", "Recording", "compose"]

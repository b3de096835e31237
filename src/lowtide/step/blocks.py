"""A step of many equal blocks, from a step of a few.

The layers of a large transformer are one graph over and over. It is captured with a few
of them; `with_blocks` repeats one in the middle as often as the model does, and
`few_blocks` takes the repetitions out again, so that what is decided for one block
serves all. Where the ops of each block stand is kept in `facts["blocks"]`: begin and
end of its forward and of its backward.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace

from lowtide.errors import StepFormatError
from lowtide.step.graph import Op, StepGraph, check_graph

# The first and last of a few blocks may differ from those between, and what ends where
# they begin; two are compared, of which the first is repeated.
FEW = 5
_ONE, _TWO = 2, 3


@dataclass(frozen=True, slots=True)
class Block:
    """Where the ops of one block are."""

    forward: range
    backward: range

    @property
    def ops(self) -> tuple[int, ...]:
        return (*self.forward, *self.backward)


def blocks_of(step: StepGraph) -> list[Block]:
    """The blocks that a step says it has."""
    rows = step.facts.get("blocks", ())
    return [Block(range(a, b), range(c, d)) for a, b, c, d in rows]


def find_blocks(step: StepGraph, prefix: str) -> list[Block]:
    """The blocks of a step whose modules are called `prefix.0`, `prefix.1`, ...

    A block's forward begins with its first op and ends where the next one's begins; its
    backward ends where that of the block before it begins.
    """
    pattern = re.compile(rf"(?:^|\.){re.escape(prefix)}\.(\d+)(?:\.|$)")
    first: dict[tuple[str, int], int] = {}
    last: dict[tuple[str, int], int] = {}
    for op in step.ops:
        found = pattern.search(op.module)
        if found and op.opens < 0 and op.phase != "optimizer":
            key = op.phase, int(found[1])
            first.setdefault(key, op.id)
            last[key] = op.id
    count = 1 + max((number for _, number in first), default=-1)
    blocks: list[Block] = []
    for k in range(count):
        ahead, behind = ("forward", k), ("backward", k)
        if ahead not in first or behind not in first:
            raise StepFormatError(f"block {k} of {prefix} has no ops", field="blocks")
        ends = first.get(("forward", k + 1), last[ahead] + 1)
        ends_back = first.get(("backward", k - 1), last[behind] + 1)
        blocks.append(Block(range(first[ahead], ends), range(first[behind], ends_back)))
    return blocks


def with_blocks(step: StepGraph, prefix: str, count: int) -> StepGraph:
    """The step with so many blocks, of which it has a few.

    Raises:
        StepFormatError: Two blocks in its middle are not equal.
    """
    blocks = find_blocks(step, prefix)
    if count <= len(blocks):
        return with_told_blocks(step, blocks)
    return _Repeater(step, blocks).repeated(count - len(blocks))


def with_told_blocks(step: StepGraph, blocks: Sequence[Block]) -> StepGraph:
    """The step that says where its blocks are."""
    rows = [
        [b.forward.start, b.forward.stop, b.backward.start, b.backward.stop]
        for b in blocks
    ]
    updates = (op.id for op in step.ops if op.phase == "optimizer")
    end = next(updates, len(step.ops))
    own = [step.fingerprint, 0, step.turn, step.turn + 1, end]
    return replace(step, facts={**step.facts, "pieces": [own], "blocks": rows})


class _Repeater:
    """Repeats a block in the middle of a step, `one`, behind itself.

    What stands in one place of it and of the next, `two`, says what a copy has there:
    the same if both have the same; something of its own if it belongs to each; the copy
    before, or behind, if it is the neighbour's of each.
    """

    def __init__(self, step: StepGraph, blocks: list[Block]) -> None:
        if len(blocks) < FEW:
            raise StepFormatError(
                f"{len(blocks)} blocks are too few to tell which are equal",
                field="blocks",
            )
        self.step, self.blocks = step, blocks
        one, two = blocks[_ONE], blocks[_TWO]
        self.one = [step.ops[i] for i in one.ops]
        self.two = [step.ops[i] for i in two.ops]
        self.owner = self.owners()
        if [_form(op) for op in self.one] != [_form(op) for op in self.two]:
            odd = next(
                (
                    a.name
                    for a, b in zip(self.one, self.two, strict=False)
                    if _form(a) != _form(b)
                ),
                "their number of ops",
            )
            raise StepFormatError(f"two blocks differ: {odd}", field="blocks")
        # For a storage of the one that of the other.
        self.next: dict[int, int] = {}
        for a, b in zip(self.one, self.two, strict=True):
            for x, y in zip(_slots(a), _slots(b), strict=True):
                if self.owner.get(x) == _ONE and self.owner.get(y) == _TWO:
                    self.next[x] = y
        self.back = {y: x for x, y in self.next.items()}

    def owners(self) -> dict[int, int]:
        """The block that makes a storage, or whose forward alone reads it."""
        step, owner = self.step, dict[int, int]()
        for k, block in enumerate(self.blocks):
            for i in block.ops:
                owner |= dict.fromkeys(step.ops[i].writes, k)
        return owner | resident_owners(step, self.blocks)

    def repeated(self, more: int) -> StepGraph:
        step = self.step
        storages = list(step.storages)
        # `copies[c]` has what copy c has in its place; the first is the block itself.
        copies: list[dict[int, int]] = [{x: x for x in self.next}]
        for c in range(1, more + 1):
            fresh: dict[int, int] = {}
            for x in self.next:
                fresh[x] = len(storages)
                name = f"{storages[x].name}~{c}"
                storages.append(replace(storages[x], id=fresh[x], name=name))
            copies.append(fresh)
        copies.append({x: y for x, y in self.next.items()})
        one, two = self.blocks[_ONE], self.blocks[_TWO]
        turned = two.forward.start, one.backward.start
        ops: list[Op] = []
        starts: dict[int, int] = {}
        ranges: dict[int, list[int]] = {c: [] for c in range(1, more + 1)}

        last = copies[more]

        def add(op: Op) -> None:
            ops.append(replace(op, id=len(ops)))

        for op in step.ops:
            if op.id in turned:
                number = range(1, more + 1)
                for c in number if op.id == turned[0] else reversed(number):
                    half = one.forward if op.id == turned[0] else one.backward
                    ranges[c] += [len(ops), len(ops) + len(half)]
                    for i in half:
                        add(self.moved(step.ops[i], copies, c))
            starts[op.id] = len(ops)
            if op.id in one.forward or op.id in one.backward:
                add(self.moved(op, copies, 0))
            elif op.id in two.forward or op.id in two.backward:
                # The block before it is now the last copy.
                add(op.over_storages(lambda x: last.get(x, x)))
            else:
                add(op)
        outputs = list(step.outputs)
        for fresh in copies[1:-1]:
            outputs += [fresh[x] for x in step.outputs if x in fresh]
        found = [_moved_block(b, starts) for b in self.blocks[:_TWO]]
        found += [Block(range(*row[:2]), range(*row[2:])) for row in ranges.values()]
        found += [_moved_block(b, starts) for b in self.blocks[_TWO:]]
        share = len(found) / len(self.blocks)
        extra = int(step.facts.get("eager_extra_bytes", 0) * share)
        made = replace(
            step,
            ops=tuple(ops),
            storages=tuple(storages),
            outputs=tuple(outputs),
            facts={**step.facts, "eager_extra_bytes": extra},
        )
        check_graph(made)
        return with_told_blocks(made, found)

    def moved(self, op: Op, copies: list[dict[int, int]], c: int) -> Op:
        """An op of the block as copy c has it."""
        one = self.blocks[_ONE]
        place = op.id - one.forward.start
        if op.id not in one.forward:
            place = op.id - one.backward.start + len(one.forward)
        twin = self.two[place]
        at = dict(zip(_slots(op), _slots(twin), strict=True))

        def here(x: int) -> int:
            y = at[x]
            if x in copies[c]:
                return copies[c][x]
            if y in copies[0] and c > 0:  # of the block before
                return copies[c - 1][y]
            if x in self.back:  # of the block behind
                return copies[c + 1][self.back[x]]
            if x != y and c:
                name = self.step.storages[x].name
                what = f"{name}, which {op.name} uses, has no counterpart"
                raise StepFormatError(what, field="blocks")
            return x

        module = op.module
        if c:
            module = re.sub(rf"\.{_ONE}(?=\.|$)", f".{_ONE}+{c}", module, count=1)
        name = op.name if c == 0 else f"{op.name}~{c}"
        return op.over_storages(here, module=module, name=name)


def resident_owners(step: StepGraph, blocks: Sequence[Block]) -> dict[int, int]:
    """The block whose forward alone reads a resident storage.

    What begins the backward of a block may not say so, and count to the one behind.
    """
    block_of = {i: k for k, b in enumerate(blocks) for i in b.forward}
    readers: dict[int, set[int]] = {}
    for op in step.ops[: step.turn]:
        for s in op.reads:
            readers.setdefault(s, set()).add(block_of.get(op.id, -1))
    return {
        s: min(found)
        for s, found in readers.items()
        if step.storages[s].resident and len(found) == 1 and -1 not in found
    }


def _slots(op: Op) -> tuple[int, ...]:
    return (*op.reads, *op.writes)


def _form(op: Op) -> tuple[object, ...]:
    """What is equal in equal blocks."""
    return op.signature or op.target, len(op.reads), len(op.writes), op.once, op.standby


def _moved_block(block: Block, starts: dict[int, int]) -> Block:
    def moved(ops: range) -> range:
        return range(starts[ops.start], starts[ops.start] + len(ops))

    return Block(moved(block.forward), moved(block.backward))


def few_blocks(step: StepGraph) -> tuple[StepGraph, dict[int, int]]:
    """The step with five of its blocks, and the storages of it by those of the step.

    The first three and the last two are left.
    """
    blocks = blocks_of(step)
    if len(blocks) <= FEW:
        return step, {s.id: s.id for s in step.storages}
    gone = {i for b in blocks[_TWO:-2] for i in b.ops}
    # What the blocks at the cut read of those that are gone, they read of each other.
    ahead = _twins(step, blocks[-3], blocks[_ONE])
    behind = _twins(step, blocks[_TWO], blocks[-2])
    readers = dict.fromkeys(blocks[-2].ops, ahead)
    readers |= dict.fromkeys(blocks[_ONE].ops, behind)
    made = {s for i in gone for s in step.ops[i].writes}
    wanted = [op for op in step.ops if op.id not in gone]
    used = {readers.get(op.id, {}).get(s, s) for op in wanted for s in _slots(op)}
    # Residents that nothing reads stay, too.
    read = {s for op in step.ops for s in op.reads}
    used.update(s for s in step.resident if s not in read)
    kept = [s for s in step.storages if s.id in used and s.id not in made]
    number = {s.id: n for n, s in enumerate(kept)}
    starts: dict[int, int] = {}
    ops: list[Op] = []
    for op in wanted:
        twin = readers.get(op.id, {})
        starts[op.id] = len(ops)

        def here(x: int, twin: dict[int, int] = twin) -> int:
            return number[twin.get(x, x)]

        ops.append(op.over_storages(here, id=len(ops)))
    small = replace(
        step,
        ops=tuple(ops),
        storages=tuple(replace(s, id=number[s.id]) for s in kept),
        outputs=tuple(number[s] for s in step.outputs if s in number),
    )
    check_graph(small)
    few = [_moved_block(b, starts) for b in (*blocks[:_TWO], *blocks[-2:])]
    return with_told_blocks(small, few), number


def _twins(step: StepGraph, of: Block, to: Block) -> dict[int, int]:
    """For what one block makes, what another makes in its place."""
    found: dict[int, int] = {}
    for i, j in zip(of.ops, to.ops, strict=True):
        found |= zip(step.ops[i].writes, step.ops[j].writes, strict=True)
    return found

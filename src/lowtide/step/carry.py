"""An order of ops, carried over to a step that is nearly the same.

If the gradient of an output arrives in another layout, its backward has a copy more or
less, and the ops behind it are numbered and named otherwise. What was planned is good
for it all the same.
"""

from __future__ import annotations

from collections.abc import Collection, Hashable, Sequence
from difflib import SequenceMatcher

from lowtide.step.graph import StepGraph
from lowtide.step.remake import missing_cone


def carried_over(
    planned: StepGraph, backward: Sequence[int], step: StepGraph, kept: Collection[int]
) -> list[int]:
    """The backward of `step` in the order that these ops of `planned` have.

    Both have the same forward, which keeps the storages `kept`. An op that only `step`
    has runs as soon as it can, and what is missing is made again. It is for the
    simulator to say whether the order is valid: the steps may differ in more than that.
    """
    numbers: dict[int, int] = {}
    alike = SequenceMatcher(None, _labels(planned), _labels(step), autojunk=False)
    for block in alike.get_matching_blocks():
        for place in range(1, block.size + 1):
            here = step.turn + block.b + place
            numbers[planned.turn + block.a + place] = here
    matched = {*numbers.values()}
    new = [n for n in step.baseline if n > step.turn and n not in matched]
    sequence: list[int] = []
    alive = {*step.resident, *step.ops[step.turn].writes, *kept}

    def run(number: int) -> None:
        sequence.append(number)
        alive.update(step.ops[number].writes)

    def run_new() -> None:
        for number in [n for n in new if alive.issuperset(step.ops[n].reads)]:
            new.remove(number)
            run(number)

    run_new()
    for there in backward:
        # What stood before the turn has the same number in both.
        number = there if there < planned.turn else numbers.get(there)
        if number is None:
            continue
        for again in missing_cone(step, step.ops[number].reads, alive):
            run(again)
        run(number)
        run_new()
    return [*sequence, *new]


def _labels(step: StepGraph) -> list[Hashable]:
    """What each op behind the turn is, in words that do not depend on its number."""
    early = {s for op in step.ops[: step.turn] for s in op.writes}
    return [
        (
            op.target,
            tuple(step.storages[s].name for s in op.reads if s in early),
            tuple(step.sizes[s] for s in op.writes),
        )
        for op in step.ops[step.turn + 1 :]
    ]

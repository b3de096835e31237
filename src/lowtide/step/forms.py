"""Other forms of some ops, and the step in which they take these ops' places.

A form is a standby op that makes what ops of the baseline make, without the storages
that these hand to each other: the head of a language model with its loss, some rows at
a time. A schedule may run it like any standby op. What it stands in for then need not
run at all, which no eviction finds; so a planner is given the step in which chosen
forms are part of the baseline, and its sequence is one for the original step as well.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace

from lowtide.step.graph import Op, StepGraph
from lowtide.step.simulate import home_regions


@dataclass(frozen=True)
class Formed:
    """A step with forms in its baseline; `numbers` are its ops' ids in the original."""

    step: StepGraph
    numbers: tuple[int, ...]

    def original(self, sequence: Sequence[int]) -> list[int]:
        """A sequence of ops of this step as one of the original."""
        return [self.numbers[i] for i in sequence]


def forms(step: StepGraph) -> tuple[int, ...]:
    """The standby ops that can run in place of ops of the baseline."""
    return tuple(
        op.id
        for op in step.ops
        if op.standby and _may_replace(step, op) and replaced(step, {op.id})
    )


def _may_replace(step: StepGraph, form: Op) -> bool:
    """Whether it depends on none of those that it would replace; a quick look."""
    makers = [step.ops[step.producers[s][0]] for s in form.writes]
    read = set(form.reads)
    return bool(makers) and not any(m.once or read & {*m.writes} for m in makers)


def groups(step: StepGraph) -> tuple[frozenset[int], ...]:
    """The forms, each with those that make or read what only forms make for it."""
    import networkx  # here, because it loads slowly and few steps have forms

    own = forms(step)
    together: networkx.Graph[int] = networkx.Graph()
    together.add_nodes_from(own)
    for i in own:
        for s in step.ops[i].reads:
            makers = step.producers[s]
            if makers and makers[0] in together:
                together.add_edge(i, makers[0])
    return tuple(map(frozenset, networkx.connected_components(together)))


def replaced(step: StepGraph, chosen: Collection[int]) -> frozenset[int]:
    """The ops of the baseline that nobody needs if these forms run."""
    taken = {s for i in chosen for s in step.ops[i].writes}
    wanted = set(step.outputs)
    for i in chosen:
        wanted.update(step.ops[i].reads)
    gone: set[int] = set()
    for number in reversed(step.baseline):
        op = step.ops[number]
        made = [s for s in op.writes if s in wanted and s not in taken]
        if made or op.once or not op.writes:
            wanted.update(op.reads)
        else:
            gone.add(number)
    return frozenset(gone)


def in_form(step: StepGraph, chosen: Collection[int]) -> Formed:
    """The step with these forms in the baseline, and without all others.

    A form runs where the first op runs that it replaces.
    """
    others = frozenset(forms(step)).difference(chosen)
    gone = replaced(step, chosen) if chosen else frozenset[int]()
    starts = _starts(step, chosen)
    order: list[int] = []
    for op in step.ops:
        order += starts.get(op.id, ())
        if op.id not in gone and op.id not in others and op.id not in chosen:
            order.append(op.id)
    kept = [i for i in order if i in chosen or not step.ops[i].standby]
    made = {s for i in kept for s in step.ops[i].writes}.union(step.resident)
    order = [
        i
        for i in order
        if i in chosen or made.issuperset((*step.ops[i].reads, *step.ops[i].writes))
    ]
    ops = (
        replace(
            step.ops[old], id=new, standby=step.ops[old].standby and old not in chosen
        )
        for new, old in enumerate(order)
    )
    facts = {**step.facts, **_facts_of_blocks(step, order)}
    return Formed(replace(step, ops=tuple(ops), facts=facts), tuple(order))


def _facts_of_blocks(step: StepGraph, order: Sequence[int]) -> dict[str, object]:
    """Where the equal blocks of a step are once its ops stand in this order."""
    blocks = step.facts.get("blocks")
    if blocks is None:
        return {}
    place = {old: new for new, old in enumerate(order)}

    def moved(start: int, stop: int) -> list[int]:
        left = [place[old] for old in range(start, stop) if old in place]
        return [left[0], left[-1] + 1]

    return {"blocks": [[*moved(*row[:2]), *moved(*row[2:])] for row in blocks]}


def _starts(step: StepGraph, chosen: Collection[int]) -> dict[int, list[int]]:
    """For each op of the baseline, the forms that run right before it."""
    home = home_regions(step)
    opened = {op.opens: op.id for op in step.ops if op.opens >= 0}
    found: dict[int, list[int]] = {}
    for i in sorted(chosen):
        form = step.ops[i]
        rival = min(step.producers[s][0] for s in form.writes)
        ready = max(
            (step.producers[s][0] for s in form.reads if step.producers[s]), default=-1
        )
        first = max(rival, ready + 1, opened.get(home[i], -1) + 1)
        found.setdefault(first, []).append(i)
    return found

"""From a plan to the order in which each captured graph runs its ops."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from lowtide.engine.capture.piece import Piece
from lowtide.engine.capture.step import step_of
from lowtide.errors import PlanMismatchError
from lowtide.step.plan import Plan
from lowtide.step.schedule import with_frees
from lowtide.step.simulate import simulate


class Orders(NamedTuple):
    """Numbers of a piece's ops (as in `step_of`) in the order in which they run."""

    forward: Sequence[int]
    backward: Sequence[int]


def keep_everything(piece: Piece) -> Orders:
    """The order of the unplanned step."""
    step = step_of(piece)
    turn = step.baseline.index(step.turn)
    return Orders(step.baseline[:turn], step.baseline[turn + 1 :])


def orders_of(plan: Plan, piece: Piece, place: int = 0) -> Orders:
    """What a plan says about one piece.

    Of several pieces with the same fingerprint, `place` says which one it is. An op of
    the backward may run before the turn if nothing that it reads comes from outside; it
    then belongs to the forward.

    Raises:
        PlanMismatchError: the plan was made for other graphs.
        InvalidScheduleError: the plan would run this graph wrongly. Plans are files, so
            nothing is believed that the simulator does not accept.
    """
    step = step_of(piece)
    found = [p for p in plan.pieces if p.fingerprint == step.fingerprint]
    if not found:
        known = ", ".join(p.fingerprint for p in plan.pieces) or plan.fingerprint
        raise PlanMismatchError(
            known,
            step.fingerprint,
            f"the graph that arrived has {len(piece.ops)} ops",
        )
    wanted = found[place % len(found)]
    first_backward = len(wanted.forward) + 1
    before: list[int] = []
    after: list[int] = []
    turned = False
    for number in plan.ops:
        turned = turned or number == wanted.backward.start - 1
        order = after if turned else before
        if number in wanted.forward:
            order.append(number - wanted.forward.start)
        elif number in wanted.backward:
            order.append(number - wanted.backward.start + first_backward)
    simulate(step, with_frees(step, [*before, step.turn, *after]))
    return Orders(before, after)

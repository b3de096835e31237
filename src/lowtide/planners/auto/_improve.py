"""Large neighbourhoods: undo some decisions, decide them again, keep what is better.

Compiled, as `_moves` is. Randomness is a sequence of whole numbers that is the same
everywhere.
"""

from __future__ import annotations

from lowtide.planners.auto._greedy import lower
from lowtide.planners.auto._keep import leave_out, raise_up, repeated
from lowtide.planners.auto._moves import below, build, copy, draw, excess_of
from lowtide.planners.auto._order import may_pass, move, reorder
from lowtide.planners.auto._tables import State, Work


def draw_factors(w: Work) -> None:
    """Random factors of scores, often the same for the same storage of every layer."""
    sigma = 0.1
    kind = below(w, 3)
    if kind > 0:
        sigma = 0.3 if kind == 1 else 0.6
    alike = draw(w) < 0.5
    storages = len(w.size)
    for i in range(storages):
        # Four even draws are nearly a normal one; the fourth power is nearly exp.
        z = 1.7 * (draw(w) + draw(w) + draw(w) + draw(w) - 2.0)
        x = 1.0 + 0.25 * sigma * z
        w.factor[i] = (x * x) * (x * x)
    if alike:
        for i in range(storages):
            w.factor[i] = w.factor[w.storage_class[i]]
    w.units[0] += 8.0 * storages


def drop_some(w: Work, s: State) -> None:
    """Leave out some recomputations: neighbours, one op in all layers, or anything."""
    count = repeated(w, s)
    if count == 0:
        return
    number = 1 + below(w, min(count, 12))
    kind = draw(w)
    for p in range(s.length[0]):
        w.insert_at[p] = 0
    if kind < 0.4:
        start = below(w, count - number + 1)
        for k in range(start, start + number):
            w.insert_at[w.positions[k]] = 1
    elif kind < 0.8:
        for _ in range(number):
            w.insert_at[w.positions[below(w, count)]] = 1
    else:
        wanted = w.op_class[s.ops[w.positions[below(w, count)]]]
        share = 1.0 if draw(w) < 0.5 else draw(w)
        for k in range(count):
            if w.op_class[s.ops[w.positions[k]]] == wanted and draw(w) <= share:
                w.insert_at[w.positions[k]] = 1
    leave_out(w, s, s, 1)


def slide(w: Work, s: State, p: int, step: int, far: int) -> None:
    """Let the op at p pass up to `far` others, later (1) or earlier (-1)."""
    q = p
    while far > 0 and 0 <= q + step < s.length[0]:
        if not may_pass(w, s.ops[p], s.ops[q + step]):
            break
        q += step
        far -= 1
    move(s, p, q)
    w.units[0] += 40.0


def shake(w: Work, s: State) -> None:
    """Let a few ops, alone or with their neighbours, change places at random."""
    for _ in range(1 + below(w, 4)):
        far = 1 + below(w, 30)
        count = min(s.length[0], 1 + below(w, 5))
        first = below(w, s.length[0] - count + 1)
        if draw(w) < 0.5:
            for p in range(first, first + count):
                slide(w, s, p, -1, far)
        else:
            for p in range(first + count - 1, first - 1, -1):
                slide(w, s, p, 1, far)
    build(w, s)


def perturb(
    w: Work,
    s: State,
    spare: State,
    budget: float,
    limit_seconds: float,
    limit_units: float,
) -> None:
    """Change the sequence at random and make it fit again."""
    draw_factors(w)
    # On larger steps this has not been tried enough to say whether it pays.
    w.early[0] = 1 if len(w.seconds) <= 100 and draw(w) < 0.3 else 0
    kind = draw(w)
    target = budget
    if kind < 0.5:
        drop_some(w, s)
    elif kind < 0.65:
        target -= draw(w) * 0.05 * (s.peak_bytes[0] - w.resident_bytes[0])
    else:
        if kind < 0.9:
            shake(w, s)
        if draw(w) < 0.5:
            drop_some(w, s)
        if kind >= 0.8:
            level = budget - 0.3 * draw(w) * (budget - w.resident_bytes[0])
            reorder(w, s, level, 60, limit_units)
    lower(w, s, spare, target, limit_seconds, 16, 0.7, limit_units)
    if s.peak_bytes[0] <= budget:
        power = 0.5 * below(w, 3)
        raise_up(w, s, spare, budget, power, limit_units)


def improve(
    w: Work,
    best: State,
    current: State,
    trial: State,
    spare: State,
    budget: float,
    heat: float,
    limit_units: float,
) -> int:
    """Look for a better sequence until the work is done; how often one was found.

    A sequence that fits is better the faster it is, one that does not the less excess
    it has. `heat` is how many seconds a step may lead astray.
    """
    found = 0
    slowest = 0.0
    for op in range(len(w.seconds)):
        slowest = max(slowest, w.seconds[op])
    while w.units[0] < limit_units:
        copy(current, trial)
        limit = current.seconds[0] + 0.02 * w.baseline_seconds[0] + slowest
        is_in = current.peak_bytes[0] <= budget
        if not is_in:
            limit = 4.0 * w.baseline_seconds[0]
        perturb(w, trial, spare, budget, limit, limit_units)
        excess = excess_of(trial, budget)
        if is_in:
            if excess > 0.0:
                continue
            if trial.seconds[0] - current.seconds[0] < heat * draw(w):
                copy(trial, current)
        elif excess <= excess_of(current, budget) * (1.0 + 0.05 * draw(w)):
            copy(trial, current)
        was = excess_of(best, budget)
        if excess < was or (
            excess <= 0.0 and trial.seconds[0] < best.seconds[0] * (1 - 1e-12)
        ):
            copy(trial, best)
            found += 1
            if was > 0.0 and excess <= 0.0:
                copy(trial, current)
                break
    return found

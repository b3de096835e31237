"""The reverse of eviction: leave out a recomputation where the budget has room.

Leaving out a run means that the storages it made live on from their last use before it.
What ran only to feed it is left out with it. Compiled, as `_moves` is.
"""

from __future__ import annotations

from lowtide.planners.auto._moves import INFINITE, build, find, shift, undo
from lowtide.planners.auto._tables import State, Work


def repeated(w: Work, s: State) -> int:
    """List the runs that may be left out, as all they write was made before."""
    for i in range(len(w.size)):
        w.wanted[i] = 0
    count = 0
    for p in range(s.length[0]):
        op = s.ops[p]
        again = not w.fixed[op]
        for i in w.writes[w.writes_at[op] : w.writes_at[op + 1]]:
            again = again and w.wanted[i] > 0
            w.wanted[i] = 1
        if again:
            w.positions[count] = p
            count += 1
    w.units[0] += 3.0 * s.length[0]
    return count


def is_idle(w: Work, s: State, number: int, position: int) -> bool:
    """Whether nobody reads what the run at a position makes, but for what is gone."""
    op = s.ops[position]
    if w.fixed[op]:
        return False
    for i in w.writes[w.writes_at[op] : w.writes_at[op + 1]]:
        if w.held[i]:
            return False
        k = find(s, i, position) + 1
        while k < s.first[i + 1] and not s.made[k]:
            if w.gone[s.at[k]] != number:
                return False
            k += 1
    return True


def remove(w: Work, s: State, position: int, level: float) -> tuple[int, float]:
    """Leave out the run at a position: how many runs go with it, what time they take.

    They are listed in `w.gone_list`. The live bytes are those after the
    removal; `undo` takes that back.
    """
    w.units[0] += 10.0
    w.cone_number[0] += 1
    number = w.cone_number[0]
    w.num_changes[0] = 0
    w.gain[0] = 0.0
    seconds = 0.0
    count, waiting = 0, 1
    w.gone_list[0] = position
    while count < waiting:
        q = w.gone_list[count]
        count += 1
        w.gone[q] = number
        op = s.ops[q]
        seconds += w.seconds[op]
        shift(w, s, q, q + 1, -w.fresh_bytes[op], level)
        if q == position:
            for i in w.writes[w.writes_at[op] : w.writes_at[op + 1]]:
                k = find(s, i, q)
                if not w.held[i] and k + 1 < s.first[i + 1] and not s.made[k + 1]:
                    shift(w, s, s.at[k - 1] + 1, q + 1, w.size[i], level)
        for i in w.reads[w.reads_at[op] : w.reads_at[op + 1]]:
            if w.held[i]:
                continue
            k = find(s, i, q)
            # Later reads of the same copy keep it; those already left out do not.
            after = k + 1
            while after < s.first[i + 1]:
                at = s.at[after]
                if s.made[after] and at != position:
                    after = s.first[i + 1]
                elif not s.made[after] and w.gone[at] != number:
                    break
                after += 1
            if after < s.first[i + 1]:
                continue
            k -= 1
            while k > s.first[i] and not s.made[k] and w.gone[s.at[k]] == number:
                k -= 1
            maker = s.at[k]
            shift(w, s, maker + 1, q + 1, -w.size[i], level)
            if s.made[k] and w.gone[maker] != number:
                queued = False
                for j in range(count, waiting):
                    queued = queued or w.gone_list[j] == maker
                if not queued and is_idle(w, s, number, maker):
                    w.gone_list[waiting] = maker
                    waiting += 1
    return count, seconds


def is_better(w: Work, a: int, b: int) -> bool:
    """Whether a candidate comes before another."""
    return w.score[a] > w.score[b] or (w.score[a] == w.score[b] and a < b)


def heap_down(w: Work, k: int, count: int) -> None:
    """Let a candidate sink to its place: the best on top, of equals the first."""
    item = w.heap[k]
    while True:
        child = 2 * k + 1
        if child >= count:
            break
        if child + 1 < count:
            a, b = w.heap[child], w.heap[child + 1]
            if is_better(w, b, a):
                child += 1
        below = w.heap[child]
        if is_better(w, item, below):
            break
        w.heap[k] = below
        k = child
    w.heap[k] = item


def heap_make(w: Work, count: int) -> None:
    """Order candidates 0 to count - 1 by `w.score`."""
    for k in range(count):
        w.heap[k] = k
    for k in range(count // 2 - 1, -1, -1):
        heap_down(w, k, count)
    w.units[0] += 3.0 * count


def heap_pop(w: Work, count: int) -> int:
    """Take the best candidate of `count`."""
    best = w.heap[0]
    w.heap[0] = w.heap[count - 1]
    heap_down(w, 0, count - 1)
    w.units[0] += 12.0
    return best


def fits(w: Work, s: State, budget: float) -> bool:
    """Whether the sequence stays within the budget where the removal adds bytes."""
    for k in range(w.num_changes[0]):
        if w.change_nbytes[k] <= 0.0:
            continue
        for p in range(w.change_start[k], w.change_stop[k]):
            if s.live[p] > budget and w.gone[p] != w.cone_number[0]:
                return False
    return True


def leave_out(w: Work, s: State, source: State, least: int) -> None:
    """The source without the positions that are marked with at least this number."""
    length = 0
    for p in range(source.length[0]):
        if w.insert_at[p] == 0 or w.insert_at[p] > least:
            s.ops[length] = source.ops[p]
            length += 1
    s.length[0] = length
    build(w, s)


def raise_up(
    w: Work, s: State, spare: State, budget: float, power: float, limit_units: float
) -> None:
    """Leave out the recomputations that the budget does not need.

    Those that save most time go first; with `power`, time per byte-position added to
    that power.
    """
    while w.units[0] < limit_units:
        count = repeated(w, s)
        for c in range(count):
            _, seconds = remove(w, s, w.positions[c], budget)
            area = 0.0
            for k in range(w.num_changes[0]):
                area += (w.change_stop[k] - w.change_start[k]) * w.change_nbytes[k]
            undo(w, s)
            w.score[c] = seconds
            if power > 0.0:
                w.score[c] = seconds / max(1.0, area) ** power
        heap_make(w, count)
        since = w.cone_number[0]
        for p in range(s.length[0]):
            spare.ops[p] = s.ops[p]
            w.insert_at[p] = 0
        spare.length[0] = s.length[0]
        taken = 0
        for left in range(count, 0, -1):
            position = w.positions[heap_pop(w, left)]
            if w.insert_at[position] > 0:
                continue
            many, _ = remove(w, s, position, budget)
            if not fits(w, s, budget) or touches(w, s, many, since):
                undo(w, s)
                continue
            taken += 1
            for j in range(many):
                q = w.gone_list[j]
                op = s.ops[q]
                s.live[q] = -INFINITE
                w.insert_at[q] = taken
                for i in w.reads[w.reads_at[op] : w.reads_at[op + 1]]:
                    w.touched[i] = w.cone_number[0]
                for i in w.writes[w.writes_at[op] : w.writes_at[op + 1]]:
                    w.touched[i] = w.cone_number[0]
        leave_out(w, s, spare, taken)
        if taken > 0 and s.peak_bytes[0] > budget:
            # The removals affect each other: take the best of them alone.
            leave_out(w, s, spare, 1)
            if s.peak_bytes[0] > budget:
                leave_out(w, s, spare, 0)
                taken = 0
        if taken == 0:
            return


def touches(w: Work, s: State, count: int, since: int) -> bool:
    """Whether the runs that go use a storage that another removal uses."""
    for j in range(count):
        op = s.ops[w.gone_list[j]]
        for i in w.reads[w.reads_at[op] : w.reads_at[op + 1]]:
            if w.touched[i] > since:
                return True
        for i in w.writes[w.writes_at[op] : w.writes_at[op + 1]]:
            if w.touched[i] > since:
                return True
    return False

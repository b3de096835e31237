"""Eviction until the sequence fits: the best excess per second first.

Compiled, as `_moves` is.
"""

from __future__ import annotations

from lowtide.planners.auto._keep import heap_make, heap_pop
from lowtide.planners.auto._moves import below, build, copy, evict, excess_of, undo
from lowtide.planners.auto._tables import State, Work


def list_gaps(w: Work, s: State, budget: float) -> int:
    """List the gaps over the budget that an eviction could lower.

    `w.score` is the most that the score of each could be.
    """
    w.area[0] = 0.0
    w.over[0] = 0.0
    for p in range(s.length[0]):
        above = max(s.live[p] - budget, 0.0)
        w.area[p + 1] = w.area[p] + above
        w.over[p + 1] = w.over[p] + (1.0 if above > 0.0 else 0.0)
    count = 0
    for i in range(len(w.size)):
        if w.held[i] or w.remaker[i] < 0:
            continue
        seconds = w.seconds[w.remaker[i]]
        for k in range(s.first[i] + 1, s.first[i + 1]):
            start, stop = s.at[k - 1], s.at[k]
            if s.made[k] or stop - start < 2:
                continue
            most = w.size[i] * (w.over[stop] - w.over[start + 1])
            most = min(most, w.area[stop] - w.area[start + 1])
            if most <= 0.0:
                continue
            # If nobody reads it before the gap, perhaps nothing has to run twice.
            cost = 0.3 * seconds if s.made[k - 1] else seconds
            w.score[count] = most / (cost + w.tiny_seconds[0])
            w.gap_storage[count] = i
            w.gap_start[count] = start
            w.gap_stop[count] = stop
            count += 1
    w.units[0] += 2.0 * s.length[0] + 2.0 * s.first[len(w.size)]
    return count


def score_gaps(
    w: Work, s: State, budget: float, rate: float, tried: int, count: int
) -> int:
    """Score the most promising gaps exactly; how many evictions gain anything.

    Each gap is tried with two opinions on what a second is worth. Evictions are listed
    behind the gaps.
    """
    heap_make(w, count)
    found, best = count, 0.0
    for k in range(count):
        g = heap_pop(w, count - k)
        if (k >= tried and best > 0.0) or w.score[g] < best * 0.5:
            break
        i, start, stop = w.gap_storage[g], w.gap_start[g], w.gap_stop[g]
        if w.early[0] and stop - start > 2:
            # What it is made from may not live as long as the gap.
            stop = start + 2 + below(w, stop - start - 1)
        for worth in (rate, 0.1 * rate):
            ops, gain, seconds = evict(w, s, i, start, stop, budget, worth)
            undo(w, s)
            if ops == 0 or gain <= 0.0:
                continue
            w.score[found] = gain * w.factor[i] / seconds
            w.gap_storage[found] = i
            w.gap_start[found] = start
            w.gap_stop[found] = stop
            w.gap_rate[found] = worth
            best = max(best, w.score[found])
            found += 1
    for k in range(count, found):
        w.score[k - count] = w.score[k]
        w.gap_storage[k - count] = w.gap_storage[k]
        w.gap_start[k - count] = w.gap_start[k]
        w.gap_stop[k - count] = w.gap_stop[k]
        w.gap_rate[k - count] = w.gap_rate[k]
    return found - count


def choose(w: Work, s: State, budget: float, batch: float, count: int) -> int:
    """Take the best eviction and those nearly as good that do not touch each other.

    Returns how many ops they insert, 0 if none gains anything.
    """
    heap_make(w, count)
    for p in range(s.length[0] + 1):
        w.insert_count[p] = 0
    since = w.cone_number[0]
    inserted = 0
    best = 0.0
    for left in range(count, 0, -1):
        g = heap_pop(w, left)
        if w.score[g] < batch * best:
            break
        stop = w.gap_stop[g]
        if w.insert_count[stop] > 0:
            continue
        ops, gain, seconds = evict(
            w, s, w.gap_storage[g], w.gap_start[g], stop, budget, w.gap_rate[g]
        )
        number = w.cone_number[0]
        good = ops > 0 and inserted + ops < len(w.insert_ops)
        good = good and gain * w.factor[w.gap_storage[g]] >= batch * best * seconds
        for k in range(w.num_marked[0]):
            i = w.marked[k]
            if w.freed[i] == number and w.taken_needed[i] > since:
                good = False
            if w.taken_freed[i] > since:
                good = False
        if not good or gain <= 0.0:
            undo(w, s)
            continue
        best = max(best, w.score[g])
        for k in range(w.num_changes[0]):
            for p in range(w.change_start[k], w.change_stop[k]):
                s.carry[p] += w.change_nbytes[k]
        for k in range(w.num_marked[0]):
            i = w.marked[k]
            if w.freed[i] == number:
                w.taken_freed[i] = number
            elif w.needed[i] == number:
                w.taken_needed[i] = number
        w.insert_at[stop] = inserted
        w.insert_count[stop] = ops
        for k in range(ops):
            w.insert_ops[inserted + k] = w.cone_ops[k]
        inserted += ops
        if batch >= 1.0:
            break
    return inserted


def insert(w: Work, s: State, target: State) -> None:
    """Write the sequence with the chosen cones into the target."""
    length = 0
    for p in range(s.length[0]):
        for k in range(w.insert_count[p]):
            target.ops[length] = w.insert_ops[w.insert_at[p] + k]
            length += 1
        target.ops[length] = s.ops[p]
        length += 1
    target.length[0] = length


def lower(
    w: Work,
    s: State,
    spare: State,
    budget: float,
    limit_seconds: float,
    tried: int,
    batch: float,
    limit_units: float,
) -> None:
    """Evict until the sequence fits, or comes as near as evictions bring it.

    `tried` gaps are scored exactly in each round; evictions whose score is at least
    `batch` of the best are taken together. Above `limit_seconds` it gives up: the
    result could not be used.
    """
    excess = excess_of(s, budget)
    rate = excess / (0.1 * w.baseline_seconds[0] + 1e-30)
    while s.peak_bytes[0] > budget and s.seconds[0] < limit_seconds:
        if w.units[0] >= limit_units:
            return
        count = list_gaps(w, s, budget)
        count = score_gaps(w, s, budget, rate, tried, count)
        if count == 0:
            return
        rate = 0.0
        for k in range(count):
            rate = max(rate, w.score[k])
        share = batch
        copy(s, spare)
        left = excess
        for _ in range(2):
            inserted = choose(w, s, budget, share, count)
            if inserted == 0 or s.length[0] + inserted > len(s.ops) - 2:
                copy(spare, s)
                return
            insert(w, spare, s)
            if accesses_of(w, s) > len(s.at) - 2:
                copy(spare, s)
                return
            build(w, s)
            left = excess_of(s, budget)
            if left <= excess * (1 - 1e-6):
                break
            # Together they do not help: the best of them alone.
            copy(spare, s)
            share = 1.0
        if left > excess * (1 - 1e-6):
            return
        excess = left


def accesses_of(w: Work, s: State) -> int:
    """How many reads and writes the sequence has."""
    count = 0
    for p in range(s.length[0]):
        op = s.ops[p]
        count += w.reads_at[op + 1] - w.reads_at[op]
        count += w.writes_at[op + 1] - w.writes_at[op]
    return count

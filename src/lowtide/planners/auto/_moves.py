"""The moves of the search on one sequence of ops: evict, leave out, change places.

A storage lives from the op that makes it to its last read before it is made again. So
inserting an op frees its outputs earlier, leaving one out keeps them, and any sequence
in which every read has an earlier writer is valid: moves never have to be repaired,
they only have to be scored.

The measure that drives the search is the excess: the sum over positions of the bytes
above the budget. Unlike the peak it falls with every useful move, also while the peak
is a plateau.

These functions are compiled for large steps (`_evaluator`), so they are written in the
plain subset of Python that allows it: loops over flat tables, no objects.
"""

from __future__ import annotations

from lowtide.planners.auto._tables import State, StorageInts, Work

INFINITE = float("inf")


def build(w: Work, s: State) -> None:
    """Drop the ops nobody needs, and find all that follows from the sequence."""
    length = s.length[0]
    storages = len(w.size)
    for i in range(storages):
        w.first_made[i] = -1
        w.wanted[i] = 0
        s.first[i] = 0
    s.first[storages] = 0
    for p in range(length):
        op = s.ops[p]
        for i in w.writes[w.writes_at[op] : w.writes_at[op + 1]]:
            if w.first_made[i] < 0:
                w.first_made[i] = p
    kept = length
    for p in range(length - 1, -1, -1):
        op = s.ops[p]
        useful = w.fixed[op] > 0
        for i in w.writes[w.writes_at[op] : w.writes_at[op + 1]]:
            if (w.first_made[i] == p) if w.held[i] else w.wanted[i] > 0:
                useful = True
        if not useful:
            continue
        for i in w.writes[w.writes_at[op] : w.writes_at[op + 1]]:
            w.wanted[i] = 0
            s.first[i + 1] += 1
        for i in w.reads[w.reads_at[op] : w.reads_at[op + 1]]:
            w.wanted[i] = 1
            s.first[i + 1] += 1
        kept -= 1
        s.ops[kept] = op
    length -= kept
    s.length[0] = length
    for i in range(storages):
        s.first[i + 1] += s.first[i]
        w.first_made[i] = s.first[i]
    w.units[0] += 3.0 * length + 2.0 * storages + 4.0 * s.first[storages]
    now = w.first_piece[0]
    seconds = 0.0
    for p in range(length):
        op = s.ops[p + kept]
        s.ops[p] = op
        s.piece[p] = now
        w.step_bytes[p] = 0.0
        seconds += w.seconds[op]
        if w.leads[op] > -2:
            now = w.leads[op]
        for i in w.reads[w.reads_at[op] : w.reads_at[op + 1]]:
            s.at[w.first_made[i]] = p
            s.made[w.first_made[i]] = 0
            w.first_made[i] += 1
        for i in w.writes[w.writes_at[op] : w.writes_at[op + 1]]:
            s.at[w.first_made[i]] = p
            s.made[w.first_made[i]] = 1
            w.first_made[i] += 1
    s.seconds[0] = seconds
    w.step_bytes[length] = 0.0
    for i in range(storages):
        if w.held[i]:
            if s.first[i] < s.first[i + 1]:
                w.step_bytes[s.at[s.first[i]] + 1] += w.size[i]
            continue
        for k in range(s.first[i] + 1, s.first[i + 1]):
            if not s.made[k]:
                w.step_bytes[s.at[k - 1] + 1] += w.size[i]
                w.step_bytes[s.at[k] + 1] -= w.size[i]
    alive = w.resident_bytes[0]
    peak = 0.0
    for p in range(length):
        alive += w.step_bytes[p]
        s.carry[p] = alive
        s.live[p] = alive + w.fresh_bytes[s.ops[p]]
        peak = max(peak, s.live[p])
    s.peak_bytes[0] = peak


def copy(source: State, target: State) -> None:
    """Make the target the same sequence, with all that is known of it."""
    length = source.length[0]
    for p in range(length):
        target.ops[p] = source.ops[p]
        target.live[p] = source.live[p]
        target.carry[p] = source.carry[p]
        target.piece[p] = source.piece[p]
    storages = len(source.first) - 1
    for i in range(storages + 1):
        target.first[i] = source.first[i]
    for k in range(source.first[storages]):
        target.at[k] = source.at[k]
        target.made[k] = source.made[k]
    target.length[0] = length
    target.peak_bytes[0] = source.peak_bytes[0]
    target.seconds[0] = source.seconds[0]


def draw(w: Work) -> float:
    """A random number from 0 to below 1 (Park and Miller 1988)."""
    w.random[0] = w.random[0] * 48271 % 2147483647
    return w.random[0] / 2147483647.0


def below(w: Work, count: int) -> int:
    """A random whole number below `count`."""
    return min(count - 1, int(draw(w) * count))


def excess_of(s: State, budget: float) -> float:
    """Bytes above the budget, summed over positions."""
    total = 0.0
    for p in range(s.length[0]):
        total += max(s.live[p] - budget, 0.0)
    return total


def find(s: State, storage: int, position: int) -> int:
    """The first access of a storage at a position or after it."""
    low, high = s.first[storage], s.first[storage + 1]
    while low < high:
        middle = (low + high) // 2
        if s.at[middle] < position:
            low = middle + 1
        else:
            high = middle
    return low


def last_access(s: State, storage: int, position: int) -> int:
    """The position of the last access before this one, or -1."""
    k = find(s, storage, position)
    return s.at[k - 1] if k > s.first[storage] else -1


def alive_since(s: State, storage: int, position: int) -> int:
    """The last access before the position if the storage is alive there, else -1."""
    k = find(s, storage, position)
    if k == s.first[storage] or k == s.first[storage + 1] or s.made[k]:
        return -1
    return s.at[k - 1]


def shift(
    w: Work, s: State, start: int, stop: int, nbytes: float, level: float
) -> None:
    """Add bytes to what is alive; the cone notes it, and what excess that removes."""
    if start >= stop:
        return
    gain = 0.0
    for p in range(start, stop):
        before = max(s.live[p] - level, 0.0)
        s.live[p] += nbytes
        gain += before - max(s.live[p] - level, 0.0)
    w.gain[0] += gain
    w.units[0] += stop - start
    k = w.num_changes[0]
    w.change_start[k], w.change_stop[k], w.change_nbytes[k] = start, stop, nbytes
    w.num_changes[0] = k + 1


def undo(w: Work, s: State) -> None:
    """Take back the changes of a cone."""
    for k in range(w.num_changes[0]):
        w.units[0] += w.change_stop[k] - w.change_start[k]
        for p in range(w.change_start[k], w.change_stop[k]):
            s.live[p] -= w.change_nbytes[k]


def hold_seconds(w: Work, s: State, i: int, level: float, rate: float) -> float:
    """What it is worth not to hold a storage from its last use to the cone."""
    last = last_access(s, i, w.cone_position[0])
    if last < 0:
        return INFINITE
    size = w.size[i]
    total = 0.0
    for p in range(last + 1, w.cone_position[0]):
        total += min(max(s.live[p] + size - level, 0.0), size)
    w.units[0] += w.cone_position[0] - last
    return total / rate


def can_make(w: Work, s: State, op: int) -> bool:
    """Whether an op can be part of the cone and is not being decided on already."""
    if op < 0 or w.busy[op] == w.cone_number[0]:
        return False
    return w.piece[op] == s.piece[w.cone_position[0]]


def make_seconds(
    w: Work, s: State, i: int, top: int, most: float, level: float, rate: float
) -> float:
    """Time to make a storage here, its inputs included; infinite if above `most`.

    `top` is where the stack is free.
    """
    number, position = w.cone_number[0], w.cone_position[0]
    op = w.remaker[i]
    if not can_make(w, s, op):
        return INFINITE
    if w.known[i] == number:
        return w.known_seconds[i]
    bottom = top
    w.stack_op[top], w.stack_read[top] = op, w.reads_at[op]
    w.stack_seconds[top], w.stack_limit[top] = w.seconds[op], most
    w.busy[op] = number
    answer = INFINITE
    while top >= bottom:
        op, seconds = w.stack_op[top], w.stack_seconds[top]
        k = w.stack_read[top]
        w.units[0] += 2.0
        if k < w.reads_at[op + 1] and seconds <= w.stack_limit[top]:
            w.stack_read[top] = k + 1
            j = w.reads[k]
            if w.fresh[j] == number or w.extended[j] == number or w.held[j]:
                continue
            if w.freed[j] != number and alive_since(s, j, position) >= 0:
                continue
            hold = hold_seconds(w, s, j, level, rate)
            below = w.remaker[j]
            left = min(hold, w.stack_limit[top] - seconds)
            if w.known[j] == number:
                w.stack_seconds[top] += min(hold, w.known_seconds[j])
            elif left <= 0.0 or not can_make(w, s, below):
                w.stack_seconds[top] += hold
            else:
                w.stack_hold[top] = hold
                top += 1
                w.stack_op[top], w.stack_read[top] = below, w.reads_at[below]
                w.stack_seconds[top] = w.seconds[below]
                w.stack_limit[top] = left
                w.busy[below] = number
            continue
        answer = seconds if seconds <= w.stack_limit[top] else INFINITE
        w.busy[op] = 0
        top -= 1
        if top >= bottom:
            w.stack_seconds[top] += min(w.stack_hold[top], answer)
            if answer < INFINITE:
                j = w.reads[w.stack_read[top] - 1]
                w.known[j], w.known_seconds[j] = number, answer
    if answer < INFINITE:
        w.known[i], w.known_seconds[i] = number, answer
    return answer


def mark(w: Work, marks: StorageInts, i: int) -> None:
    """Mark a storage for this cone and remember that it is marked."""
    marks[i] = w.cone_number[0]
    k = w.num_marked[0]
    w.marked[k] = i
    w.num_marked[0] = k + 1


def grow(w: Work, s: State, i: int, level: float, rate: float) -> int:
    """Choose the ops that make a storage, input by input; how many, 0 if impossible.

    An input that is not alive here is made again (time) or held until here (excess);
    `rate` is the excess a second is worth.
    """
    number, position = w.cone_number[0], w.cone_position[0]
    count = 0
    op = w.remaker[i]
    if not can_make(w, s, op):
        return 0
    w.stack_op[0], w.stack_read[0] = op, w.reads_at[op]
    w.busy[op] = number
    top = 0
    while top >= 0:
        op, k = w.stack_op[top], w.stack_read[top]
        w.units[0] += 2.0
        if k < w.reads_at[op + 1]:
            w.stack_read[top] = k + 1
            j = w.reads[k]
            if w.fresh[j] == number or w.extended[j] == number:
                continue
            if w.freed[j] != number:
                if w.held[j]:
                    if last_access(s, j, position) < 0:
                        return 0
                    continue
                if alive_since(s, j, position) >= 0:
                    if w.needed[j] != number:
                        mark(w, w.needed, j)
                    continue
                hold = hold_seconds(w, s, j, level, rate)
                again = make_seconds(w, s, j, top + 1, hold, level, rate)
                if hold <= again:
                    if hold == INFINITE:
                        return 0
                    mark(w, w.extended, j)
                    last = last_access(s, j, position)
                    shift(w, s, last + 1, position, w.size[j], level)
                    continue
            below = w.remaker[j]
            if below >= 0 and w.chosen[below] == number:
                continue
            if not can_make(w, s, below):
                return 0
            top += 1
            w.stack_op[top], w.stack_read[top] = below, w.reads_at[below]
            w.busy[below] = number
            continue
        top -= 1
        w.chosen[op] = number
        w.cone_ops[count] = op
        count += 1
        for j in w.writes[w.writes_at[op] : w.writes_at[op + 1]]:
            w.fresh[j] = number
            if w.freed[j] != number and not w.held[j]:
                last = alive_since(s, j, position)
                if last >= 0:
                    mark(w, w.freed, j)
                    w.freed_since[j] = last
                    shift(w, s, last + 1, position, -w.size[j], level)
    return count


def inserted_excess(w: Work, s: State, count: int, level: float) -> float:
    """Excess while the cone runs."""
    number = w.cone_number[0]
    now = s.carry[w.cone_position[0]]
    for k in range(w.num_marked[0]):
        i = w.marked[k]
        if w.freed[i] == number:
            now -= w.size[i]
        elif w.extended[i] == number:
            now += w.size[i]
    for index in range(count):
        op = w.cone_ops[index]
        for i in w.writes[w.writes_at[op] : w.writes_at[op + 1]]:
            w.last_read[i] = -1
    for index in range(count):
        op = w.cone_ops[index]
        for i in w.reads[w.reads_at[op] : w.reads_at[op + 1]]:
            w.last_read[i] = index
    total = 0.0
    for index in range(count):
        op = w.cone_ops[index]
        w.units[0] += 8.0
        for i in w.writes[w.writes_at[op] : w.writes_at[op + 1]]:
            now += w.size[i]
        total += max(now + w.passing_bytes[op] - level, 0.0)
        for i in w.writes[w.writes_at[op] : w.writes_at[op + 1]]:
            if w.freed[i] != number and w.last_read[i] < 0:
                now -= w.size[i]
        for i in w.reads[w.reads_at[op] : w.reads_at[op + 1]]:
            passing = w.fresh[i] == number and w.freed[i] != number
            passing = passing or w.extended[i] == number
            if passing and w.last_read[i] == index:
                now -= w.size[i]
    return total


def saved_seconds(w: Work, s: State) -> float:
    """Time of the earlier runs that nobody needs once the cone makes it again."""
    number = w.cone_number[0]
    saved = 0.0
    for k in range(w.num_marked[0]):
        i = w.marked[k]
        if w.freed[i] != number:
            continue
        p = w.freed_since[i]
        op = s.ops[p]
        idle = not w.fixed[op]
        first = -1
        for j in w.writes[w.writes_at[op] : w.writes_at[op + 1]]:
            if w.held[j]:
                idle = False
            elif w.freed[j] == number and w.freed_since[j] == p:
                idle = idle and w.needed[j] != number
                first = j if first < 0 else first
            else:
                after = find(s, j, p + 1)
                if after < s.first[j + 1] and not s.made[after]:
                    idle = False
        if idle and first == i:
            saved += w.seconds[op]
    return saved


def evict(
    w: Work, s: State, i: int, start: int, stop: int, level: float, rate: float
) -> tuple[int, float, float]:
    """Free a storage between two uses, make it again at the second.

    Returns the number of ops in the cone, the excess that goes, and the seconds it
    costs. The live bytes are those after the eviction; `undo` takes that back.
    """
    w.units[0] += 20.0
    w.cone_number[0] += 1
    w.cone_position[0] = stop
    w.num_changes[0] = 0
    w.num_marked[0] = 0
    w.gain[0] = 0.0
    mark(w, w.freed, i)
    w.freed_since[i] = start
    shift(w, s, start + 1, stop, -w.size[i], level)
    count = grow(w, s, i, level, rate)
    if count == 0:
        return 0, 0.0, 1.0
    gain = w.gain[0] - inserted_excess(w, s, count, level)
    seconds = -saved_seconds(w, s)
    for k in range(count):
        seconds += w.seconds[w.cone_ops[k]]
    return count, gain, max(seconds, 0.0) + w.tiny_seconds[0]

"""Ops that change places: the same runs at other times, at no cost.

An op that reads more than it leaves is better run early, one that leaves more than it
reads late. An op may pass another unless one makes what the other reads, both make the
same, both run once, or one opens a region. Compiled, as `_moves` is.
"""

from __future__ import annotations

from lowtide.planners.auto._moves import build, excess_of, find
from lowtide.planners.auto._tables import State, Work


def may_pass(w: Work, a: int, b: int) -> bool:
    """Whether two neighbours in a sequence may change places."""
    if w.leads[a] > -2 or w.leads[b] > -2 or (w.ordered[a] and w.ordered[b]):
        return False
    for i in w.writes[w.writes_at[a] : w.writes_at[a + 1]]:
        for j in w.reads[w.reads_at[b] : w.reads_at[b + 1]]:
            if j == i:
                return False
        for j in w.writes[w.writes_at[b] : w.writes_at[b + 1]]:
            if j == i:
                return False
    for i in w.writes[w.writes_at[b] : w.writes_at[b + 1]]:
        for j in w.reads[w.reads_at[a] : w.reads_at[a + 1]]:
            if j == i:
                return False
    return True


def reads(w: Work, op: int, i: int) -> bool:
    """Whether an op reads a storage."""
    found = False
    for j in w.reads[w.reads_at[op] : w.reads_at[op + 1]]:
        found = found or j == i
    return found


def left_bytes(w: Work, s: State, p: int) -> float:
    """Bytes made at a position that live on."""
    op = s.ops[p]
    total = 0.0
    for i in w.writes[w.writes_at[op] : w.writes_at[op + 1]]:
        a = find(s, i, p)
        if w.held[i]:
            total += w.size[i] if a == s.first[i] else 0.0
        elif a + 1 < s.first[i + 1] and not s.made[a + 1]:
            total += w.size[i]
    return total


def dies_at(w: Work, s: State, i: int, p: int) -> bool:
    """Whether the access of a storage at a position is the last before it is remade."""
    if w.held[i]:
        return False
    a = find(s, i, p)
    return a + 1 == s.first[i + 1] or s.made[a + 1] > 0


def earlier(w: Work, s: State, p: int, level: float, reach: int) -> tuple[int, float]:
    """Where to run the op at p earlier, and the excess that removes."""
    op = s.ops[p]
    fresh = w.fresh_bytes[op]
    change = left_bytes(w, s, p)
    for i in w.reads[w.reads_at[op] : w.reads_at[op + 1]]:
        w.wanted[i] = 1 if dies_at(w, s, i, p) else 0
        if w.wanted[i]:
            change -= w.size[i]
    best, best_gain = p, 0.0
    gain = max(s.live[p] - level, 0.0)
    for q in range(p - 1, max(-1, p - 1 - reach), -1):
        other = s.ops[q]
        if not may_pass(w, other, op):
            break
        # What the other one reads as well lives until then.
        for i in w.reads[w.reads_at[other] : w.reads_at[other + 1]]:
            if reads(w, op, i) and w.wanted[i]:
                w.wanted[i] = 0
                change += w.size[i]
        gain += max(s.live[q] - level, 0.0) - max(s.live[q] + change - level, 0.0)
        total = gain - max(s.carry[q] + fresh - level, 0.0)
        if total > best_gain:
            best, best_gain = q, total
        w.units[0] += 12.0
    return best, best_gain


def later(w: Work, s: State, p: int, level: float, reach: int) -> tuple[int, float]:
    """Where to run the op at p later, and the excess that removes."""
    op = s.ops[p]
    fresh = w.fresh_bytes[op]
    change = -left_bytes(w, s, p)
    for i in w.reads[w.reads_at[op] : w.reads_at[op + 1]]:
        if dies_at(w, s, i, p):
            change += w.size[i]
    best, best_gain = p, 0.0
    gain = max(s.live[p] - level, 0.0)
    for q in range(p + 1, min(s.length[0], p + 1 + reach)):
        other = s.ops[q]
        if not may_pass(w, op, other):
            break
        gain += max(s.live[q] - level, 0.0) - max(s.live[q] + change - level, 0.0)
        # What dies here would live on for the op that comes later now.
        for i in w.reads[w.reads_at[other] : w.reads_at[other + 1]]:
            if reads(w, op, i) and dies_at(w, s, i, q):
                change += w.size[i]
        if q + 1 == s.length[0]:
            break
        total = gain - max(s.carry[q + 1] + change + fresh - level, 0.0)
        if total > best_gain:
            best, best_gain = q, total
        w.units[0] += 12.0
    return best, best_gain


def move(s: State, p: int, q: int) -> None:
    """Run the op at p where the op at q is now."""
    op = s.ops[p]
    step = 1 if q > p else -1
    while p != q:
        s.ops[p] = s.ops[p + step]
        p += step
    s.ops[p] = op


def reorder(w: Work, s: State, level: float, reach: int, limit_units: float) -> None:
    """Let ops change places as long as that lowers the excess over a level."""
    moved = True
    while moved and w.units[0] < limit_units:
        moved = False
        p = 0
        while p < s.length[0] and w.units[0] < limit_units:
            q, gain = earlier(w, s, p, level, reach)
            after, more = later(w, s, p, level, reach)
            if more > gain:
                q, gain = after, more
            if gain > 0.0:
                before = excess_of(s, level)
                move(s, p, q)
                build(w, s)
                if excess_of(s, level) < before:
                    moved = True
                else:
                    move(s, q, p)
                    build(w, s)
            p += 1

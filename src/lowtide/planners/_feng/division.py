"""The division tree of a graph with one source and one target.

A segment is a part of the graph with a first and a last vertex whose inner vertices
touch nothing outside. It falls apart in one of three ways:

* linear: at its splitting vertices, which every path through it visits;
* branch: into parts that share only its two ends;
* rigid ("complicated" in the paper): neither; then it is covered by its largest inner
  segments, and the vertices where those meet are its joints.

Seen without directions these are the series, parallel and rigid nodes of the
triconnected components of the graph closed by an edge from target to source. Hence the
largest inner segments of a rigid one are disjoint and the tree is unique: nothing
depends on the order in which it is found.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter, defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from functools import reduce
from typing import Literal

import networkx

Shape = Literal["edge", "linear", "branch", "rigid"]


@dataclass(frozen=True, slots=True)
class Group:
    """Joints of a rigid segment that may be recomputed together.

    `joints` with the parts at `touching` form one stretch of `inner_bytes`. If that is
    too much, the group falls apart into `smaller` groups, with joints kept between.
    """

    joints: tuple[int, ...]
    touching: tuple[int, ...]
    inner_bytes: int
    smaller: tuple[Group, ...]


@dataclass(frozen=True, slots=True)
class Segment:
    """A node of the division tree.

    `inner_bytes` is the weight of everything strictly between `first` and `last`.
    `joints` are the inner vertices between `parts`: for a linear segment one between
    each two of them (their weights in `joint_bytes`), for a branch none.
    """

    shape: Shape
    first: int
    last: int
    inner_bytes: int = 0
    parts: tuple[Segment, ...] = ()
    joints: tuple[int, ...] = ()
    joint_bytes: tuple[int, ...] = ()
    groups: tuple[Group, ...] = ()
    aside: Aside | None = None


@dataclass(frozen=True, slots=True)
class Aside:
    """Another way to divide a rigid segment: some vertices are kept beforehand.

    With `kept` out of the way (a mask or an encoder's result that every layer reads)
    `body` is what remains. `loose` parts touch only kept vertices.
    """

    kept: tuple[int, ...]
    body: Segment
    loose: tuple[Segment, ...]


Parts = dict[tuple[int, int], Segment]


def divide(edges: tuple[tuple[int, int], ...], inner_bytes: tuple[int, ...]) -> Segment:
    """The division tree of a graph whose edges go from lower to higher numbers.

    Vertex 0 is the source, the highest one the target. The groups and the aside
    division of rigid segments are not in the paper.
    """
    parts: Parts = {e: Segment("edge", *e) for e in edges}
    return _Divider(inner_bytes).divide(_reduce(parts, inner_bytes))


def _in_line(
    one: Segment, joint: int, two: Segment, inner_bytes: tuple[int, ...]
) -> Segment:
    left = one if one.shape == "linear" else Segment("linear", 0, 0, parts=(one,))
    right = two if two.shape == "linear" else Segment("linear", 0, 0, parts=(two,))
    return Segment(
        "linear",
        one.first,
        two.last,
        one.inner_bytes + inner_bytes[joint] + two.inner_bytes,
        left.parts + right.parts,
        (*left.joints, joint, *right.joints),
        (*left.joint_bytes, inner_bytes[joint], *right.joint_bytes),
    )


def _beside(one: Segment, two: Segment) -> Segment:
    left = one.parts if one.shape == "branch" else (one,)
    right = two.parts if two.shape == "branch" else (two,)
    total = one.inner_bytes + two.inner_bytes
    return Segment("branch", one.first, one.last, total, left + right)


def _reduce(parts: Parts, inner_bytes: tuple[int, ...]) -> Parts:
    """Parts left when all series and parallel stretches are one part each."""
    after: dict[int, dict[int, Segment]] = defaultdict(dict)
    before: dict[int, set[int]] = defaultdict(set)
    for (u, v), part in parts.items():
        after[u][v] = part
        before[v].add(u)
    ends = {min(after), max(before)}
    waiting = sorted({*after, *before} - ends, reverse=True)
    while waiting:
        v = waiting.pop()
        if len(before[v]) != 1 or len(after[v]) != 1:
            continue
        (u,) = before.pop(v)
        ((w, second),) = after.pop(v).items()
        first = after[u].pop(v)
        before[w].discard(v)
        joined = _in_line(first, v, second, inner_bytes)
        if w in after[u]:
            joined = _beside(after[u][w], joined)
            waiting.extend(x for x in (w, u) if x not in ends)
        after[u][w] = joined
        before[w].add(u)
    return {(u, v): p for u, heads in after.items() for v, p in heads.items()}


class _Divider:
    def __init__(self, inner_bytes: tuple[int, ...]) -> None:
        self.inner = inner_bytes

    def divide(self, parts: Parts) -> Segment:
        """The segment made of these parts."""
        if len(parts) == 1:
            return next(iter(parts.values()))
        first, last = min(u for u, _ in parts), max(v for _, v in parts)
        if cuts := _splitting(parts):
            return self._linear(parts, [first, *cuts, last])
        branches = _branches(parts, first, last)
        if len(branches) > 1:
            return reduce(_beside, map(self.divide, branches))
        return self._rigid(parts, first, last)

    def _linear(self, parts: Parts, stops: list[int]) -> Segment:
        pieces: list[Parts] = [{} for _ in stops[1:]]
        for (u, v), part in parts.items():
            pieces[bisect_right(stops, u) - 1][u, v] = part
        whole = self.divide(pieces[0])
        for joint, piece in zip(stops[1:], pieces[1:], strict=False):
            whole = _in_line(whole, joint, self.divide(piece), self.inner)
        return whole

    def _rigid(self, parts: Parts, first: int, last: int) -> Segment:
        skeleton = dict(parts)
        for u, v, inside in _largest_segments(parts, first, last):
            skeleton[u, v] = self.divide({e: skeleton.pop(e) for e in inside})
        joints = tuple(sorted({v for e in skeleton for v in e} - {first, last}))
        order = sorted(skeleton)
        pieces = tuple(skeleton[e] for e in order)
        total = sum(p.inner_bytes for p in pieces) + sum(self.inner[v] for v in joints)
        return Segment(
            "rigid",
            first,
            last,
            total,
            pieces,
            joints,
            groups=_groups(order, pieces, self.inner, {first, last}),
            aside=self._aside(skeleton, first, last),
        )

    def _aside(self, skeleton: Parts, first: int, last: int) -> Aside | None:
        """The division after setting aside what is read from afar, if it helps."""
        rest = dict(skeleton)
        inner = list(self.inner)
        kept: list[int] = []
        loose: list[Segment] = []
        while len(kept) < _MOST_ASIDE:
            chosen = _farthest(rest, first, last)
            if chosen < 0:
                return None
            kept.append(chosen)
            for (u, v), part in sorted(rest.items()):
                if chosen not in (u, v):
                    continue
                del rest[u, v]
                if u == chosen and v != last:
                    # Made from the kept vertex alone: it lives and dies with v.
                    inner[v] += part.inner_bytes
                loose.append(part)
            rest = _closed(rest, first, last)
            if len(_splitting(rest)) >= _LEAST_SPLITS:
                body = _Divider(tuple(inner)).divide(_reduce(rest, tuple(inner)))
                return Aside(tuple(kept), body, tuple(loose))
        return None


_MOST_ASIDE = 4
_LEAST_SPLITS = 2


def _farthest(parts: Parts, first: int, last: int) -> int:
    """The vertex made from `first` alone that the most others read, or -1."""
    reads: dict[int, set[int]] = defaultdict(set)
    heads: dict[int, int] = defaultdict(int)
    for u, v in parts:
        reads[v].add(u)
        heads[u] += 1
    fit = [v for v in reads if v != last and reads[v] == {first} and heads[v] > 2]
    return max(fit, key=lambda v: (heads[v], -v), default=-1)


def _closed(parts: Parts, first: int, last: int) -> Parts:
    """The parts with loose vertices tied to the two ends."""
    tails, heads = {u for u, _ in parts}, {v for _, v in parts}
    closed = dict(parts)
    for v in sorted(tails - heads - {first}):
        closed[first, v] = Segment("edge", first, v)
    for v in sorted(heads - tails - {last}):
        closed[v, last] = Segment("edge", v, last)
    return closed


def _splitting(parts: Parts) -> list[int]:
    """Inner vertices that no part passes by, in order."""
    heads: dict[int, int] = {}
    for u, v in parts:
        heads[u] = max(heads.get(u, 0), v)
    found: list[int] = []
    reach = -1
    order = sorted(heads)
    for u in order:
        if reach <= u and u != order[0]:
            found.append(u)
        reach = max(reach, heads[u])
    return found


def _connected(members: set[int], edges: Iterable[tuple[int, int]]) -> dict[int, int]:
    """A number for each member, the same for those that edges among them connect."""
    together = networkx.utils.UnionFind(members)
    for edge in edges:
        if members.issuperset(edge):
            together.union(*edge)
    return {v: together[v] for v in sorted(members)}


def _branches(parts: Parts, first: int, last: int) -> list[Parts]:
    """Parts by the connected stretch between the two ends they belong to."""
    inner = {v for e in parts for v in e} - {first, last}
    leader = {first: -1, last: -1, **_connected(inner, parts)}
    found: dict[int, Parts] = defaultdict(dict)
    for (u, v), part in sorted(parts.items()):
        found[max(leader[u], leader[v])][u, v] = part
    return list(found.values())


def _largest_segments(
    parts: Parts, first: int, last: int
) -> list[tuple[int, int, tuple[tuple[int, int], ...]]]:
    """The largest proper segments (first, last, edges) of more than one part.

    Two vertices bound a segment if without them something comes apart from both ends.
    So: take each vertex away and look for the cut vertices of what is left.
    """
    whole = networkx.Graph([*parts, (first, last)])
    found: dict[tuple[int, int], set[int]] = defaultdict(set)
    for gone in whole:
        rest = whole.copy()
        rest.remove_node(gone)
        for cut in networkx.articulation_points(rest):
            beside = networkx.restricted_view(rest, [cut], [])
            for cluster in networkx.connected_components(beside):
                if cluster.isdisjoint((first, last)):
                    found[min(gone, cut), max(gone, cut)] |= cluster
    taken: set[int] = set()
    chosen: list[tuple[int, int, tuple[tuple[int, int], ...]]] = []
    for (u, v), inside in sorted(found.items(), key=lambda f: (-len(f[1]), f[0])):
        if (u, v) == (first, last) or taken & inside:
            continue
        taken |= inside
        bounds = inside | {u, v}
        edges = [e for e in parts if e[0] in bounds and e[1] in bounds]
        chosen.append((u, v, tuple(sorted(edges))))
    return chosen


def _groups(
    ends: list[tuple[int, int]],
    parts: tuple[Segment, ...],
    inner: tuple[int, ...],
    outer: set[int],
) -> tuple[Group, ...]:
    """Groups of joints with one producer or one reader among the joints' parts.

    Such a joint need not be kept: what it is made of, itself and what is made of it
    can be one stretch. Joins (one reader) are tried alone, then together with forks.
    """
    out, into = Counter(u for u, _ in ends), Counter(v for _, v in ends)
    joins = {v for v in out if out[v] == 1 and v not in outer}
    forks = {v for v in into if into[v] == 1 and v not in outer}
    fine = _clusters(joins, ends, parts, inner, ())
    return _clusters(joins | forks, ends, parts, inner, fine)


def _clusters(
    members: set[int],
    ends: list[tuple[int, int]],
    parts: tuple[Segment, ...],
    inner: tuple[int, ...],
    finer: tuple[Group, ...],
) -> tuple[Group, ...]:
    leader = _connected(members, ends)
    joints: dict[int, list[int]] = defaultdict(list)
    touching: dict[int, list[int]] = defaultdict(list)
    smaller: dict[int, list[Group]] = defaultdict(list)
    for v, key in leader.items():
        joints[key].append(v)
    for i, (u, v) in enumerate(ends):
        if u in members or v in members:
            touching[leader[u if u in members else v]].append(i)
    for group in finer:
        smaller[leader[group.joints[0]]].append(group)
    return tuple(
        Group(
            tuple(vs),
            tuple(touching[key]),
            sum(inner[v] for v in vs)
            + sum(parts[i].inner_bytes for i in touching[key]),
            tuple(smaller[key]),
        )
        for key, vs in joints.items()
    )

"""The least bytes to keep on a division tree when no stretch may exceed a bound.

For one bound this is a walk over the tree: what fits under the bound is recomputed as
one stretch, what does not is divided. The bounds worth asking for are the weights that
stretches can have; the kept bytes fall as the bound grows, which prunes the search.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from itertools import accumulate, combinations

from lowtide.planners._feng.division import Group, Segment


@dataclass(frozen=True, slots=True)
class Cover:
    """What to keep: its bytes, the largest stretch left, and the vertices."""

    kept_bytes: int
    stretch_bytes: int
    vertices: tuple[int, ...] = ()

    @property
    def total_bytes(self) -> int:
        """The objective: kept bytes and the largest recomputed stretch."""
        return self.kept_bytes + self.stretch_bytes


class Covering:
    """All covers of one division tree."""

    def __init__(self, tree: Segment, kept_bytes: tuple[int, ...]) -> None:
        self.tree = tree
        self.kept = kept_bytes
        self._known: dict[int, Cover] = {}

    def cover(self, bound_bytes: int) -> Cover:
        """The cover with the fewest kept bytes and no stretch above the bound."""
        if bound_bytes not in self._known:
            walk = _Walk(self.kept, bound_bytes)
            self._known[bound_bytes] = walk.segment(self.tree)
        return self._known[bound_bytes]

    def bounds(self) -> list[int]:
        """Every weight that a stretch of the tree can have, rising."""
        found = {0}
        stack: list[Segment | Group] = [self.tree]
        while stack:
            node = stack.pop()
            found.add(node.inner_bytes)
            if isinstance(node, Group):
                stack += node.smaller
                continue
            stack += (*node.parts, *node.groups)
            if node.aside is not None:
                stack += (node.aside.body, *node.aside.loose)
            if node.shape == "linear":
                pairs = combinations(_stops(node), 2)
                found.update(later[0] - earlier[1] for earlier, later in pairs)
        return sorted(found)

    def best(self) -> Cover:
        bounds = self.bounds()

        def better(*covers: Cover) -> Cover:
            return min(covers, key=lambda c: c.total_bytes)

        least = better(self.cover(bounds[0]), self.cover(bounds[-1]))
        stack = [(0, len(bounds) - 1)]
        while stack:
            low, high = stack.pop()
            # Between the two, a bound costs at least itself and the kept bytes above.
            floor = bounds[min(low + 1, high)] + self.cover(bounds[high]).kept_bytes
            if high - low < 2 or floor >= least.total_bytes:
                continue
            middle = (low + high) // 2
            least = better(least, self.cover(bounds[middle]))
            stack += [(low, middle), (middle, high)]
        return least

    def distinct(self, most: int) -> list[Cover]:
        """Up to `most` covers with different vertices, the widest brackets first."""
        bounds = self.bounds()
        found = {
            cover.vertices: cover
            for cover in (self.best(), self.cover(bounds[0]), self.cover(bounds[-1]))
        }
        queue = deque([(0, len(bounds) - 1)])
        while queue and len(found) < most:
            low, high = queue.popleft()
            ends = self.cover(bounds[low]), self.cover(bounds[high])
            if high - low < 2 or ends[0].vertices == ends[1].vertices:
                continue
            middle = (low + high) // 2
            cover = self.cover(bounds[middle])
            found.setdefault(cover.vertices, cover)
            queue += [(low, middle), (middle, high)]
        return list(found.values())


def _stops(node: Segment) -> list[tuple[int, int]]:
    """For each stop of a linear segment, the weight before it and up to its end."""
    stops = zip(node.parts, (*node.joint_bytes, 0), strict=True)
    steps = [x for part, joint in stops for x in (part.inner_bytes, joint)]
    sums = list(accumulate(steps))
    return [(0, 0), *zip(sums[::2], sums[1::2], strict=True)]


class _Walk:
    """One walk over the tree under one bound."""

    def __init__(self, kept: tuple[int, ...], bound: int) -> None:
        self.kept, self.bound = kept, bound

    def segment(self, node: Segment) -> Cover:
        if node.inner_bytes <= self.bound:
            return Cover(0, node.inner_bytes)
        if node.shape == "linear":
            return self.linear(node)
        found = self.divided(node)
        aside = node.aside
        if aside is None or any(
            part.inner_bytes > self.bound and part.first != node.first
            for part in aside.loose
        ):
            return found
        parts = [self.segment(part) for part in (aside.body, *aside.loose)]
        return min(found, self.all_of(parts, aside.kept), key=lambda c: c.kept_bytes)

    def all_of(self, parts: list[Cover], vertices: tuple[int, ...]) -> Cover:
        """The parts, and these vertices kept between them."""
        own = sum(self.kept[v] for v in vertices)
        return Cover(
            own + sum(part.kept_bytes for part in parts),
            max(part.stretch_bytes for part in parts),
            (*vertices, *(v for part in parts for v in part.vertices)),
        )

    def linear(self, node: Segment) -> Cover:
        """Shortest path over the stops; a sliding window holds the allowed ones."""
        stops = _stops(node)
        weights = [0, *(self.kept[v] for v in node.joints), 0]
        best = [0]
        # For each stop, the one before it on the path, and what lies between them.
        came = [(-1, Cover(0, 0))]
        window: deque[int] = deque()
        for j in range(1, len(stops)):
            i = j - 1
            while window and best[window[-1]] >= best[i]:
                window.pop()
            window.append(i)
            while window and stops[j][0] - stops[window[0]][1] > self.bound:
                window.popleft()
            if window:
                # The part before j fits, so everything in the window is one stretch.
                source = window[0]
                between = Cover(0, stops[j][0] - stops[source][1])
            else:
                source, between = i, self.segment(node.parts[i])
            best.append(best[source] + between.kept_bytes + weights[j])
            came.append((source, between))
        vertices: list[int] = []
        stretch, j = 0, len(stops) - 1
        while j > 0:
            j, between = came[j]
            stretch = max(stretch, between.stretch_bytes)
            vertices += (*between.vertices, *node.joints[max(0, j - 1) : j])
        return Cover(best[-1], stretch, tuple(vertices))

    def divided(self, node: Segment) -> Cover:
        """A branch, or a rigid segment with those groups of joints that fit."""
        kept = set(node.joints)
        whole: set[int] = set()
        parts: list[Cover] = []
        pending = list(node.groups)
        while pending:
            group = pending.pop()
            if group.inner_bytes <= self.bound:
                parts.append(Cover(0, group.inner_bytes))
                kept.difference_update(group.joints)
                whole.update(group.touching)
            else:
                pending += group.smaller
        parts += [self.segment(p) for i, p in enumerate(node.parts) if i not in whole]
        return self.all_of(parts, tuple(sorted(kept)))

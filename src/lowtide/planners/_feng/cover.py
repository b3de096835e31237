"""The least bytes to keep on a division tree when no stretch may exceed a bound.

For one bound this is a walk over the tree: what fits under the bound is recomputed as
one stretch, what does not is divided. The bounds worth asking for are the weights that
stretches can have; the kept bytes fall as the bound grows, which prunes the search.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from itertools import accumulate

from lowtide.planners._feng.division import Segment


@dataclass(frozen=True, slots=True)
class Cover:
    """What to keep: its bytes, the largest stretch left, and the vertices."""

    kept_bytes: int
    stretch_bytes: int
    vertices: tuple[int, ...]

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
            cost, vertices = walk.segment(self.tree)
            assert cost is not None
            self._known[bound_bytes] = Cover(cost, walk.largest(self.tree), vertices)
        return self._known[bound_bytes]

    def bounds(self) -> list[int]:
        """Every weight that a stretch of the tree can have, rising."""
        found = {0}
        stack = [self.tree]
        while stack:
            node = stack.pop()
            found.add(node.inner_bytes)
            stack.extend(node.parts)
            groups = list(node.groups)
            while groups:
                group = groups.pop()
                found.add(group.inner_bytes)
                groups.extend(group.smaller)
            if node.aside is not None:
                stack.append(node.aside.body)
                stack.extend(node.aside.loose)
            if node.shape == "linear":
                ends = _ends(node)
                found.update(
                    ends[j][0] - ends[i][1]
                    for i in range(len(ends))
                    for j in range(i + 1, len(ends))
                )
        return sorted(found)

    def best(self) -> Cover:
        """The cover with the smallest objective."""
        bounds = self.bounds()
        least = min(
            (self.cover(bounds[i]) for i in (0, len(bounds) - 1)),
            key=lambda c: c.total_bytes,
        )
        stack = [(0, len(bounds) - 1)]
        while stack:
            low, high = stack.pop()
            # Between the two, a bound costs at least itself and the kept bytes above.
            floor = bounds[min(low + 1, high)] + self.cover(bounds[high]).kept_bytes
            if high - low < 2 or floor >= least.total_bytes:
                continue
            middle = (low + high) // 2
            least = min(least, self.cover(bounds[middle]), key=lambda c: c.total_bytes)
            stack += [(low, middle), (middle, high)]
        return least

    def distinct(self, most: int) -> list[Cover]:
        """Up to `most` covers with different vertices, the widest brackets first."""
        bounds = self.bounds()
        found: dict[tuple[int, ...], Cover] = {}

        def add(cover: Cover) -> None:
            found.setdefault(cover.vertices, cover)

        add(self.best())
        add(self.cover(bounds[0]))
        add(self.cover(bounds[-1]))
        queue = deque([(0, len(bounds) - 1)])
        while queue and len(found) < most:
            low, high = queue.popleft()
            ends = self.cover(bounds[low]), self.cover(bounds[high])
            if high - low < 2 or ends[0].vertices == ends[1].vertices:
                continue
            middle = (low + high) // 2
            add(self.cover(bounds[middle]))
            queue += [(low, middle), (middle, high)]
        return list(found.values())


def _ends(node: Segment) -> list[tuple[int, int]]:
    """For each stop of a linear segment, the weight before it and up to its end."""
    stops = zip(node.parts, (*node.joint_bytes, 0), strict=True)
    steps = [x for part, joint in stops for x in (part.inner_bytes, joint)]
    sums = list(accumulate(steps))
    return [(0, 0), *zip(sums[::2], sums[1::2], strict=True)]


Found = tuple[int | None, tuple[int, ...]]
_NOTHING: Found = (0, ())


class _Walk:
    """One walk over the tree under one bound: kept bytes and kept inner vertices."""

    def __init__(self, kept: tuple[int, ...], bound: int) -> None:
        self.kept, self.bound = kept, bound
        self.used = 0

    def largest(self, tree: Segment) -> int:
        """The largest stretch that the walk left whole; the tree itself if it fits."""
        return self.used if tree.inner_bytes > self.bound else tree.inner_bytes

    def segment(self, node: Segment) -> Found:
        if node.inner_bytes <= self.bound:
            self.used = max(self.used, node.inner_bytes)
            return _NOTHING
        if node.shape == "linear":
            return self.linear(node)
        if node.shape == "branch":
            return self.all_of([self.segment(p) for p in node.parts])
        before = self.used
        found = self.rigid(node)
        if node.aside is not None:
            used, self.used = self.used, before
            other = self.aside(node)
            if other[0] is not None and (found[0] is None or other[0] < found[0]):
                return other
            self.used = used
        return found

    def all_of(self, found: list[Found], vertices: tuple[int, ...] = ()) -> Found:
        total = sum(self.kept[v] for v in vertices)
        every = list(vertices)
        for cost, more in found:
            if cost is None:
                return None, ()
            total += cost
            every += more
        return total, tuple(every)

    def linear(self, node: Segment) -> Found:
        """Shortest path over the stops; a sliding window holds the allowed ones."""
        ends = _ends(node)
        weights = [0, *(self.kept[v] for v in node.joints), 0]
        best: list[int] = [0]
        came = [-1]
        inside: list[Found | None] = [None]
        levels = [0]
        window: deque[int] = deque()
        for j in range(1, len(ends)):
            i = j - 1
            while window and best[window[-1]] >= best[i]:
                window.pop()
            window.append(i)
            while window and ends[j][0] - ends[window[0]][1] > self.bound:
                window.popleft()
            found: Found | None = None
            level = 0
            if window:
                # The part before j fits, so everything in the window is one stretch.
                source = window[0]
                cost = best[source]
            else:
                before, self.used = self.used, 0
                found = self.segment(node.parts[i])
                level, self.used = self.used, before
                if found[0] is None:
                    return None, ()
                source, cost = i, best[i] + found[0]
            best.append(cost + weights[j])
            came.append(source)
            inside.append(found)
            levels.append(level)
        return best[-1], self.trace(node, ends, came, inside, levels)

    def trace(
        self,
        node: Segment,
        ends: list[tuple[int, int]],
        came: list[int],
        inside: list[Found | None],
        levels: list[int],
    ) -> tuple[int, ...]:
        vertices: list[int] = []
        j = len(ends) - 1
        while j > 0:
            found = inside[j]
            if found is not None:
                vertices += found[1]
                self.used = max(self.used, levels[j])
            else:
                self.used = max(self.used, ends[j][0] - ends[came[j]][1])
            j = came[j]
            if j > 0:
                vertices.append(node.joints[j - 1])
        return tuple(vertices)

    def rigid(self, node: Segment) -> Found:
        kept = set(node.joints)
        whole: set[int] = set()
        pending = list(node.groups)
        while pending:
            group = pending.pop()
            if group.inner_bytes <= self.bound:
                self.used = max(self.used, group.inner_bytes)
                kept -= set(group.joints)
                whole |= set(group.touching)
            else:
                pending += group.smaller
        parts = [self.segment(p) for i, p in enumerate(node.parts) if i not in whole]
        return self.all_of(parts, tuple(sorted(kept)))

    def aside(self, node: Segment) -> Found:
        aside = node.aside
        assert aside is not None
        found = [self.segment(aside.body)]
        for part in aside.loose:
            if part.inner_bytes > self.bound and part.first != node.first:
                return None, ()
            found.append(self.segment(part))
        return self.all_of(found, aside.kept)

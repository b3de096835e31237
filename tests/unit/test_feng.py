"""Feng and Huang's planner against exhaustive search over its family."""

from __future__ import annotations

import itertools
import random
from dataclasses import replace

import pytest

from lowtide.errors import BudgetTooSmallError
from lowtide.planners import feng
from lowtide.planners._feng.cover import Covering
from lowtide.planners._feng.division import Segment, divide
from lowtide.planners._feng.vertices import forward_vertices
from lowtide.step.graph import StepGraph
from lowtide.step.schedule import from_kept, with_frees
from lowtide.step.simulate import simulate
from tests import graphs

Edges = tuple[tuple[int, int], ...]


def objective(edges: Edges, kept_bytes, inner_bytes, kept) -> int:
    """Kept bytes and the heaviest connected stretch of what is not kept."""
    last = len(kept_bytes) - 1
    free = set(range(1, last)) - set(kept)
    heaviest = 0
    while free:
        stretch = {free.pop()}
        while more := {
            v
            for e in edges
            for v in e
            if v in free and (e[0] in stretch or e[1] in stretch)
        }:
            stretch |= more
            free -= more
        heaviest = max(heaviest, sum(inner_bytes[v] for v in stretch))
    return sum(kept_bytes[v] for v in kept) + heaviest


def family(edges: Edges, first: int, last: int) -> set[frozenset[int]]:
    """Every kept set of a segment that the paper's rules allow, by definition."""
    nothing: frozenset[int] = frozenset()
    inner = {v for e in edges for v in e} - {first, last}
    if not inner:
        return {nothing}
    cuts = [v for v in sorted(inner) if splits(edges, v)]
    if cuts:
        stops = [first, *cuts, last]
        found = set()
        for size in range(len(cuts) + 1):
            for chosen in itertools.combinations(cuts, size):
                found |= choices(edges, [first, *chosen, last], stops, chosen)
        return found
    branches = components(edges, inner, first, last)
    if len(branches) > 1:
        return {nothing} | product(
            [(part, first, last) for part in branches], frozenset()
        )
    parts = cover(edges, first, last)
    joints = frozenset(v for _, u, w in parts for v in (u, w)) - {first, last}
    return {nothing} | product(parts, joints)


def splits(edges: Edges, v: int) -> bool:
    """Whether what leads to v and what follows from v hold all edges."""
    up, down = {v}, {v}
    for u, w in sorted(edges, reverse=True):
        if w in up:
            up.add(u)
    for u, w in sorted(edges):
        if u in down:
            down.add(w)
    return all((u in up and w in up) or (u in down and w in down) for u, w in edges)


def choices(edges: Edges, kept, stops, chosen) -> set[frozenset[int]]:
    """Between kept stops: several parts stay whole, one alone may be divided."""
    options = []
    for a, b in itertools.pairwise(kept):
        alone = stops.index(b) == stops.index(a) + 1
        inside = tuple(e for e in edges if a <= e[0] and e[1] <= b)
        options.append(family(inside, a, b) if alone else {frozenset()})
    return {frozenset(chosen).union(*pick) for pick in itertools.product(*options)}


def product(parts, joints: frozenset[int]) -> set[frozenset[int]]:
    options = [family(*part) for part in parts]
    return {joints.union(*pick) for pick in itertools.product(*options)}


def components(edges: Edges, inner, first, last) -> list[Edges]:
    left, found = set(edges), []
    while left:
        part = {min(left)}
        while more := {
            e for e in left - part if any(set(e) & set(p) & inner for p in part)
        }:
            part |= more
        left -= part
        found.append(tuple(sorted(part)))
    return found


def cover(edges: Edges, first: int, last: int):
    """Largest independent segments of all pairs, by closure, taken greedily."""
    vertices = {v for e in edges for v in e}
    found = []
    for a, b in itertools.combinations(sorted(vertices), 2):
        inside = {v for v in vertices if a < v < b}
        while bad := {
            v for e in edges for v in e if v in inside and not set(e) <= inside | {a, b}
        }:
            inside -= bad
        bounds = inside | {a, b}
        part = tuple(e for e in edges if set(e) <= bounds)
        if part and (a, b) != (first, last):
            found.append((part, a, b))
    chosen, taken = [], set()
    for part, a, b in sorted(found, key=lambda f: -len(f[0])):
        if not taken & set(part):
            chosen.append((part, a, b))
            taken |= set(part)
    assert taken == set(edges)
    return chosen


def random_graph(seed: int) -> tuple[Edges, tuple[int, ...], tuple[int, ...]]:
    """A graph between a source and a target: from chains to tangles."""
    rng = random.Random(seed)
    n = rng.randint(1, 8)
    reach = rng.choice((1, 2, 2, 3, 3, 8))
    edges = set()
    for v in range(1, n + 1):
        low = max(0, v - reach)
        edges |= {(rng.randint(low, v - 1), v) for _ in range(rng.randint(1, 3))}
    tails = {u for u, _ in edges}
    edges |= {(v, n + 1) for v in range(n + 1) if v not in tails}
    inner = (0, *(rng.choice((0, 1, 3, rng.randint(1, 40))) for _ in range(n)), 0)
    kept = tuple(b + rng.choice((0, 0, 0, 2)) for b in inner)
    return tuple(sorted(edges)), (0, *kept[1:-1], 0), inner


def as_published(node: Segment) -> Segment:
    """The division tree without what the paper does not have."""
    parts = tuple(map(as_published, node.parts))
    return replace(node, parts=parts, groups=(), aside=None)


@pytest.mark.parametrize("start", range(0, 1200, 200))
def test_objective_equals_exhaustive_search(start: int) -> None:
    shapes = set()
    for seed in range(start, start + 200):
        edges, kept, inner = random_graph(seed)
        tree = as_published(divide(edges, inner))
        best = Covering(tree, kept).best()
        expected = min(
            objective(edges, kept, inner, k) for k in family(edges, 0, len(kept) - 1)
        )
        assert best.total_bytes == expected, seed
        assert objective(edges, kept, inner, best.vertices) == expected, seed
        shapes.add(tree.shape)
    assert shapes >= {"linear", "branch", "rigid"}


def test_every_bound_gives_the_fewest_kept_bytes() -> None:
    for seed in range(150):
        edges, kept, inner = random_graph(seed)
        covering = Covering(as_published(divide(edges, inner)), kept)
        allowed = [
            (sum(kept[v] for v in k), objective(edges, kept, inner, k))
            for k in family(edges, 0, len(kept) - 1)
        ]
        for bound in covering.bounds():
            least = min(cost for cost, total in allowed if total - cost <= bound)
            assert covering.cover(bound).kept_bytes == least, (seed, bound)


def test_added_divisions_only_help_and_stay_real() -> None:
    helped = 0
    for seed in range(400):
        edges, kept, inner = random_graph(seed)
        paper = Covering(as_published(divide(edges, inner)), kept).best()
        best = Covering(divide(edges, inner), kept).best()
        real = objective(edges, kept, inner, best.vertices)
        everything = range(1, len(kept) - 1)
        floor = min(
            objective(edges, kept, inner, k)
            for size in range(len(kept) - 1)
            for k in itertools.combinations(everything, size)
        )
        assert floor <= real == best.total_bytes <= paper.total_bytes, seed
        helped += best.total_bytes < paper.total_bytes
    assert helped > 20


def layers_that_read_a_mask(seed: int):
    """Three layers; each joins the one before with something made of one mask."""
    rng = random.Random(seed)
    mask, stream = 1, 2
    edges = [(0, mask), (0, stream)]
    for layer in range(3):
        side, joined = 3 + 2 * layer, 4 + 2 * layer
        edges += [(mask, side), (side, joined), (stream, joined)]
        stream = joined
    edges.append((stream, 9))
    inner = (0, rng.randint(1, 4), *(rng.randint(1, 9) for _ in range(7)), 0)
    return tuple(sorted(edges)), inner, inner


def test_what_every_layer_reads_is_set_aside() -> None:
    helped = 0
    for seed in range(60):
        edges, kept, inner = layers_that_read_a_mask(seed)
        tree = divide(edges, inner)
        assert tree.parts[0].aside is not None
        assert tree.parts[0].aside.kept == (1,)
        best = Covering(tree, kept).best()
        assert objective(edges, kept, inner, best.vertices) == best.total_bytes, seed
        for bound in Covering(tree, kept).bounds():
            cover = Covering(tree, kept).cover(bound)
            real = objective(edges, kept, inner, cover.vertices)
            assert real <= cover.total_bytes <= cover.kept_bytes + bound, seed
        helped += 1 in best.vertices
    assert helped > 10


# A residual block between two layers. All sizes 8 but the sum's, which the backward
# does not read. Keeping a and s: 16 kept, and the stretch {b, c} holds 16: 32 in all.
# Keeping only s: 8 + {a, b, c} 24 = 32. Keeping nothing: 40 - 8 (l is an output) = 32.
RESIDUAL = """
    resident x 8
    a = f(x)      8 bytes 1 s
    b = g(a)      8 bytes 1 s
    c = h(b)      8 bytes 1 s
    s = add(a, c) 8 bytes 1 s
    l = loss(s)   4 bytes 1 s
    turn(l) -> d  4 bytes
    ds = lb(s, d) 8 bytes 1 s
    dc = hb(c, ds) 8 bytes 1 s
    db = gb(b, dc) 8 bytes 1 s
    da = fb(a, db) 8 bytes 1 s
    -> l, da
"""


def test_parse_of_a_residual_block() -> None:
    graph = forward_vertices(StepGraph.from_text(RESIDUAL))
    # source, a, b, c, s, l, target; l weighs nothing: it is held anyway.
    assert graph.kept_bytes == (0, 8, 8, 8, 8, 0, 0)
    assert graph.inner_bytes == (0, 8, 8, 8, 8, 0, 0)
    assert graph.edges == ((0, 1), (1, 2), (2, 3), (1, 4), (3, 4), (4, 5), (5, 6))
    tree = divide(graph.edges, graph.inner_bytes)
    assert tree.shape == "linear"
    assert tree.joints == (1, 4, 5)
    assert [p.shape for p in tree.parts] == ["edge", "branch", "edge", "edge"]
    assert Covering(tree, graph.kept_bytes).best().total_bytes == 32


def test_parse_folds_side_results_and_frees_what_must_stay() -> None:
    step = StepGraph.from_text("""
        resident x 8
        a, m = drop(x)       8 2 bytes 1 s random
        a    = again(x, m)   8 bytes   1 s standby
        b, t = norm(a)       8 1 bytes 1 s
        u    = side(b)       3 bytes   1 s
        c    = h(b)          8 bytes   1 s
        turn(c) -> d         8 bytes
        e = back(d, a, m, t, u, b, c)  8 bytes 1 s
        -> e
    """)
    graph = forward_vertices(step)
    # The mask m cannot be made again: it weighs nothing. t goes with b, and so does
    # u, which nothing in the forward reads.
    assert graph.inner_bytes == (0, 8, 12, 8, 0)
    names = [{step.storages[s].name for s in group} for group in graph.storages]
    assert names == [set(), {"a", "m"}, {"b", "t", "u"}, {"c"}, set()]


@pytest.mark.parametrize("step", graphs.GRAPHS, ids=lambda s: s.name)
def test_plans_fit_are_from_the_family_and_never_rise(step: StepGraph) -> None:
    lowest = feng.plan(step)
    seconds = float("inf")
    for share in (0.3, 0.5, 0.7, 0.9, 1.0):
        budget = int(share * step.baseline_peak_bytes)
        if budget < lowest.peak_bytes:
            with pytest.raises(BudgetTooSmallError) as error:
                feng.plan(step, budget)
            assert error.value.floor_bytes == lowest.peak_bytes
            continue
        plan = feng.plan(step, budget)
        assert simulate(step, plan.schedule).peak_bytes == plan.peak_bytes <= budget
        assert plan.schedule == from_kept(step, plan.kept)
        assert plan.seconds <= seconds
        seconds = plan.seconds
    assert seconds == step.baseline_seconds
    assert feng.plan(step).schedule == lowest.schedule


def test_a_dense_block_keeps_the_growth_and_not_the_concatenations() -> None:
    step = graphs.dense(8)
    graph = forward_vertices(step)
    tree = divide(graph.edges, graph.inner_bytes)
    paper = Covering(as_published(tree), graph.kept_bytes).best()
    best = Covering(tree, graph.kept_bytes).best()
    kept = [s for v in best.vertices for s in graph.storages[v]]
    assert best.total_bytes < 0.8 * paper.total_bytes
    cats = {s.id for s in step.storages if s.name.startswith("cat")}
    held = sum(step.sizes[s] for s in cats.intersection(kept))
    assert held < 0.3 * sum(step.sizes[s] for s in cats)
    assert feng.plan(step).peak_bytes < 0.7 * step.baseline_peak_bytes


def test_a_step_without_turn_is_left_alone() -> None:
    step = StepGraph.from_text("resident x 8\na = f(x) 8 bytes 1 s\n-> a")
    assert feng.plan(step).schedule == with_frees(step, step.baseline)

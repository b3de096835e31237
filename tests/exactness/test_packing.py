"""Masks and indices that are packed between forward and backward: the same bits."""

import itertools
from dataclasses import replace

import pytest
import torch
from torch import nn
from torch._subclasses import FakeTensorMode

import lowtide
from lowtide.engine.forms import packing
from lowtide.engine.planning.decide import Planning
from lowtide.planners import from_kept, make_plan, saved_by_baseline

aten = torch.ops.aten


def with_cost_of_one(step, *, free):
    """Every op costs the same, but for those of this name or target."""
    costs = (float(free not in (op.name, op.target)) for op in step.ops)
    ops = (replace(op, seconds=t) for op, t in zip(step.ops, costs, strict=True))
    return replace(step, ops=tuple(ops))


@pytest.mark.parametrize("count", [1, 7, 8, 9, 8 * packing._BLOCK + 3])
def test_bits_come_back(count):
    mask = torch.rand(count) > 0.5
    packed = packing.pack_bits(mask)
    assert packed.numel() == -(-count // 8)
    assert torch.equal(packing.unpack_bits(packed, mask.shape, mask.stride()), mask)


def test_bits_come_back_in_their_layout():
    mask = (torch.rand(3, 5, 7, 9) > 0.5).to(memory_format=torch.channels_last)
    layout = (mask.shape, mask.stride())
    again = packing.unpack_bits(packing.pack_bits(mask), *layout)
    assert torch.equal(again, mask)
    assert again.stride() == mask.stride()


def test_a_dry_run_leaves_nothing_for_real_ones():
    image, window = torch.randn(1, 2, 6, 11), (11, (2, 2), (2, 2), (0, 0), (1, 1))
    _, indices = aten.max_pool2d_with_indices(image, (2, 2))
    layout = (tuple(indices.shape), tuple(indices.stride()))
    with FakeTensorMode() as mode:
        fake = packing.pack_offsets(mode.from_tensor(indices), *window)
        packing.unpack_offsets(fake, *layout, *window)
    packed = packing.pack_offsets(indices, *window)
    assert torch.equal(packing.unpack_offsets(packed, *layout, *window), indices)


def test_indices_of_maxima_come_back_from_one_byte_each():
    tried = 0
    kernels = ((2, 2), (3, 3), (3, 2))
    for kernel, stride, padding, dilation, ceil, last in itertools.product(
        kernels, (1, 2, 3), (0, 1), (1, 2), (False, True), (False, True)
    ):
        image = torch.randn(2, 5, 13, 17)
        image[0, 0, :4], image[0, 1, :4] = -torch.inf, torch.nan
        if last:
            image = image.to(memory_format=torch.channels_last)
        places = [(stride,) * 2, (padding,) * 2, (dilation,) * 2]
        _, indices = aten.max_pool2d_with_indices(image, kernel, *places, ceil)
        window = (17, kernel, *places)
        packed = packing.pack_offsets(indices, *window)
        layout = (tuple(indices.shape), tuple(indices.stride()))
        again = packing.unpack_offsets(packed, *layout, *window)
        assert packed.numel() == indices.numel() == packed.nbytes
        assert torch.equal(again, indices)
        assert again.stride() == indices.stride()
        tried += 1
    assert tried == 144


class Drops(nn.Module):
    """Dropout whose result and whose mask the backward reads."""

    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Linear(64, 64), nn.Linear(64, 8)

    def forward(self, x):
        x = nn.functional.dropout(self.first(x).tanh(), 0.3)
        return self.second(x * x).square().mean()


def pools():
    return nn.Sequential(
        nn.Conv2d(3, 8, 3), nn.MaxPool2d(3, 2, 1), nn.Tanh(), nn.AdaptiveMaxPool2d(4)
    )


class Picks(nn.Module):
    """Indices of maxima along a dimension, saved for the backward."""

    def forward(self, x):
        return x.max(dim=1).values.square().sum()


CASES = {
    "dropout": (Drops, (256, 64), 1),
    "pools": (pools, (8, 3, 33, 33), 1),
    "maxima": (Picks, (1024, 7), 1),
}


def packed_plan(step):
    """A plan that keeps everything but what can be unpacked."""
    unpacks = {op.id for op in step.ops if op.target == "lowtide::unpack"}
    small = {s for i in unpacks for s in step.ops[i].reads}
    large = {s for i in unpacks for s in step.ops[i].writes}
    schedule = from_kept(step, (set(saved_by_baseline(step)) | small) - large)
    plan = make_plan(step, schedule, planner="test")
    assert unpacks
    assert unpacks <= set(plan.ops)
    return plan, large, small


@pytest.mark.parametrize("name", CASES)
def test_what_is_unpacked_has_the_same_bits(name):
    make, shape, _ = CASES[name]
    torch.manual_seed(0)
    model, batch = make(), torch.randn(shape, requires_grad=name == "maxima")
    step = lowtide.profile(model, batch, how="estimate")
    # Everything costs the same, so that of all ways to make it again unpacking is one.
    step = with_cost_of_one(step, free="lowtide::unpack")
    plan, large, small = packed_plan(step)
    assert large.isdisjoint(plan.kept)
    assert small <= set(plan.kept)
    sizes = step.sizes
    assert 7 * sum(sizes[s] for s in small) <= sum(sizes[s] for s in large)
    assert lowtide.verify(model, batch, plan=plan).ok


def test_dropout_is_applied_again_without_drawing():
    torch.manual_seed(0)
    model, batch = Drops(), torch.randn(256, 64)
    step = lowtide.profile(model, batch, how="estimate")
    dropped = next(op for op in step.ops if "native_dropout" in op.target)
    forms = [op for op in step.ops if op.source == dropped.source and op.standby]
    masked = next(op for op in forms if op.reads[-1] in dropped.writes[:2])
    step = with_cost_of_one(step, free=masked.name)
    kept = set(saved_by_baseline(step)).difference(masked.writes)
    plan = make_plan(step, from_kept(step, kept), planner="test")
    assert masked.id in plan.ops
    assert lowtide.verify(model, batch, plan=plan).ok


def test_an_unwanted_packed_copy_is_never_made(monkeypatch):
    def fail(*_):
        raise AssertionError("packed for nobody")

    monkeypatch.setattr(packing, "pack_bits", fail)
    model = Drops()
    lowtide.optimize(model, budget="1 GiB", cache=False)
    model(torch.randn(256, 64)).backward()


def test_nothing_is_packed_where_one_graph_serves_all_sizes(monkeypatch):
    """Unpacking makes the sizes that it was captured with."""
    offered = []
    search = Planning.search

    def counted(self, step, *asked):
        offered.append(sum(op.target == "lowtide::unpack" for op in step.ops))
        return search(self, step, *asked)

    monkeypatch.setattr(Planning, "search", counted)
    model = Drops()
    lowtide.optimize(model, budget="1 GiB", cache=False)
    for size in (256, 320, 384):
        model(torch.randn(size, 64)).backward()
    assert offered[0] == 1
    assert offered[-1] == 0

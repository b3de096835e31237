"""Estimates: every op costs something, and device descriptions can be trusted."""

import pytest
import torch
from torch._subclasses import FakeTensorMode

from lowtide import models, profile
from lowtide.engine.capture.call import Call
from lowtide.engine.costs.devices import find_device, save_device
from lowtide.engine.costs.estimate import estimate
from lowtide.engine.costs.prices import costs
from lowtide.engine.costs.work import work_of
from lowtide.errors import InvalidArgumentError
from lowtide.step.analysis.summary import assumption

aten = torch.ops.aten
FAKE = FakeTensorMode()


def fake(*shape, dtype=torch.float32, device="cpu"):
    with FAKE:
        return torch.empty(*shape, dtype=dtype, device=device)


def call(target, *args):
    with FAKE:
        outputs = target(*args)
    return Call(target, args, {}, outputs, f"{target}{args}")


X, W = fake(4, 16, 8, 8), fake(32, 16, 3, 3)
SHAPE = ([1, 1], [1, 1], [1, 1], False, [0, 0], 1)
GRADIENT = fake(4, 32, 8, 8)
ROWS, PLACES = fake(64, 128), fake(64, dtype=torch.int64)
WORKS = {
    "mm": call(aten.mm.default, ROWS, fake(128, 256)),
    "conv": call(aten.convolution.default, X, W, None, *SHAPE),
    "conv_backward": call(
        aten.convolution_backward.default, GRADIENT, X, W, [32], *SHAPE, [True] * 3
    ),
    "layer_norm": call(
        aten.native_layer_norm.default, ROWS, [128], fake(128), fake(128), 1e-5
    ),
    "softmax": call(aten._softmax.default, ROWS, 1, False),
    "add": call(aten.add.Tensor, ROWS, ROWS),
    "gelu": call(aten.gelu.default, ROWS),
    "sum": call(aten.sum.dim_IntList, ROWS, [0]),
    "max_pool": call(aten.max_pool2d_with_indices.default, X, [2, 2]),
    "embedding": call(aten.embedding.default, fake(1000, 128), PLACES),
    "gather": call(aten.gather.default, ROWS, 1, fake(64, 2, dtype=torch.int64)),
    "clone": call(aten.clone.default, ROWS),
    "zeros": call(aten.zeros_like.default, ROWS),
    "dropout": call(aten.native_dropout.default, ROWS, 0.1, True),
    "sort": call(aten.sort.default, ROWS),
    "arange": call(aten.arange.default, 100),
}


@pytest.mark.parametrize("name", WORKS)
def test_no_op_is_free(name):
    work = work_of(WORKS[name])
    assert work.nbytes > 0
    for device in ("cpu", "h100"):
        described = find_device(device)
        cost = estimate(WORKS[name], described)
        assert cost.seconds > described.overhead_seconds
        assert cost.how == "estimate"


def test_products_are_counted_by_hand():
    # 64 x 128 times 128 x 256, a multiplication and an addition each.
    assert work_of(WORKS["mm"]).flops == 2 * 64 * 128 * 256
    # Each of 4 * 32 * 8 * 8 results takes 16 * 3 * 3 products.
    forward = 2 * 4 * 32 * 8 * 8 * 16 * 3 * 3
    assert work_of(WORKS["conv"]).flops == forward
    assert work_of(WORKS["conv_backward"]).flops == 2 * forward


def test_a_grouped_convolution_costs_its_groups_and_no_more():
    # One filter of 3 x 3 per channel, in both directions.
    x, weight = fake(2, 16, 8, 8), fake(16, 1, 3, 3)
    shape = ([1, 1], [1, 1], [1, 1], False, [0, 0], 16)
    mask = [True, True, False]
    backward = call(aten.convolution_backward.default, x, x, weight, None, *shape, mask)
    work = work_of(backward)
    assert work.work_class == "depthwise"
    assert work.flops == 2 * 2 * (2 * 16 * 8 * 8) * 9


def test_attention_is_counted_where_torch_counts_nothing():
    q = fake(2, 4, 32, 16)
    forward = call(
        aten._scaled_dot_product_flash_attention_for_cpu.default, q, q, q, 0.0, False
    )
    # Two products of 32 x 16 times 16 x 32 for each of 2 * 4 heads.
    assert work_of(forward).flops == 2 * (2 * 4) * 2 * 32 * 32 * 16
    causal = call(
        aten._scaled_dot_product_flash_attention_for_cpu.default, q, q, q, 0.0, True
    )
    assert work_of(causal).flops == work_of(forward).flops / 2


def test_an_embedding_moves_its_rows_and_not_its_table():
    # 64 rows of 128 floats read and written, and 64 places of 8 bytes.
    assert work_of(WORKS["embedding"]).nbytes == 2 * 64 * 128 * 4 + 64 * 8


def test_an_estimate_allocates_nothing_and_needs_no_device():
    huge = fake(1 << 20, 1 << 17, dtype=torch.bfloat16, device="cuda")  # 256 GiB
    found = costs([call(aten.neg.default, huge)], how="estimate", device="h100")
    # Twice 256 GiB at 0.75 of 3.35 TB/s.
    assert found[0].seconds == pytest.approx(2 * 2**38 / (0.75 * 3.35e12), rel=1e-3)


def test_half_precision_is_faster_than_single():
    device = find_device("a100-80gb")
    times = [
        estimate(
            call(aten.mm.default, *[fake(4096, 4096, dtype=d) for _ in range(2)]),
            device,
        ).seconds
        for d in (torch.bfloat16, torch.float32)
    ]
    assert times[0] < times[1] / 5


def test_a_dozen_devices_are_described_with_sources():
    expected = "a100-40gb a100-80gb h100 h200 b200 l4 l40s t4 v100 rtx4090 rtx3090 cpu"
    for name in expected.split():
        device = find_device(name)
        assert device.source
        assert device.memory_bytes > 1e10
        assert device.bandwidth_bytes_per_second > 1e9
        assert device.matmul_flops["float32"] > 1e10
    assert find_device("NVIDIA_H100").name == "h100"


def test_users_describe_their_own_devices(tmp_path, monkeypatch):
    monkeypatch.setenv("LOWTIDE_CACHE_DIR", str(tmp_path / "cache"))
    mine = tmp_path / "mine.toml"
    mine.write_text(
        '[tpu]\ntitle = "a toy"\nbandwidth_bytes_per_second = 1e9\n'
        "vector_flops = 1e9\noverhead_seconds = 0.5\nmatmul_flops = {float32 = 1e9}\n"
    )
    device = find_device(f"{mine}:tpu")
    assert estimate(WORKS["add"], device).seconds > 0.5
    assert save_device(device).parent == tmp_path / "cache"
    assert find_device("tpu") == device


def test_bad_descriptions_say_what_to_do(tmp_path):
    with pytest.raises(InvalidArgumentError, match="Use one of: a100-40gb"):
        find_device("a1000")
    broken = tmp_path / "x.toml"
    broken.write_text("[x]\nspeed = 1\n")
    with pytest.raises(InvalidArgumentError, match="cannot be used"):
        find_device(f"{broken}:x")
    broken.write_text("[x")
    with pytest.raises(InvalidArgumentError, match="cannot be read"):
        find_device(f"{broken}:x")


def test_a_step_priced_for_another_device_says_what_is_assumed():
    example = models.build_fake("mlp", batch=3, width=5)
    here, there = (
        profile(example.model, example.batch, loss=example.loss, how="estimate", **how)
        for how in ({}, {"device": "a100-80gb"})
    )
    assert (here.alignment_bytes, here.notes) == (64, ())
    # Its allocator hands out multiples of 512 bytes.
    assert there.alignment_bytes == 512
    assert all(size % 512 == 0 for size in there.sizes)
    assert there.baseline_peak_bytes > here.baseline_peak_bytes
    (note,) = there.notes
    assert "a100-80gb" in note
    assert "convolutions have no workspace" in note
    assert assumption(here) == ""
    assert note.startswith(assumption(there))
    assert "captured" in assumption(there)
    assert "profiled on such a device has that device's graph" in note

"""Costs of single ops: real arguments, clocks, scratch, and the cache on disk."""

import gc
import json
import logging
import multiprocessing

import pytest
import torch
from torch._subclasses import FakeTensorMode

from lowtide.engine.capture.call import Call
from lowtide.engine.costs import Cost, costs
from lowtide.engine.costs import prices as costs_module
from lowtide.engine.costs.cache import load_costs, store_costs
from lowtide.engine.costs.inputs import real_arguments, span_bytes
from lowtide.engine.costs.machine import release_free_memory, watch_peak
from lowtide.errors import InvalidArgumentError

aten = torch.ops.aten
CPU = torch.device("cpu")


def fake(*shape, dtype=torch.float32, device="cpu"):
    with FakeTensorMode():
        return torch.empty(*shape, dtype=dtype, device=device)


def call(target, *args, outputs=None, **kwargs):
    return Call(target, args, kwargs, outputs, f"{target}{args}{kwargs}")


@pytest.fixture
def cache_dir(tmp_path, monkeypatch):
    monkeypatch.setenv("LOWTIDE_CACHE_DIR", str(tmp_path))
    return tmp_path


def test_an_expanded_argument_takes_the_bytes_it_really_has():
    bias = fake(8).expand(1000, 8)
    (real, again), _ = real_arguments(call(aten.add.Tensor, bias, bias), CPU)
    assert real.shape == (1000, 8)
    assert real.stride() == (0, 1)
    assert real.untyped_storage().nbytes() == span_bytes(bias) == 32
    assert again is real  # the same tensor twice is one tensor


@pytest.mark.parametrize(
    ("target", "args", "place", "bound"),
    [
        (aten.embedding.default, (fake(7, 4), fake(50, dtype=torch.int64)), 1, 7),
        (
            aten.embedding_dense_backward.default,
            (fake(50, 4), fake(50, dtype=torch.int64), 9, -1, False),
            1,
            9,
        ),
        (aten.gather.default, (fake(6, 3), 1, fake(6, 90, dtype=torch.int64)), 2, 3),
        (
            aten.nll_loss_forward.default,
            (fake(64, 5), fake(64, dtype=torch.int64), None, 1, -100),
            1,
            5,
        ),
        (aten.index_select.default, (fake(4, 9), 1, fake(80, dtype=torch.int64)), 2, 9),
    ],
)
def test_indices_stay_within_what_they_point_into(target, args, place, bound):
    real, _ = real_arguments(call(target, *args), CPU)
    assert real[place].min() >= 0
    assert real[place].max() == bound - 1  # and reach all of it
    target(*real)


def test_values_are_ordinary_numbers():
    (x,), _ = real_arguments(call(aten.log.default, fake(100_000)), CPU)
    assert 0.5 <= x.min() < x.max() <= 1.5
    (mask,), _ = real_arguments(
        call(aten.any.default, fake(1000, dtype=torch.bool)), CPU
    )
    assert 300 < mask.sum() < 700


def test_measuring_leaves_the_random_numbers_alone():
    torch.manual_seed(5)
    before = torch.get_rng_state()
    drop = call(aten.native_dropout.default, fake(1000), 0.5, True)
    (cost,) = costs([drop], cache=False)
    assert cost.seconds > 0
    assert torch.equal(torch.get_rng_state(), before)


def test_larger_ops_take_longer_and_equal_ones_are_measured_once(monkeypatch):
    seen = []
    original = costs_module.measure_calls
    monkeypatch.setattr(
        costs_module,
        "measure_calls",
        lambda calls, *a, **k: (seen.extend(calls), original(calls, *a, **k)),
    )
    small = call(aten.mm.default, fake(8, 8), fake(8, 8))
    large = call(aten.mm.default, fake(512, 512), fake(512, 512))
    found = costs([small, large, small], cache=False)
    assert len(seen) == 2
    assert found[0] == found[2]
    assert found[1].seconds > 10 * found[0].seconds
    assert all(0 <= c.spread < 5 and c.how == "measure" for c in found)


@pytest.mark.skipif("not __import__('os').path.exists('/proc/self/clear_refs')")
def test_scratch_is_what_an_op_takes_beyond_its_results():
    x, mask = fake(1 << 22), fake(1 << 22, dtype=torch.bool)
    # Its kernel multiplies by the mask and by the scale, one after the other: between
    # them lies one array of the size of the result, and the mask as floats.
    target = aten.native_dropout_backward.default
    (cost,) = costs([call(target, x, mask, 2.0, outputs=x)], cache=False)
    assert 0.9 * 2**24 < cost.scratch_bytes < 2.2 * 2**24
    (cost,) = costs([call(aten.add.Tensor, x, x, outputs=x)], cache=False)
    assert cost.scratch_bytes == 0


def test_the_high_water_mark_sees_what_came_and_went():
    gc.collect()
    release_free_memory()  # or what goes during the watch hides what comes
    with watch_peak() as peak:
        torch.ones(1 << 24)
    if peak.nbytes:  # 0 where the system does not tell
        assert 0.9 * 2**26 < peak.nbytes < 1.2 * 2**26


def test_an_op_that_cannot_run_alone_is_estimated(caplog):
    wrong = call(aten.mm.default, fake(4, 4), fake(5, 5), outputs=fake(4, 5))
    with caplog.at_level(logging.WARNING, "lowtide.profile"):
        (cost,) = costs([wrong], cache=False)
    assert cost.how == "estimate"
    assert cost.seconds > 0
    assert "1 of 1 ops cannot run alone" in caplog.text


def test_a_second_profile_measures_nothing(cache_dir, monkeypatch):
    calls = [
        call(aten.add.Tensor, fake(n), fake(n), outputs=fake(n)) for n in (10, 20, 30)
    ]
    progress = []
    first = costs(calls, progress=lambda *now: progress.append(now))
    assert progress[0] == (0, 3)
    assert progress[-1] == (3, 3)
    monkeypatch.setattr(costs_module, "measure_calls", _nothing_to_do)
    assert costs(calls) == first


def _nothing_to_do(calls, *args, **kwargs):
    assert list(calls) == []


def test_the_thread_count_is_part_of_the_key(cache_dir):
    threads = torch.get_num_threads()
    one = costs_module._key("op", CPU)
    try:
        torch.set_num_threads(threads + 1)
        assert costs_module._key("op", CPU) != one
    finally:
        torch.set_num_threads(threads)


@pytest.mark.parametrize(
    "damage",
    [
        lambda text: text[: len(text) // 2],
        lambda text: text.replace("0.5", "0.1"),
        lambda text: "\x00\xff not json\n" + text.replace("{", "["),
        lambda text: json.dumps({"op": ["k", float("nan"), 0.0, 0], "sum": 1}),
    ],
    ids=["cut", "edited", "foreign", "nan"],
)
def test_a_damaged_cache_is_ignored_with_a_warning(cache_dir, caplog, damage):
    store_costs({"k": Cost(0.5)})
    path = next(cache_dir.iterdir())
    path.write_text(damage(path.read_text()), encoding="latin-1")
    with caplog.at_level(logging.WARNING, "lowtide.profile"):
        assert load_costs() == {}
    assert "damaged or not lowtide's" in caplog.text
    store_costs({"new": Cost(0.25, 0.1, 8)})  # and the file is still of use
    assert load_costs() == {"new": Cost(0.25, 0.1, 8)}


def test_a_cache_that_cannot_be_written_only_warns(tmp_path, monkeypatch, caplog):
    blocked = tmp_path / "file"
    blocked.write_text("")
    monkeypatch.setenv("LOWTIDE_CACHE_DIR", str(blocked))
    with caplog.at_level(logging.WARNING, "lowtide.profile"):
        store_costs({"k": Cost(1.0)})
        assert load_costs() == {}
    assert "not kept" in caplog.text


def _write_many(directory, name):
    for number in range(40):
        store_costs({f"{name}{number}-{i}": Cost(0.5) for i in range(5)}, directory)


def test_two_processes_share_the_cache(cache_dir):
    context = multiprocessing.get_context("spawn")
    workers = [
        context.Process(target=_write_many, args=(cache_dir, name)) for name in "ab"
    ]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
        assert worker.exitcode == 0
    assert len(load_costs()) == 2 * 40 * 5


def test_unknown_ways_and_absent_devices_are_refused():
    add = call(aten.add.Tensor, fake(4), fake(4))
    with pytest.raises(InvalidArgumentError, match='Use "measure" or "estimate"'):
        costs([add], how="guess")  # type: ignore[arg-type]
    with pytest.raises(InvalidArgumentError, match="only a real one"):
        costs([add], device="a100-80gb")
    if not torch.cuda.is_available():
        with pytest.raises(InvalidArgumentError, match="no such device"):
            costs([add], device="cuda")

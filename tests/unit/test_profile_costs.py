"""Costs of single ops: real arguments, clocks, scratch, and the cache on disk."""

import logging
import multiprocessing
import os
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest
import torch
from torch._subclasses import FakeTensorMode

from lowtide.engine.bits import same_bits
from lowtide.engine.capture.call import Call
from lowtide.engine.costs import cache as cache_module
from lowtide.engine.costs import prices as costs_module
from lowtide.engine.costs.cache import CostCache, Entry
from lowtide.engine.costs.cost import Cost
from lowtide.engine.costs.devices import find_device, save_device
from lowtide.engine.costs.inputs import real_arguments, size_bytes, span_bytes
from lowtide.engine.costs.machine import count_allocations
from lowtide.engine.costs.measure import _Sweeper as Sweeper
from lowtide.engine.costs.prices import costs
from lowtide.engine.forms.packing import unpack_offsets
from lowtide.errors import InvalidArgumentError, OutputError

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
        (
            unpack_offsets,
            (
                fake(128, dtype=torch.uint8),
                (2, 4, 4, 4),
                (64, 16, 4, 1),
                8,
                (3, 3),
                (2, 2),
                (1, 1),
                (1, 1),
            ),
            0,
            9,
        ),
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
        lambda calls, *a: (seen.extend(calls), original(calls, *a))[1],
    )
    small = call(aten.mm.default, fake(8, 8), fake(8, 8))
    large = call(aten.mm.default, fake(512, 512), fake(512, 512))
    found = costs([small, large, small], cache=False)
    assert len(seen) == 2
    assert found[0] == found[2]
    assert found[1].seconds > 10 * found[0].seconds
    assert all(0 <= c.spread < 5 and c.how == "measure" for c in found)


def test_a_small_step_is_not_swept_out_of_the_cache(monkeypatch):
    rooms = []

    def measured(distinct, *more):
        rooms.append(more[-2])
        return dict.fromkeys(distinct, Cost(1.0))

    monkeypatch.setattr(costs_module, "_measured", measured)
    add = call(aten.add.Tensor, fake(256), fake(256), outputs=fake(256))
    for asked in (None, 1 << 30, 100):
        costs([add] * 4, room_bytes=asked)
    # Twice what the four of them touch: a sweep takes half of it.
    assert rooms == [2 * 4 * 3 * 1024, 2 * 4 * 3 * 1024, 100]


@pytest.mark.parametrize("group", [1 << 20, 3 << 20, 7 << 20])
def test_what_sweeps_the_cache_leaves_room_for_ops(group):
    room = 8 << 20
    sweeper = Sweeper(CPU, room)
    for _ in range(2):  # and what the group before has left is given back
        sweeper.make_room(1 << 10)
        sweeper.sweep(room // 2)
        sweeper.make_room(group)
        sweeper.sweep(sweeper.cache_bytes - group)
        held = 0 if sweeper._spare is None else sweeper._spare.nbytes
        assert held <= max(0, room - group)


def most_bytes_of(calls, room, lent):
    """Most bytes that measuring allocates on this thread, which counts already."""
    return count_allocations(
        lambda: costs(calls, cache=False, room_bytes=room, lent=lent), CPU
    )[1]


def test_an_op_without_room_reads_the_parameters_and_leaves_them_alone():
    weight = torch.randn(4096, 256)  # 4 MiB; its results are of 256 KiB
    before = weight.clone()
    fakes = fake(16, 256), fake(4096, 256).t()
    mm = call(aten.mm.default, *fakes, outputs=fake(16, 4096))
    logs = fake(16, 4096)
    softmax = call(
        aten._log_softmax_backward_data.out,
        *(logs, fake(16, 4096), 1, torch.float32),
        out=logs,
        outputs=logs,
    )
    assert most_bytes_of([mm, softmax], 1 << 20, [weight]) <= 1 << 20
    assert same_bits(weight, before)


def test_an_op_that_writes_to_its_argument_gets_one_of_its_own():
    weight, x = torch.ones(1024, 256), fake(1024, 256)
    doubled = call(aten.add_.Tensor, x, x, outputs=x)
    costs([doubled], cache=False, room_bytes=0, lent=[weight])
    assert same_bits(weight, torch.ones(1024, 256))


def test_scratch_is_given_room_before_the_cache_is_swept():
    half = {"dtype": torch.bfloat16}
    backward = convolution_backward(
        fake(1, 512, 4, 4, **half), fake(512, 1, 9, 9, **half), 512
    )
    (cost,) = costs([backward], cache=False)
    size = size_bytes(backward)
    assert cost.scratch_bytes > 2 * size
    room = 2 * size + cost.scratch_bytes
    assert most_bytes_of([backward] * 99, room, ()) <= room


@pytest.mark.parametrize("count", [1 << 10, 1 << 22])
def test_scratch_is_what_an_op_takes_beyond_its_results(count):
    x, y, mask = fake(count), fake(count), fake(count, dtype=torch.bool)
    # Its kernel multiplies by the mask and by the scale, one after the other: between
    # them lies one array of the size of the result.
    target = aten.native_dropout_backward.default
    (cost,) = costs([call(target, x, mask, 2.0, outputs=y)], cache=False)
    assert 4 * count <= cost.scratch_bytes <= 4 * count + 64
    (cost,) = costs([call(aten.add.Tensor, x, x, outputs=y)], cache=False)
    assert cost.scratch_bytes == 0
    # What is written over an argument is not a result that it would have to make.
    (cost,) = costs([call(aten.add_.Tensor, x, x, outputs=x)], cache=False)
    assert cost.scratch_bytes == 0


def convolution_backward(x, weight, groups):
    shape = ([1, 1], [weight.shape[-1] // 2] * 2, [1, 1], False, [0, 0], groups)
    args = (x, x, weight, None, *shape, [True, True, False])
    outputs = (fake(*x.shape, dtype=x.dtype), fake(*weight.shape, dtype=x.dtype), None)
    return call(aten.convolution_backward.default, *args, outputs=outputs)


def test_an_op_with_small_arguments_may_have_much_scratch():
    # 19 KiB of images and 96 KiB of weights. oneDNN sums the gradients of depthwise
    # weights in several blocked copies of them.
    backward = convolution_backward(fake(2, 304, 2, 2), fake(304, 1, 9, 9), 304)
    (cost,) = costs([backward], cache=False)
    assert cost.scratch_bytes > 2 * 304 * 81 * 4


def test_scratch_is_counted_to_the_byte():
    # In double precision every image is written out as the columns of a matrix, one for
    # each of 12 x 12 pixels, with the 4 x 3 x 3 numbers that its result depends on. The
    # pages of it that were touched, and what the heap kept back, are another number.
    backward = convolution_backward(
        fake(8, 4, 12, 12, dtype=torch.float64),
        fake(4, 4, 3, 3, dtype=torch.float64),
        groups=1,
    )
    found = {costs([backward], cache=False)[0].scratch_bytes for _ in range(3)}
    assert found == {8 * (4 * 3 * 3) * (12 * 12) * 8}


def test_a_batch_norm_under_autocast_can_be_measured():
    x, c = fake(2, 8, 4, 4, dtype=torch.bfloat16), fake(8)
    saved = fake(8, dtype=torch.bfloat16)  # as capture has it; really it is float32
    args = (x, x, c, c, c, saved, saved, True, 1e-5, [True] * 3)
    target = aten.native_batch_norm_backward.default
    (cost,) = costs([call(target, *args, outputs=(x, c, c))], cache=False)
    assert cost.how == "measure"


def test_allocations_are_counted_where_they_are_made():
    def run():
        first = torch.ones(1000)
        second = first + 1
        del first
        return second * 2

    result, most_bytes = count_allocations(run, CPU)
    assert result.shape == (1000,)
    assert 8000 <= most_bytes < 8064  # the two numbers are tensors for a moment
    with torch.profiler.profile(profile_memory=True):
        assert count_allocations(run, CPU)[1] == most_bytes


def test_an_op_that_cannot_run_alone_is_estimated(caplog):
    wrong = call(aten.mm.default, fake(4, 4), fake(5, 5), outputs=fake(4, 5))
    with caplog.at_level(logging.WARNING, "lowtide.profile"):
        (cost,) = costs([wrong], cache=False)
    assert cost.how == "estimate"
    assert cost.seconds > 0
    assert "1 of 1 ops cannot run alone" in caplog.text


@pytest.mark.parametrize("rows", [4, 4096], ids=["small", "with scratch watched"])
def test_an_op_that_refuses_made_up_values_is_estimated(caplog, rows):
    # The made-up values reach 1.5, and this op takes nothing above 1.
    x = fake(rows, 256)
    bce = call(aten.binary_cross_entropy.default, x, x, outputs=fake(1))
    solve = call(aten.linalg_cholesky_ex.default, fake(rows, 4, 4), check_errors=True)
    add = call(aten.add.Tensor, x, x, outputs=x)
    with caplog.at_level(logging.INFO, "lowtide.profile"):
        found = costs([bce, solve, add, bce], cache=False)
    assert [c.how for c in found] == ["estimate", "estimate", "measure", "estimate"]
    assert all(c.seconds > 0 for c in found)
    assert "2 of 3 ops cannot run alone" in caplog.text
    assert caplog.text.count("between 0 and 1") == 1  # the reason, once


def test_an_op_that_fails_later_is_estimated(monkeypatch):
    runs = []

    def moody(x):
        runs.append(x)
        if len(runs) > 2:
            raise ZeroDivisionError("no more")
        return x + 1

    x = fake(8)
    odd = Call(moody, (x,), {}, x, "moody")
    found = costs([odd, call(aten.add.Tensor, x, x, outputs=x)], cache=False)
    assert [c.how for c in found] == ["estimate", "measure"]


def test_a_second_profile_measures_nothing(cache_dir, monkeypatch):
    calls = [
        call(aten.add.Tensor, fake(n), fake(n), outputs=fake(n)) for n in (10, 20, 30)
    ]
    progress = []
    first = costs(calls, progress=lambda *now: progress.append(now))
    assert progress[0] == (0, 3)
    assert progress[-1] == (3, 3)
    monkeypatch.setattr(costs_module, "measure_calls", _nothing_to_do)
    monkeypatch.setattr(costs_module, "machine_load", lambda: 99.0)
    assert costs(calls) == first


def _nothing_to_do(calls, *_):
    assert list(calls) == []
    return []


def test_the_thread_count_is_part_of_the_key(cache_dir):
    threads = torch.get_num_threads()
    one = costs_module._key("op", CPU)
    try:
        torch.set_num_threads(threads + 1)
        assert costs_module._key("op", CPU) != one
    finally:
        torch.set_num_threads(threads)


# The cache on disk.


def entry(seconds=0.5, **facts):
    return Entry(Cost(seconds, facts.pop("spread", 0.0), 8), 3, **facts)


def kept(directory=None):
    """Every key with its seconds, by way of a second connection."""
    disk = CostCache(directory)
    return {k: e.cost.seconds for k, e in disk.load(["k", "new", "a", "b"]).items()}


def test_an_entry_comes_back_whole(cache_dir):
    CostCache().store({"k": entry(spread=0.1, load=0.75, measured_at=9.0)})
    CostCache().store({"new": entry(0.25)})
    assert CostCache().load(["k", "other"]) == {
        "k": Entry(Cost(0.5, 0.1, 8), 3, 0.75, 9.0)
    }
    assert kept() == {"k": 0.5, "new": 0.25}
    ages = CostCache().ages()
    assert min(ages) < 60 < max(ages)


@pytest.mark.parametrize(
    "damage",
    [
        lambda raw: raw[: len(raw) // 2],
        lambda raw: b"\x00\xff not a database",
        lambda raw: raw[:100] + bytes(3000) + raw[3100:],
    ],
    ids=["cut", "foreign", "blanked"],
)
def test_a_damaged_cache_is_begun_anew(cache_dir, caplog, damage):
    CostCache().store({"k": entry()})
    (path,) = cache_dir.iterdir()
    path.write_bytes(damage(path.read_bytes()))
    assert kept() == {}
    assert "is damaged" in caplog.text
    CostCache().store({"new": entry(0.25)})
    assert kept() == {"new": 0.25}


@pytest.mark.parametrize("seconds", ["nan", "'x'", "-1", "9e999", "null", "x'00'"])
def test_what_is_no_cost_is_left_out(cache_dir, seconds):
    CostCache().store({"k": entry(), "new": entry(0.25)})
    (path,) = cache_dir.iterdir()
    with closing(sqlite3.connect(path)) as database, database:
        value = "'nan'" if seconds == "nan" else seconds
        database.execute(f"update costs set seconds = {value} where key = 'k'")
    assert kept() == {"new": 0.25}
    assert len(CostCache().ages()) == 1


@pytest.mark.parametrize("place", ["file", "pipe", "missing user", "under a device"])
def test_a_cache_without_a_place_only_warns(tmp_path, monkeypatch, caplog, place):
    (tmp_path / "file").write_text("")
    (tmp_path / "pipe").mkdir()
    os.mkfifo(tmp_path / "pipe" / "op-costs.sqlite")
    path = {"missing user": "~nobody-here/x", "under a device": "/dev/null/x"}
    monkeypatch.setenv("LOWTIDE_CACHE_DIR", path.get(place, str(tmp_path / place)))
    disk = CostCache()
    disk.store({"k": entry()})
    assert disk.load(["k"]) == {}
    assert len(caplog.records) == 1  # once for each profile
    assert "op costs are not kept" in caplog.text
    (cost,) = costs([call(aten.add.Tensor, fake(9), fake(9))])
    assert cost.how == "measure"


def test_no_home_directory_is_no_error(monkeypatch, caplog):
    monkeypatch.delenv("LOWTIDE_CACHE_DIR", raising=False)

    def home():
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.setattr(Path, "home", home)
    (cost,) = costs([call(aten.add.Tensor, fake(9), fake(9))])
    assert cost.how == "measure"
    assert "there is no home directory" in caplog.text
    assert find_device("cpu").name == "cpu"  # though nobody can have their own
    with pytest.raises(OutputError, match="Set LOWTIDE_CACHE_DIR"):
        save_device(find_device("cpu"))


def test_a_held_lock_is_not_waited_for_long(cache_dir, caplog, monkeypatch):
    monkeypatch.setattr(cache_module, "_LOCK_SECONDS", 0.05)
    CostCache().store({"k": entry()})
    (path,) = cache_dir.iterdir()
    with closing(sqlite3.connect(path, isolation_level=None)) as other:
        other.execute("begin exclusive")
        disk = CostCache()
        for _ in range(100):  # and only once
            disk.store({"new": entry()})
    assert "database is locked" in caplog.text
    assert len(caplog.records) == 1
    assert kept() == {"k": 0.5}


def test_a_full_disk_is_no_error(cache_dir, caplog, monkeypatch):
    class Full(sqlite3.Connection):
        def executemany(self, *_):
            raise sqlite3.OperationalError("database or disk is full")

    connect = sqlite3.connect
    monkeypatch.setattr(
        sqlite3, "connect", lambda *a, **k: connect(*a, **k, factory=Full)
    )
    CostCache().store({"k": entry()})
    assert "disk is full" in caplog.text
    assert kept() == {}


def _write_many(directory, name):
    for number in range(20):
        CostCache(directory).store({f"{name}{number}-{i}": entry() for i in range(5)})


@pytest.mark.slow
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
    assert len(CostCache().ages()) == 2 * 20 * 5


@pytest.mark.parametrize(
    ("facts", "load_now", "again"),
    [
        ({"load": 3.0}, 0.5, True),  # measured on a busy machine, and now it is quiet
        ({"load": 3.0}, 2.9, False),  # still as busy
        ({"load": 0.4}, 0.0, False),  # it was quiet
        ({"load": 0.9, "spread": 0.5}, 0.1, True),  # runs far apart, now quieter
        ({"load": 0.1, "spread": 0.5}, 0.0, False),  # the op itself is unsteady
    ],
)
def test_doubtful_times_are_measured_again_when_it_is_quieter(
    cache_dir, monkeypatch, facts, load_now, again
):
    add = call(aten.add.Tensor, fake(9), fake(9))
    key = costs_module._key(add.signature, CPU)
    CostCache().store({key: entry(100.0, **facts)})
    monkeypatch.setattr(costs_module, "machine_load", lambda: load_now)
    (cost,) = costs([add])
    assert (cost.seconds < 1) == again
    stored = CostCache().load([key])[key]
    assert stored.load == (load_now if again else facts["load"])
    assert stored.runs >= 2


def test_a_refresh_measures_what_is_known(cache_dir):
    add = call(aten.add.Tensor, fake(9), fake(9))
    key = costs_module._key(add.signature, CPU)
    CostCache().store({key: entry(100.0)})
    assert costs([add])[0].seconds == 100.0
    assert costs([add], cache="refresh")[0].seconds < 1
    assert CostCache().load([key])[key].cost.seconds < 1


def test_long_measurements_are_told_of(cache_dir, caplog, monkeypatch):
    monkeypatch.setattr(costs_module, "_LOG_EVERY_SECONDS", 0.0)
    calls = [call(aten.relu.default, fake(n), outputs=fake(n)) for n in (8, 16)]
    with caplog.at_level(logging.INFO, "lowtide.profile"):
        costs(calls)
    told = [text for text in caplog.messages if "are known" in text]
    assert told == [f"profile: {n} of 2 distinct ops are known" for n in range(3)]


def test_unknown_ways_and_absent_devices_are_refused():
    add = call(aten.add.Tensor, fake(4), fake(4))
    with pytest.raises(InvalidArgumentError, match='Use "measure" or "estimate"'):
        costs([add], how="guess")  # type: ignore[arg-type]
    with pytest.raises(InvalidArgumentError, match="only a real one"):
        costs([add], device="a100-80gb")
    if not torch.cuda.is_available():
        with pytest.raises(InvalidArgumentError, match="no such device"):
            costs([add], device="cuda")

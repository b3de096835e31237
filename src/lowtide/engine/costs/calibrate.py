"""A description of this machine, from a few dozen timed ops.

Each class of work is timed on shapes like those of ordinary models. The peaks are the
best rates seen, the overhead is what the smallest ops take, and the efficiency of a
class is the middle of what its samples reach of their roofline.
"""

from __future__ import annotations

import datetime
import os
import statistics
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple

import torch
from torch._subclasses import FakeTensorMode
from torch.nn import functional

from lowtide.engine.capture.call import Call
from lowtide.engine.capture.tensors import Seeing
from lowtide.engine.costs.devices import Device, save_device
from lowtide.engine.costs.estimate import FRESH_BYTES, roofline_seconds, seconds_of
from lowtide.engine.costs.inputs import input_tensors, output_tensors
from lowtide.engine.costs.machine import device_name
from lowtide.engine.costs.measure import measure_calls
from lowtide.engine.costs.prices import Progress
from lowtide.engine.costs.work import Work, work_of

aten = torch.ops.aten


_CPU = torch.device("cpu")


def calibrate(*, progress: Progress | None = None) -> Device:
    """Describe this processor by measuring it, and keep the description for estimates.

    Takes some seconds. The description is written to lowtide's cache directory and
    replaces the shipped one.
    """
    calls = _ordinary_calls()
    samples: list[_Timed] = []
    for measured in measure_calls(calls, _CPU):
        if not measured.error:
            samples.append(_Timed(work_of(measured.call), measured.cost.seconds))
        if progress is not None:
            progress(len(samples), len(calls))
    described = _fit(samples)
    save_device(described)
    return described


class _Timed(NamedTuple):
    work: Work
    seconds: float

    @property
    def is_slowed_by_fresh_pages(self) -> bool:
        return self.work.largest_result_bytes > FRESH_BYTES


def _fit(samples: list[_Timed]) -> Device:
    overhead = min(s.seconds for s in samples if s.work.nbytes < 4096)
    net = [_Timed(s.work, max(1e-9, s.seconds - overhead)) for s in samples]
    large = [s for s in net if s.work.nbytes > 1 << 22]
    light = [s for s in large if s.work.work_class == "elementwise"]
    heavy = [s for s in large if s.work.work_class == "transcendental"]
    products: dict[str, float] = {}
    for s in net:
        if s.work.work_class == "matmul":
            rate = s.work.flops / s.seconds
            products[s.work.dtype] = max(products.get(s.work.dtype, 0.0), rate)
    today = datetime.date.today().isoformat()
    threads = torch.get_num_threads()
    described = Device(
        name="cpu",
        title=device_name(_CPU),
        memory_bytes=os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"),
        bandwidth_bytes_per_second=max(s.work.nbytes / s.seconds for s in light),
        vector_flops=max(s.work.flops / s.seconds for s in heavy),
        matmul_flops=products,
        overhead_seconds=overhead,
        draws_per_second=max(s.work.draws / s.seconds for s in net if s.work.draws),
        source=f"measured on {today}, torch {torch.__version__}, {threads} threads",
    )
    described = replace(described, efficiency=_efficiencies(net, described))
    late = [
        (s.seconds - seconds_of(s.work, described) + overhead)
        / s.work.largest_result_bytes
        for s in net
        if s.is_slowed_by_fresh_pages
    ]
    slower = max(0.0, statistics.median(late))
    return replace(described, first_touch_seconds_per_byte=slower)


def _efficiencies(net: list[_Timed], device: Device) -> dict[str, float]:
    reached: dict[str, list[float]] = {}
    for s in net:
        if s.work.nbytes < 1 << 16 or s.work.draws or s.is_slowed_by_fresh_pages:
            continue
        share = roofline_seconds(s.work, device) / s.seconds
        reached.setdefault(s.work.work_class, []).append(share)
    found = {name: round(statistics.median(v), 4) for name, v in reached.items()}
    return {"default": found.get("elementwise", 0.7), **found}


def _ordinary_calls() -> list[Call]:
    """Ops of every class, as torch calls them, on shapes of ordinary models."""
    with FakeTensorMode(), _CPU, _Recorder() as recorder:
        _run_elementwise_and_rows()
        _run_products()
        _run_images()
        heads = [torch.empty(8, 12, 197, 64) for _ in range(3)]
        _run_both_ways(functional.scaled_dot_product_attention, *heads)
    return recorder.calls


class _Recorder(Seeing):
    """Keeps the calls that compute tensors from tensors."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: list[Call] = []

    def see(self, op: Any, args: Any, kwargs: Any, outputs: Any) -> None:
        call = Call(op, args, kwargs, outputs, f"{op}#{len(self.calls)}")
        if not op.is_view and input_tensors(call) and output_tensors(call):
            self.calls.append(call)


def _run_elementwise_and_rows() -> None:
    t = torch.empty
    for _ in range(3):
        torch.add(t(16), t(16))
    for n in (1 << 19, 1 << 20, 1 << 22):
        torch.add(t(n), t(n))
        torch.mul(t(n), t(n))
        for function in (torch.relu, torch.clone, functional.gelu, torch.tanh):
            function(t(n))
        rows = (n // 512, 512)
        torch.sum(t(rows), 0)
        torch.mean(t(rows), 1)
        torch.softmax(t(rows), 1)
        aten._softmax_backward_data(t(rows), t(rows), 1, torch.float32)
        aten.threshold_backward(t(n), t(n), 0)
        aten.native_dropout(t(n), 0.1, True)
    for n in (10 << 20, 20 << 20):
        torch.clone(t(n))
        torch.add(t(n), t(n))


def _run_products() -> None:
    t = torch.empty
    for rows in (256, 1024, 2048):
        _run_both_ways(
            lambda x, weight, bias: functional.layer_norm(x, [768], weight, bias),
            *(t(rows, 768), t(768), t(768)),
        )
        functional.embedding(t(rows, dtype=torch.int64), t(8192, 768))
        for inner, outer in ((768, 768), (768, 3072), (3072, 768)):
            torch.mm(t(rows, inner), t(inner, outer))
            torch.addmm(t(outer), t(rows, inner), t(inner, outer))
    torch.bmm(t(48, 128, 64), t(48, 64, 128))
    torch.bmm(t(48, 128, 128), t(48, 128, 64))
    for dtype in (torch.bfloat16, torch.float16, torch.float64):
        torch.mm(t(512, 768, dtype=dtype), t(768, 768, dtype=dtype))


# Channels, height and width, kernel, batch: the stages of a ResNet, full and nearly
# empty, since a small image leaves much of the machine idle.
_CONVOLUTIONS = (
    (64, 56, 1, 4),
    (64, 40, 3, 4),
    (128, 28, 3, 8),
    (128, 20, 3, 4),
    (256, 28, 1, 8),
    (256, 10, 3, 4),
    (512, 14, 1, 8),
    (512, 5, 3, 4),
    (1024, 10, 1, 4),
)
_DEPTHWISE = ((128, 28, 3, 4), (256, 14, 3, 4))


def _run_images() -> None:
    t = torch.empty
    norm = partial(functional.batch_norm, running_mean=None, running_var=None)
    for channels, size, kernel, batch in (*_CONVOLUTIONS, *_DEPTHWISE):
        image = t(batch, channels, size, size)
        groups = channels if (channels, size, kernel, batch) in _DEPTHWISE else 1
        weight = t(channels, channels // groups, kernel, kernel)
        convolve = partial(functional.conv2d, padding=kernel // 2, groups=groups)
        _run_both_ways(convolve, image, weight)
        if groups == 1:
            _run_both_ways(
                lambda x, w, b: norm(x, weight=w, bias=b, training=True),
                *(image, t(channels), t(channels)),
            )
    image = t(4, 64, 56, 56)
    _run_both_ways(lambda x: functional.max_pool2d(x, 3, stride=2, padding=1), image)
    functional.avg_pool2d(image, 2)


def _run_both_ways(
    function: Callable[..., torch.Tensor], *inputs: torch.Tensor
) -> None:
    """Run a function of tensors, and its gradient with respect to all of them."""
    leaves = [x.detach().requires_grad_() for x in inputs]
    result = function(*leaves)
    torch.autograd.grad(result, leaves, torch.empty(result.shape, dtype=result.dtype))

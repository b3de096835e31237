"""A description of this machine, from a few dozen timed ops.

Each class of work is timed on shapes like those of ordinary models. The peaks are the
best rates seen, the overhead is what the smallest ops take, and the efficiency of a
class is the middle of what its samples reach of their roofline.
"""

from __future__ import annotations

import datetime
import math
import os
import statistics
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch._subclasses import FakeTensorMode

from lowtide.engine.capture.call import Call
from lowtide.engine.costs.devices import Device, save_device
from lowtide.engine.costs.estimate import peak_flops, seconds_of
from lowtide.engine.costs.machine import device_name
from lowtide.engine.costs.measure import Sample, measure_calls
from lowtide.engine.costs.prices import Progress
from lowtide.engine.costs.work import Work, work_of

aten = torch.ops.aten


def calibrate(
    device: str | torch.device = "cpu",
    *,
    save: bool = True,
    progress: Progress | None = None,
) -> Device:
    """Describe a real device by measuring it, and keep the description for estimates.

    Takes some seconds. With `save`, the description is written to lowtide's cache
    directory and replaces the shipped one of the same name.
    """
    real = torch.device(device)
    calls = _calls(real)
    samples: list[_Timed] = []

    def done(call: Call, sample: Sample) -> None:
        if not sample.error:
            samples.append(_Timed(call, work_of(call), sample.seconds))
        if progress is not None:
            progress(len(samples), len(calls))

    measure_calls(calls, real, done=done)
    described = _fit(samples, real)
    if save:
        save_device(described)
    return described


@dataclass(frozen=True, slots=True)
class _Timed:
    call: Call
    work: Work
    seconds: float


def _fit(samples: list[_Timed], device: torch.device) -> Device:
    overhead = min(s.seconds for s in samples if s.work.nbytes < 4096)
    net = [replace(s, seconds=max(1e-9, s.seconds - overhead)) for s in samples]
    large = [s for s in net if s.work.nbytes > 1 << 22]
    light = [s for s in large if s.work.work_class == "elementwise"]
    heavy = [s for s in large if s.work.work_class == "transcendental"]
    products: dict[str, float] = {}
    for s in net:
        if s.work.work_class == "matmul":
            rate = s.work.flops / s.seconds
            products[s.work.dtype] = max(products.get(s.work.dtype, 0.0), rate)
    draws = [s.work.draws / s.seconds for s in net if s.work.draws]
    described = Device(
        name="cpu" if device.type == "cpu" else f"this-{device.type}",
        title=device_name(device),
        memory_bytes=_memory_bytes(device),
        bandwidth_bytes_per_second=max(s.work.nbytes / s.seconds for s in light),
        vector_flops=max(s.work.flops / s.seconds for s in heavy),
        matmul_flops=products,
        overhead_seconds=overhead,
        draws_per_second=max(draws),
        source=_source(device),
    )
    described = replace(described, efficiency=_efficiencies(net, described))
    if device.type != "cpu":
        return described
    late = [
        (s.seconds - seconds_of(s.work, described) + overhead)
        / s.work.largest_result_bytes
        for s in net
        if s.work.largest_result_bytes > 32 << 20
    ]
    slower = max(0.0, statistics.median(late))
    return replace(described, first_touch_seconds_per_byte=slower)


def _efficiencies(net: list[_Timed], device: Device) -> dict[str, float]:
    reached: dict[str, list[float]] = {}
    for s in net:
        fresh = s.work.largest_result_bytes > 32 << 20
        if s.work.nbytes < 1 << 16 or s.work.draws or fresh:
            continue
        ideal = max(
            s.work.flops / peak_flops(s.work, device),
            s.work.nbytes / device.bandwidth_bytes_per_second,
        )
        reached.setdefault(s.work.work_class, []).append(ideal / s.seconds)
    found = {name: round(statistics.median(v), 4) for name, v in reached.items()}
    return {"default": found.get("elementwise", 0.7), **found}


def _memory_bytes(device: torch.device) -> int:
    if device.type == "cuda":
        return int(torch.cuda.get_device_properties(device).total_memory)
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (AttributeError, ValueError, OSError):
        return 0


def _source(device: torch.device) -> str:
    threads = f", {torch.get_num_threads()} threads" if device.type == "cpu" else ""
    today = datetime.date.today().isoformat()
    return f"measured on {today}, torch {torch.__version__}{threads}"


def _calls(device: torch.device) -> list[Call]:
    """Ops of every class on shapes like those of ordinary models."""
    make = _Maker(device)
    t = make.tensor
    calls: list[Call] = []
    add = calls.append
    for _ in range(3):
        add(make(aten.add.Tensor, t(16), t(16)))
    for n in (1 << 19, 1 << 20, 1 << 22):
        add(make(aten.add.Tensor, t(n), t(n)))
        add(make(aten.mul.Tensor, t(n), t(n)))
        add(make(aten.relu.default, t(n)))
        add(make(aten.clone.default, t(n)))
        add(make(aten.gelu.default, t(n)))
        add(make(aten.tanh.default, t(n)))
        add(make(aten.sum.dim_IntList, t(n // 512, 512), [0]))
        add(make(aten.mean.dim, t(n // 512, 512), [1]))
        add(make(aten._softmax.default, t(n // 512, 512), 1, False))
        rows = (t(n // 512, 512), t(n // 512, 512))
        add(make(aten._softmax_backward_data.default, *rows, 1, torch.float32))
        add(make(aten.threshold_backward.default, t(n), t(n), 0))
        add(make(aten.native_dropout.default, t(n), 0.1, True))
    for n in (10 << 20, 20 << 20):
        add(make(aten.clone.default, t(n)))
        add(make(aten.add.Tensor, t(n), t(n)))
    for rows in (256, 1024, 2048):
        calls += make.layer_norm(rows, 768)
        add(make(aten.embedding.default, t(8192, 768), make.places(rows)))
        for inner, outer in ((768, 768), (768, 3072), (3072, 768)):
            add(make(aten.mm.default, t(rows, inner), t(inner, outer)))
            add(make(aten.addmm.default, t(outer), t(rows, inner), t(inner, outer)))
    add(make(aten.bmm.default, t(48, 128, 64), t(48, 64, 128)))
    add(make(aten.bmm.default, t(48, 128, 128), t(48, 128, 64)))
    for dtype in (torch.bfloat16, torch.float16, torch.float64):
        left, right = (t(512, 768, dtype=dtype), t(768, 768, dtype=dtype))
        add(make(aten.mm.default, left, right))
    calls += make.attention(8, 12, 197, 64)
    for channels, size, kernel, make.batch in _CONVOLUTIONS:
        calls += make.convolution(channels, size, kernel, groups=1)
        calls += make.batch_norm(channels, size)
    calls += make.convolution(128, 28, 3, groups=128)
    calls += make.convolution(256, 14, 3, groups=256)
    calls += make.pooling(64, 56)
    return calls


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


class _Maker:
    """Calls on fake tensors of the device, images in batches."""

    def __init__(self, device: torch.device, batch: int = 8) -> None:
        self.mode = FakeTensorMode()
        self.device, self.batch = device, batch
        self.number = 0

    def __call__(self, target: Any, *args: Any) -> Call:
        with self.mode:
            outputs = target(*args)
        self.number += 1
        return Call(target, args, {}, outputs, f"{target}#{self.number}")

    def tensor(self, *shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
        with self.mode:
            return torch.empty(*shape, dtype=dtype, device=self.device)

    def places(self, count: int) -> torch.Tensor:
        return self.tensor(count, dtype=torch.int64)

    def layer_norm(self, rows: int, width: int) -> list[Call]:
        t = self.tensor
        forward = self(
            aten.native_layer_norm.default,
            t(rows, width),
            [width],
            t(width),
            t(width),
            1e-5,
        )
        backward = self(
            aten.native_layer_norm_backward.default,
            t(rows, width),
            t(rows, width),
            [width],
            t(rows, 1),
            t(rows, 1),
            t(width),
            t(width),
            [True] * 3,
        )
        return [forward, backward]

    def batch_norm(self, channels: int, size: int) -> list[Call]:
        t = self.tensor
        x = t(self.batch, channels, size, size)
        c = [t(channels) for _ in range(5)]
        forward = self(
            aten._native_batch_norm_legit_functional.default,
            *(x, *c[:4], True, 0.1, 1e-5),
        )
        backward = self(
            aten.native_batch_norm_backward.default,
            *(x, x, *c, True, 1e-5, [True] * 3),
        )
        return [forward, backward]

    def convolution(
        self, channels: int, size: int, kernel: int, *, groups: int
    ) -> list[Call]:
        t = self.tensor
        x = t(self.batch, channels, size, size)
        weight = t(channels, channels // groups, kernel, kernel)
        pad = [kernel // 2] * 2
        shape = ([1, 1], pad, [1, 1], False, [0, 0], groups)
        forward = self(aten.convolution.default, x, weight, None, *shape)
        backward = self(
            aten.convolution_backward.default,
            *(x, x, weight, None, *shape, [True, True, False]),
        )
        return [forward, backward]

    def attention(self, batch: int, heads: int, length: int, width: int) -> list[Call]:
        t = self.tensor
        q = [t(batch, heads, length, width) for _ in range(4)]
        if self.device.type == "cpu":
            forward = aten._scaled_dot_product_flash_attention_for_cpu
            backward = aten._scaled_dot_product_flash_attention_for_cpu_backward
            log = t(batch, length, heads).transpose(1, 2)
            return [
                self(forward.default, *q[:3], 0.0, False),
                self(backward.default, *q, q[0], log, 0.0, False),
            ]
        half = [t(batch, heads, length, width, dtype=torch.float16) for _ in range(3)]
        forward = aten._scaled_dot_product_flash_attention.default
        return [self(forward, *half, 0.0, False)]

    def pooling(self, channels: int, size: int) -> list[Call]:
        x = self.tensor(self.batch, channels, size, size)
        sizes = ([3, 3], [2, 2], [1, 1])
        return [
            (pooled := self(aten.max_pool2d_with_indices.default, x, *sizes)),
            self(
                aten.max_pool2d_with_indices_backward.default,
                *(pooled.outputs[0], x, *sizes, [1, 1], False, pooled.outputs[1]),
            ),
            self(aten.avg_pool2d.default, x, [2, 2], [2, 2]),
        ]


def rank_correlation(a: list[float], b: list[float]) -> float:
    """Spearman's: 1 if both order the same way, ties sharing their mean rank."""
    x, y = _ranks(a), _ranks(b)
    mean_x, mean_y = statistics.fmean(x), statistics.fmean(y)
    together = sum((p - mean_x) * (q - mean_y) for p, q in zip(x, y, strict=True))
    alone = math.sqrt(
        sum((p - mean_x) ** 2 for p in x) * sum((q - mean_y) ** 2 for q in y)
    )
    return together / alone if alone else 0.0


def _ranks(values: list[float]) -> list[float]:
    order = sorted(range(len(values)), key=values.__getitem__)
    ranks = [0.0] * len(values)
    begin = 0
    while begin < len(order):
        end = begin
        while end < len(order) and values[order[end]] == values[order[begin]]:
            end += 1
        for place in order[begin:end]:
            ranks[place] = (begin + end - 1) / 2
        begin = end
    return ranks

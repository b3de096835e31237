"""Op times from a device description: a roofline with an overhead per op.

Nothing runs and nothing is allocated, so a step far larger than the machine can be
estimated for a device that is not there.
"""

from __future__ import annotations

import torch

from lowtide.engine.capture.call import Call
from lowtide.engine.costs.cost import Cost
from lowtide.engine.costs.devices import Device
from lowtide.engine.costs.exchange import exchange_seconds, is_exchange
from lowtide.engine.costs.work import Work, work_of

_ON_MATRIX_UNITS = frozenset(
    "matmul convolution convolution_backward depthwise attention "
    "attention_backward".split()
)

# Where a description has no efficiency of the class itself, nor of its forward.
_FAMILY = {
    "batch_norm": "normalisation",
    "layer_norm": "normalisation",
    "transcendental": "elementwise",
}
# glibc's largest threshold for memory that it maps and unmaps block by block.
FRESH_BYTES = 32 << 20


def estimate(call: Call, device: Device) -> Cost:
    """What the call costs on the described device."""
    if is_exchange(call.target):
        return Cost(exchange_seconds(call, device), how="estimate")
    return Cost(seconds_of(work_of(call), device), how="estimate")


def seconds_of(work: Work, device: Device) -> float:
    """Overhead, and the slowest of arithmetic, bytes and draws at their usual speed."""
    seconds = roofline_seconds(work, device) / efficiency(work.work_class, device)
    drawing = work.draws / device.draws_per_second
    seconds = device.overhead_seconds + max(seconds, drawing)
    # The processor's allocator returns large blocks to the operating system, and gets
    # them back page by page, each cleared at its first touch.
    if device.first_touch_seconds_per_byte and work.largest_result_bytes > FRESH_BYTES:
        seconds += work.largest_result_bytes * device.first_touch_seconds_per_byte
    return seconds


def roofline_seconds(work: Work, device: Device) -> float:
    """The least that its arithmetic and its bytes take, if nothing gets in the way."""
    return max(
        work.flops / peak_flops(work, device),
        work.nbytes / device.bandwidth_bytes_per_second,
    )


def efficiency(work_class: str, device: Device) -> float:
    """The part of the roofline that this class of work reaches."""
    known = device.efficiency
    forward = work_class.removesuffix("_backward")
    for name in (work_class, _FAMILY.get(forward, forward), "default"):
        if name in known:
            return max(1e-3, known[name])
    return 0.7


def peak_flops(work: Work, device: Device) -> float:
    """Operations per second at best, by the units and the dtype of this work."""
    if work.work_class not in _ON_MATRIX_UNITS:
        return device.vector_flops
    rates = device.matmul_flops
    dtype = {"complex64": "float32", "complex128": "float64"}.get(
        work.dtype, work.dtype
    )
    if dtype == "float32" and "tf32" in rates and _allows_tf32(work):
        dtype = "tf32"
    return rates.get(dtype, rates.get("float32", device.vector_flops))


def _allows_tf32(work: Work) -> bool:
    if work.work_class in ("matmul", "attention", "attention_backward"):
        return torch.get_float32_matmul_precision() != "highest"
    return torch.backends.cudnn.allow_tf32

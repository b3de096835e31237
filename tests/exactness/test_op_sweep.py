"""Ops in training steps of their own, against eager; `ops.py` says how."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from tests.exactness.ops import (
    EAGER_DIFFERS,
    EAGER_REFUSES,
    EQUAL,
    NOT_CAPTURED,
    compare,
    find,
    same_bits,
)

ONCE_DIFFERED = """
    as_strided cholesky_inverse nn.functional.dropout nn.functional.interpolate/bicubic
    nn.functional.interpolate/bilinear nn.functional.interpolate/linear
    nn.functional.interpolate/trilinear nn.functional.multi_margin_loss
    nn.functional.multilabel_margin_loss nn.functional.upsample_bilinear prod unfold
    masked.prod
"""
OTHERS = """
    add addmm amax baddbmm cat cdist cumprod einsum expm1 fft.rfft fft.ifft gather
    index_add index_select kron linalg.det linalg.inv linalg.norm linalg.svd logsumexp
    masked_fill matmul max/reduction_with_dim norm scatter_add sigmoid softmax sort
    std tanh where nn.functional.avg_pool2d nn.functional.batch_norm
    nn.functional.bilinear nn.functional.conv1d nn.functional.conv2d
    nn.functional.conv_transpose2d nn.functional.cross_entropy nn.functional.embedding
    nn.functional.gelu nn.functional.grid_sample nn.functional.group_norm
    nn.functional.instance_norm nn.functional.layer_norm nn.functional.max_pool2d
    nn.functional.multi_head_attention_forward nn.functional.rms_norm
    nn.functional.scaled_dot_product_attention nn.functional.silu nn.functional.softplus
"""


# Every second one everywhere, the others with `make test-slow`.
@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=[pytest.mark.slow] * (number % 2))
        for number, name in enumerate(OTHERS.split())
    ],
)
def test_an_op_computes_as_in_eager(name: str) -> None:
    outcome = compare(find(*name.split("/")), torch.float32, 1)
    assert outcome.verdict == EQUAL, outcome.reason


@pytest.mark.parametrize("name", ONCE_DIFFERED.split())
def test_an_op_that_once_differed_computes_as_in_eager(name: str) -> None:
    outcome = compare(find(*name.split("/")), torch.float32, 2)
    assert outcome.verdict == EQUAL, outcome.reason


def test_bits_are_compared() -> None:
    zeros, nans = torch.zeros(2), torch.full((2,), float("nan"))
    assert same_bits(nans, nans)
    assert same_bits(zeros, zeros.expand(1, 2)[0])
    assert not same_bits(zeros, -zeros)
    assert not same_bits(zeros, nans)
    assert not same_bits(torch.ones(2), torch.ones(2) + torch.finfo().eps)


@pytest.mark.slow
@pytest.mark.timeout(7200)
def test_every_op_computes_as_in_eager(tmp_path: Path) -> None:
    script = Path(__file__).parents[2] / "benchmarks" / "op_sweep.py"
    path = tmp_path / "sweep.json"
    command = [sys.executable, script, "--to", path]
    subprocess.run(command, check=True)
    explained = {EQUAL, NOT_CAPTURED, EAGER_DIFFERS, EAGER_REFUSES}
    outcomes = json.loads(path.read_text())["ops"]
    wrong = {n: o for n, o in outcomes.items() if o[0] not in explained}
    assert not wrong

"""Steps on fake CUDA tensors, where torch was built for CUDA; no GPU is needed."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest
import torch

SCRIPT = """
import json, sys
from benchmarks import fake_cuda

fake_cuda.pretend()
print(json.dumps(fake_cuda.trial(sys.argv[1])))
"""


@pytest.mark.real
@pytest.mark.slow
@pytest.mark.skipif(torch.version.cuda is None, reason="torch is not built for CUDA")
@pytest.mark.parametrize("name", ["mlp", "tiny_gpt dropout", "resnet18"])
def test_a_step_for_a_gpu_is_captured_planned_rewritten_and_run(name: str) -> None:
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT, name],
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    )
    row = json.loads(done.stdout.splitlines()[-1])
    assert row["device"] == "cuda"
    assert row["num_recomputed"] > 0
    assert row["planned_bytes"] <= row["budget_bytes"] < row["eager_bytes"]
    # A few single numbers beside the loss, each in a block of its own.
    spare = 4 * 512
    assert row["ledger_planned_bytes"] <= row["planned_bytes"] + spare
    assert row["ledger_eager_bytes"] <= row["eager_bytes"] + spare
    assert row["ledger_planned_bytes"] < row["ledger_eager_bytes"]

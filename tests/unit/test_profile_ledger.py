"""The ledger of an eager step, and its agreement with the captured one."""

import pytest
import torch

import lowtide
from lowtide import models
from lowtide.engine.costs import ledger


def test_bytes_come_and_go():
    def run():
        a = torch.ones(1000)  # 4000 bytes, rounded to 4032
        b = a * 2
        del a
        c = b.view(10, 100)  # no bytes of its own
        return c + 1

    found = ledger(run)
    assert found.live_bytes == (4032, 8064, 4032, 8064, 4032)
    assert found.peak_bytes == 8064
    assert found.resident_bytes == 0
    assert found.ops[1] == "aten.mul.Tensor"


def test_kinds_are_told_apart():
    module = torch.nn.Sequential(
        torch.nn.Linear(256, 256), torch.nn.ReLU(), torch.nn.Linear(256, 256)
    )
    optimizer = torch.optim.SGD(module.parameters(), lr=0.1, momentum=0.9)
    batch = torch.ones(64, 256)

    def run():
        module(batch).sum().backward()
        optimizer.step()

    found = ledger(run, modules=[module], batch=batch, optimizer=optimizer)
    weights = sum(p.numel() * 4 for p in module.parameters())
    end = {k: v[-1] for k, v in found.by_kind.items()}
    assert end["parameter"] == end["gradient"] == weights
    # Momentum begins as a copy of the gradients.
    assert end["optimizer_state"] == weights
    assert end["input"] == 64 * 256 * 4
    assert end.get("activation", 0) == end.get("temporary", 0) == 0
    assert max(found.by_kind["activation"]) >= 2 * 64 * 256 * 4
    for index, live in enumerate(found.live_bytes):
        assert sum(column[index] for column in found.by_kind.values()) == live
    assert sum(found.at_peak().values()) == found.peak_bytes


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("mlp", {"batch": 256}),
        ("resnet18", {"batch": 2, "image": 64}),
        ("gpt2", {"batch": 1, "sequence": 32, "layers": 2}),
        ("vit", {"batch": 2, "layers": 2}),
    ],
)
def test_the_captured_step_agrees_with_the_eager_one(name, options):
    example = models.build(name, **options)
    step = lowtide.profile(
        example.model, example.batch, loss=example.loss, how="estimate"
    )

    def run():
        batch = example.batch
        if isinstance(batch, dict):
            output = example.model(**batch)
        elif isinstance(batch, tuple):
            output = example.model(*batch)
        else:
            output = example.model(batch)
        loss = example.loss(output) if example.loss else output.loss
        loss.backward()

    run()
    example.model.zero_grad(set_to_none=True)
    found = ledger(run, modules=[example.model], batch=example.batch)
    assert found.resident_bytes == pytest.approx(step.resident_bytes, rel=0.001)
    assert step.eager_peak_bytes == pytest.approx(
        found.peak_bytes, rel=0.03, abs=1 << 20
    )
    assert step.baseline_peak_bytes <= step.eager_peak_bytes
    kinds = step.by_kind()
    for kind in ("parameter", "input"):
        assert kinds[kind] == found.at_peak()[kind]

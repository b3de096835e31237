"""The ledger of an eager step, and its agreement with the captured one."""

import pytest
import torch

import lowtide
from lowtide import models
from lowtide.engine.costs.ledger import ledger


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
    assert found.activation_peak_bytes == 8064


def test_residents_and_gradients_are_no_activations():
    module = torch.nn.Sequential(
        torch.nn.Linear(256, 256), torch.nn.ReLU(), torch.nn.Linear(256, 256)
    )
    optimizer = torch.optim.SGD(module.parameters(), lr=0.1, momentum=0.9)
    batch = torch.ones(64, 256)

    def run():
        module(batch).sum().backward()
        optimizer.step()

    found = ledger(run, modules=[module], batch=batch)
    weights = sum(p.numel() * 4 for p in module.parameters())
    activation = 64 * 256 * 4
    assert found.resident_bytes == weights + activation
    # What is left are the gradients, and the momentum, which begins as their copy.
    assert found.live_bytes[-1] == found.resident_bytes + 2 * weights
    # The two layers' results and the gradient of the second, and not the weights'
    # gradients. The momentum is no gradient.
    assert 2 * activation <= found.activation_peak_bytes <= 4 * activation + weights


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("mlp", {"batch": 256}),
        pytest.param("resnet18", {"batch": 2, "image": 64}, marks=pytest.mark.slow),
        pytest.param(
            "gpt2",
            {"batch": 1, "sequence": 32, "layers": 2},
            marks=pytest.mark.slow,
        ),
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

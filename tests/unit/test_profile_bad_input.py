"""What cannot be profiled says why; what can be has a documented answer."""

import math

import pytest
import torch
from torch import nn

import lowtide
from lowtide.errors import CaptureError, InvalidArgumentError

BATCH = torch.randn(2, 4)


class Body(nn.Module):
    """A linear layer and something done with its result."""

    def __init__(self, then):
        super().__init__()
        self.linear = nn.Linear(4, 4)
        self.then = then

    def forward(self, x):
        return self.then(self.linear(x))


def raises(y):
    raise RuntimeError("the weights are not loaded")


def masked(y):
    return y[y > 0].sum()


def branching(y):
    return (y * 2).sum() if y.sum() > 0 else y.sum()


def profile(model, batch=BATCH, **options):
    return lowtide.profile(model, batch, how="estimate", **options)


@pytest.mark.parametrize(
    ("then", "words"),
    [
        (raises, ["the weights are not loaded", "runs without lowtide"]),
        (masked, ["values decide", "nonzero", "torch.where", "lowtide.optimize"]),
        (branching, ["values decide", "lowtide.optimize"]),
        (lambda y: None, ["does not depend on anything that requires a gradient"]),
        (lambda y: y.detach(), ["does not depend on anything"]),
    ],
)
def test_a_model_that_cannot_be_captured(then, words):
    with pytest.raises(CaptureError) as caught:
        profile(Body(then))
    assert all(word in str(caught.value) for word in words), str(caught.value)


@pytest.mark.parametrize("then", [masked, branching])
def test_what_the_error_advises_works(then):
    torch.manual_seed(0)
    model = lowtide.optimize(Body(then), budget="1 GiB")
    plain = Body(then)
    plain.load_state_dict(model.state_dict())
    for each in (model, plain):
        each(BATCH).backward()
    assert torch.equal(model.linear.weight.grad, plain.linear.weight.grad)


def test_a_batch_of_the_wrong_shape_is_reported_once(caplog):
    with pytest.raises(CaptureError, match=r"\[2, 5\] X \[4, 4\]"):
        profile(nn.Linear(4, 4), torch.randn(2, 5))
    assert not [r for r in caplog.records if r.levelname == "ERROR"]


@pytest.mark.parametrize(
    ("loss", "words"),
    [
        (lambda y: y, "the loss has the shape (2, 4)"),
        (lambda y: 3.0, "the loss is a float, not a tensor"),
        (lambda y: y.detach().sum(), "does not depend on anything"),
    ],
)
def test_a_loss_that_is_none(loss, words):
    with pytest.raises(CaptureError) as caught:
        profile(nn.Linear(4, 4), loss=loss)
    assert words in str(caught.value)


def test_without_a_loss_the_outputs_are_summed():
    plain, summed = (profile(nn.Linear(4, 4), loss=loss) for loss in (None, torch.sum))
    assert plain.fingerprint == summed.fingerprint


def test_gradients_turned_off():
    with torch.no_grad(), pytest.raises(CaptureError, match="gradients are turned off"):
        profile(nn.Linear(4, 4))


def test_nothing_requires_a_gradient():
    with pytest.raises(CaptureError, match="requires a gradient"):
        profile(nn.Linear(4, 4).requires_grad_(False))


@pytest.mark.parametrize("how", ["measure", "estimate"])
def test_nans_change_nothing(how):
    model = nn.Linear(4, 4)
    bad = torch.full((2, 4), math.nan)
    with torch.no_grad():
        model.weight.fill_(math.nan)
    found = lowtide.profile(model, bad, how=how)
    plain = lowtide.profile(nn.Linear(4, 4), BATCH, how=how)
    assert found.fingerprint == plain.fingerprint
    assert math.isfinite(found.baseline_seconds)


def test_a_module_on_two_devices():
    model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4, device="meta"))
    with pytest.raises(CaptureError) as caught:
        profile(model)
    assert "two devices" in str(caught.value)
    assert "https" not in str(caught.value)


def test_what_is_no_model():
    with pytest.raises(InvalidArgumentError, match="neither a module nor a function"):
        profile(3)


def test_a_profile_prints_short():
    assert len(repr(profile(nn.Linear(4, 4)))) < 100

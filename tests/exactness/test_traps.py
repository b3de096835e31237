"""A naive recomputation must be seen failing the tests that guard against it."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch

from lowtide.engine.capture import joint
from lowtide.engine.graphs import rewrite
from lowtide.errors import LowtideWarning
from tests.exactness.models import CASES
from tests.exactness.test_exactness import assert_same, build, everything_again, train


def planned_and_plain(name: str) -> tuple[Any, Any]:
    torch._dynamo.reset()
    (case,) = [c for c in CASES if c.name == name]
    model, batches, loss = build(case)
    expected = train(copy.deepcopy(model), batches, loss)
    model._compiled_call_impl = everything_again(model)  # type: ignore[assignment]
    return train(model, batches, loss), expected


def draw_again(state: torch.Tensor, target: Any, /, *args: Any, **kwargs: Any) -> Any:
    """What a recomputation does that does not know of random numbers."""
    return target(*args, **kwargs)


@pytest.mark.parametrize("name", ["dropout_everywhere", "attention_with_dropout"])
def test_drawing_again_is_seen(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rewrite, "draw_again", draw_again)
    actual, expected = planned_and_plain(name)
    assert torch.equal(actual[0]["loss"], expected[0]["loss"]), "the forward is right"
    with pytest.raises(AssertionError, match="step 0: grad"):
        assert_same(actual, expected)
    assert not torch.equal(actual[0]["generator"], expected[0]["generator"])


def test_normalising_again_with_changed_statistics_is_seen(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def plain_again(self: Any, op: Any) -> Any:
        return joint.PieceOp(
            op.node, "plain", op.reads, op.writes, is_forward=op.is_forward
        )

    # PieceOp.standby is derived from the variant; a plain op stands in for itself.
    monkeypatch.setattr(joint._Reader, "batch_norm_again", plain_again)
    monkeypatch.setattr(joint.PieceOp, "standby", property(lambda op: not op.once))
    with pytest.raises((LowtideWarning, AssertionError)):
        assert_same(*planned_and_plain("batch_norm_training"))

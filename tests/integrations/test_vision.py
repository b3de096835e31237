"""timm and diffusers: models of other libraries, in a plain loop."""

from __future__ import annotations

import diffusers
import pytest
import timm
import torch

import lowtide
from lowtide.integrations.roots import plan_what_is_trained
from tests.integrations.comparing import (
    LOWTIDE_WARNINGS_ONLY,
    Trained,
    assert_same_with_less,
)

pytestmark = LOWTIDE_WARNINGS_ONLY


def loop(model, step) -> Trained:
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-2)
    losses = []
    for _ in range(4):
        loss = step(model)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    return Trained(model, losses)


def images(model):
    scores = model(torch.randn(32, 3, 64, 64))
    return torch.nn.functional.cross_entropy(scores, torch.randint(0, 10, (32,)))


def noise(model):
    clean, drawn = torch.randn(4, 3, 32, 32), torch.randn(4, 3, 32, 32)
    times = torch.randint(0, 1000, (4,))
    return (model(clean + drawn, times).sample - drawn).square().mean()


def resnet():
    return timm.create_model("resnet10t", num_classes=10)


def vit():
    return timm.create_model(
        "vit_tiny_patch16_224", num_classes=10, img_size=64, depth=4, drop_path_rate=0.1
    )


def unet():
    return diffusers.UNet2DModel(
        sample_size=32,
        block_out_channels=(16, 32),
        layers_per_block=1,
        norm_num_groups=8,
        down_block_types=("DownBlock2D", "AttnDownBlock2D"),
        up_block_types=("AttnUpBlock2D", "UpBlock2D"),
    )


@pytest.mark.parametrize(
    ("make", "step"), [(resnet, images), (vit, images), (unet, noise)]
)
def test_a_plain_loop_without_an_edit(make, step):
    def run(budget):
        if budget:
            plan_what_is_trained(budget=budget)
        return loop(make().train(), step)

    planned = assert_same_with_less(run, budget="80%", share=0.95)
    assert lowtide.planned(planned.model).plans

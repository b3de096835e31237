"""Images and films: timm and torchvision."""

from __future__ import annotations

import sys
from functools import partial
from typing import Any

import numpy as np
import torch
from torch.nn import functional as F

from benchmarks.zoo.cases import Example, Loss, add

CLASSES = 10
BATCH = 4


def images(size: int, batch: int = BATCH, channels: int = 3) -> list[Any]:
    """Two batches of random images."""
    return [(torch.randn(batch, channels, size, size),) for _ in range(2)]


def films(frames: int, size: int, batch: int = 2) -> list[Any]:
    """Two batches of random films."""
    return [(torch.randn(batch, 3, frames, size, size),) for _ in range(2)]


def classes(batch: int = BATCH) -> Loss:
    """Cross entropy of scores; of each of them, if a model has helpers in training."""
    targets = torch.randint(CLASSES, (batch,))

    def loss(output: Any) -> torch.Tensor:
        scores = output if isinstance(output, tuple | list) else (output,)
        total = F.cross_entropy(scores[0], targets)
        for other in scores[1:]:
            total = total + 0.3 * F.cross_entropy(other, targets)
        return total

    return loss


def from_timm(name: str, size: int, batch: int = BATCH, **options: Any) -> Example:
    import timm

    model = timm.create_model(name, pretrained=False, num_classes=CLASSES, **options)
    return Example(model, images(size, batch), classes(batch))


# Of each family a small one, by the side of the image.
TIMM = {
    64: """
    mobileone_s1 repvgg_a0 convnext_atto_rms convnextv2_atto cpubone_nano csatv2
    cs3darknet_focus_s densenet121 dla60x_c dpn48b edgenext_xx_small mnasnet_small
    mixnet_s tinynet_e mobilenetv2_050 fbnetc_100 efficientvim_m1 efficientvit_b0
    fasternet_t0 fastvit_t8 ghostnet_050 hardcorenas_b hgnetv2_b0 hrnet_w18_small
    iformer_t inception_next_atto lcnetv2_small lcnet_050 lowformer_b0 poolformerv2_s12
    mobilenetv3_small_050 mobilevit_xxs mobilevitv2_050 nf_resnet26 nf_regnet_b0
    pvt_v2_b0 regnetx_002 regnety_002 repghostnet_050 repvit_m1 resnest14d resnet10t
    resnet18 ecaresnet26t gcresnext26ts resnetv2_18 rexnet_100 legacy_seresnet18
    shvit_s1 skresnet18 starnet_s050 ese_vovnet19b_slim_dw crossvit_tiny_240 rdnet_tiny
    res2next50
    """,
    128: "tiny_vit_5m_224 selecsls42",
    160: "test_mambaout test_resnet test_convnext test_byobnet test_efficientnet_ln",
}
TIMM_OF_A_SIZE = {
    64: """
    eca_botnext26ts_256 sebotnet33ts_256 lambda_resnet26rpt_256 cait_xxs24_224
    coat_tiny convit_tiny deit_tiny_patch16_224
    deit_tiny_distilled_patch16_224 vit_tiny_patch16_dinov3_qkvb gmlp_ti16_224
    mixer_s32_224 resmlp_12_224 pit_ti_224 visformer_tiny vit_tiny_patch16_224
    vit_srelpos_small_patch16_224 xcit_nano_12_p8_224 swin_tiny_patch4_window7_224
    swinv2_cr_tiny_224 twins_svt_small tnt_s_legacy_patch16_224 mvitv2_tiny
    """,
    128: """
    efficientformerv2_s0 efficientvit_m0 levit_128 maxvit_pico_rw_256
    coatnet_pico_rw_224 nest_tiny vit_tiny_r_s16_p8_224 sequencer2d_s
    """,
    160: "test_vit test_vit2 test_vit4",
    224: "gcvit_xxtiny",
}

for side, names in TIMM.items():
    for name in names.split():
        add(f"timm/{name}", partial(from_timm, name, side))
# Models that must be told the size of the image.
for side, names in TIMM_OF_A_SIZE.items():
    for name in names.split():
        add(f"timm/{name}", partial(from_timm, name, side, img_size=side))


def from_torchvision(
    name: str, size: int, batch: int = BATCH, **options: Any
) -> Example:
    from torchvision import models

    model = models.get_model(name, weights=None, num_classes=CLASSES, **options)
    return Example(model, images(size, batch), classes(batch))


TORCHVISION = {
    64: "resnet18 resnext50_32x4d densenet121 mobilenet_v2 "
    "mobilenet_v3_small mnasnet0_5 efficientnet_b0 efficientnet_v2_s squeezenet1_1 "
    "shufflenet_v2_x0_5 regnet_y_400mf regnet_x_400mf convnext_tiny swin_t swin_v2_t",
}
for side, names in TORCHVISION.items():
    for name in names.split():
        add(f"torchvision/{name}", partial(from_torchvision, name, side))
add(
    "torchvision/inception_v3_auxiliary",
    partial(from_torchvision, "inception_v3", 299, 2, init_weights=False),
)
add(
    "torchvision/googlenet",
    partial(from_torchvision, "googlenet", 96, init_weights=False),
)
add("torchvision/maxvit_t", partial(from_torchvision, "maxvit_t", 224, 1))


def pixels(name: str, size: int = 96) -> Example:
    """A segmentation model, with its helper where it has one."""
    from torchvision import models

    options = {} if name.startswith("lraspp") else {"aux_loss": True}
    model = models.get_model(
        name, weights=None, weights_backbone=None, num_classes=CLASSES, **options
    )
    targets = torch.randint(CLASSES, (2, size, size))

    def loss(output: Any) -> torch.Tensor:
        total = F.cross_entropy(output["out"], targets)
        if "aux" in output:
            total = total + 0.5 * F.cross_entropy(output["aux"], targets)
        return total

    return Example(model, images(size, 2), loss)


SEGMENTATION = """fcn_resnet50 deeplabv3_mobilenet_v3_large deeplabv3_resnet50
lraspp_mobilenet_v3_large"""
for name in SEGMENTATION.split():
    add(f"torchvision/{name}", partial(pixels, name))


def film(name: str, frames: int = 8, size: int = 48, **options: Any) -> Example:
    from torchvision import models

    model = models.get_model(name, weights=None, num_classes=CLASSES, **options)
    return Example(model, films(frames, size), classes(2))


add("torchvision/r3d_18", partial(film, "r3d_18"))
add("torchvision/mc3_18", partial(film, "mc3_18"))
add("torchvision/r2plus1d_18", partial(film, "r2plus1d_18"))
add("torchvision/swin3d_t", partial(film, "swin3d_t", 4, 64))


def flow(name: str) -> Example:
    """Optical flow between two images, refined several times."""
    from torchvision import models

    pairs = [
        (torch.randn(1, 3, 128, 128), torch.randn(1, 3, 128, 128)) for _ in range(2)
    ]

    def loss(flows: Any) -> torch.Tensor:
        return sum((f.abs().mean() for f in flows), torch.zeros(()))

    return Example(models.get_model(name, weights=None), pairs, loss)


add("torchvision/raft_small", partial(flow, "raft_small"))


def boxes(name: str, size: int = 128, **options: Any) -> Example:
    """A detector: images of two sizes, and what is on them."""
    from torchvision import models

    have_compiled_operators()
    model = models.get_model(
        name, weights=None, weights_backbone=None, num_classes=CLASSES, **options
    )

    def picture() -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
        corners = torch.rand(3, 2) * size / 2
        sides = 8 + torch.rand(3, 2) * size / 3
        found = {
            "boxes": torch.cat([corners, corners + sides], 1),
            "labels": torch.randint(1, CLASSES, (3,)),
        }
        if "mask" in name:
            found["masks"] = torch.randint(2, (3, size, size), dtype=torch.uint8)
        if "keypoint" in name:
            points = corners[:, None] + torch.rand(3, 17, 2) * sides[:, None]
            found["keypoints"] = torch.cat([points, torch.ones(3, 17, 1)], 2)
        return torch.rand(3, size, size), found

    batches: list[Any] = []
    for _ in range(2):
        pictures, found = zip(*(picture() for _ in range(2)), strict=True)
        batches.append((list(pictures), list(found)))

    def loss(parts: Any) -> torch.Tensor:
        return sum(parts.values(), torch.zeros(()))

    return Example(model, batches, loss)


_registered: list[torch.library.Library] = []


def have_compiled_operators() -> None:
    """Let detectors run where torchvision's compiled part cannot be loaded."""
    from torchvision import extension

    if extension._has_ops() or _registered:
        return
    sys.modules["torchvision.ops.boxes"]._assert_has_ops = lambda: None
    # Its stand-in is for `torch.compile`; here it runs as it is.
    align = sys.modules["torchvision.ops.roi_align"]
    align._roi_align = align._roi_align.__wrapped__
    library = torch.library.Library("torchvision", "IMPL")
    library.impl("nms", _kept_boxes, "CPU")
    _registered.append(library)


def _kept_boxes(
    found: torch.Tensor, scores: torch.Tensor, threshold: float
) -> torch.Tensor:
    """The boxes that overlap no box of a higher score."""
    from torchvision.ops import box_iou

    order = scores.argsort(descending=True, stable=True)
    overlaps = (box_iou(found[order], found[order]) > threshold).numpy()
    covered = np.zeros(len(order), dtype=bool)
    kept: list[int] = []
    for place in range(len(order)):
        if not covered[place]:
            kept.append(place)
            covered |= overlaps[place]
    return order[torch.tensor(kept, dtype=torch.long)]


SMALL = {"min_size": 128, "max_size": 128}
DETECTION = """fasterrcnn_mobilenet_v3_large_fpn fasterrcnn_resnet50_fpn
retinanet_resnet50_fpn fcos_resnet50_fpn maskrcnn_resnet50_fpn
keypointrcnn_resnet50_fpn"""
# Without torchvision's compiled ops each proposal costs eager milliseconds.
FEW_PROPOSALS = {"rpn_post_nms_top_n_train": 64, "box_batch_size_per_image": 16}
for name in DETECTION.split():
    options: dict[str, Any] = SMALL | (FEW_PROPOSALS if "rcnn" in name else {})
    if "keypoint" in name:
        options |= {"num_keypoints": 17}
    if "mask" in name:  # whose crops make an eager step of 15 seconds at twice the size
        options |= {"size": 64, "min_size": 64, "max_size": 64}
    add(f"torchvision/{name}", partial(boxes, name, **options))
add("torchvision/ssd300_vgg16", partial(boxes, "ssd300_vgg16"))
add(
    "torchvision/ssdlite320_mobilenet_v3_large",
    partial(boxes, "ssdlite320_mobilenet_v3_large"),
)

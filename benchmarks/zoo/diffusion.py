"""Denoisers and autoencoders of diffusers, from small configurations."""

from __future__ import annotations

from functools import partial
from typing import Any

import torch

from benchmarks.zoo.cases import Example, add

BATCH = 2


def noise_loss(output: Any) -> torch.Tensor:
    """The mean square of what a denoiser predicts."""
    value = output.sample if hasattr(output, "sample") else output[0]
    parts = value if isinstance(value, list | tuple) else (value,)
    return sum((v.float().square().mean() for v in parts), torch.zeros(()))


def image(channels: int = 4, side: int = 16) -> torch.Tensor:
    """Latent images."""
    return torch.randn(BATCH, channels, side, side)


def moment() -> torch.Tensor:
    """How far the noise has got."""
    return torch.randint(1, 1000, (BATCH,))


def words(width: int = 32, length: int = 12) -> torch.Tensor:
    """A text, encoded."""
    return torch.randn(BATCH, length, width)


def denoiser(kind: str, options: dict[str, Any], inputs: Any) -> Example:
    """A model of this class, called with what `inputs` makes."""
    import diffusers

    model = getattr(diffusers, kind)(**options)
    return Example(model, [inputs() for _ in range(2)], noise_loss)


def denoise(kind: str, inputs: Any, **options: Any) -> None:
    """Register a model that removes noise."""
    add(f"diffusers/{kind}", partial(denoiser, kind, options, inputs))


def autoencoder(kind: str, options: dict[str, Any], shape: tuple[int, ...]) -> Example:
    """A model that learns to give back its input."""
    import diffusers

    model = getattr(diffusers, kind)(**options)
    return Example(model, [(torch.randn(shape),) for _ in range(2)], noise_loss)


def encode(kind: str, *shape: int, **options: Any) -> None:
    """Register an autoencoder."""
    shape = shape or (BATCH, 3, 32, 32)
    add(f"diffusers/{kind}", partial(autoencoder, kind, options, shape))


DOWN, UP = ("DownBlock2D", "AttnDownBlock2D"), ("AttnUpBlock2D", "UpBlock2D")
CROSS_DOWN = ("CrossAttnDownBlock2D", "DownBlock2D")
CROSS_UP = ("UpBlock2D", "CrossAttnUpBlock2D")
SMALL_UNET = {
    "block_out_channels": (32, 64),
    "layers_per_block": 1,
    "norm_num_groups": 8,
}

denoise(
    "UNet2DModel",
    lambda: (image(3, 32), moment()),
    **SMALL_UNET,
    sample_size=32,
    down_block_types=DOWN,
    up_block_types=UP,
    attention_head_dim=8,
)
denoise(
    "UNet2DConditionModel",
    lambda: (image(4, 32), moment(), words()),
    **SMALL_UNET,
    sample_size=32,
    down_block_types=CROSS_DOWN,
    up_block_types=CROSS_UP,
    cross_attention_dim=32,
    attention_head_dim=8,
)
denoise(
    "UNet1DModel",
    lambda: (torch.randn(BATCH, 14, 256), moment()),
    sample_size=256,
    in_channels=14,
    out_channels=14,
    block_out_channels=(32, 32, 64),
    extra_in_channels=64,
)
denoise(
    "UNet3DConditionModel",
    lambda: (torch.randn(1, 4, 4, 16, 16), moment()[:1], words()[:1]),
    **SMALL_UNET,
    sample_size=16,
    down_block_types=("CrossAttnDownBlock3D", "DownBlock3D"),
    up_block_types=("UpBlock3D", "CrossAttnUpBlock3D"),
    cross_attention_dim=32,
    attention_head_dim=8,
)
denoise(
    "UNetSpatioTemporalConditionModel",
    lambda: (
        torch.randn(1, 2, 8, 16, 16),
        moment()[:1],
        words(32, 1)[:1],
        torch.randn(1, 3),
    ),
    block_out_channels=(32, 64),
    layers_per_block=1,
    sample_size=16,
    down_block_types=(
        "CrossAttnDownBlockSpatioTemporal",
        "DownBlockSpatioTemporal",
    ),
    up_block_types=("UpBlockSpatioTemporal", "CrossAttnUpBlockSpatioTemporal"),
    cross_attention_dim=32,
    num_attention_heads=8,
    projection_class_embeddings_input_dim=96,
    addition_time_embed_dim=32,
)
denoise(
    "UVit2DModel",
    lambda: (
        torch.randint(64, (BATCH, 16, 16)),
        words(),
        torch.randn(BATCH, 64),
        torch.randn(BATCH, 5),
    ),
    block_out_channels=64,
    encoder_hidden_size=32,
    hidden_size=64,
    intermediate_size=128,
    micro_cond_embed_dim=40,
    micro_cond_encode_dim=8,
    cond_embed_dim=64,
    num_attention_heads=4,
    block_num_heads=4,
    num_hidden_layers=2,
    codebook_size=64,
    vocab_size=65,
    in_channels=64,
    use_bias=False,
)
denoise(
    "DiTTransformer2DModel",
    lambda: {
        "hidden_states": image(),
        "timestep": moment(),
        "class_labels": torch.randint(10, (BATCH,)),
    },
    sample_size=16,
    num_layers=3,
    attention_head_dim=16,
    num_attention_heads=4,
    in_channels=4,
    out_channels=8,
    num_embeds_ada_norm=1000,
)
denoise(
    "PixArtTransformer2DModel",
    lambda: {
        "hidden_states": image(),
        "timestep": moment(),
        "encoder_hidden_states": words(),
        "added_cond_kwargs": {"aspect_ratio": None, "resolution": None},
    },
    sample_size=16,
    num_layers=3,
    patch_size=2,
    attention_head_dim=16,
    num_attention_heads=4,
    in_channels=4,
    out_channels=8,
    cross_attention_dim=64,
    caption_channels=32,
    use_additional_conditions=False,
)
denoise(
    "Transformer2DModel",
    lambda: {"hidden_states": image(32), "encoder_hidden_states": words()},
    num_attention_heads=4,
    attention_head_dim=16,
    in_channels=32,
    num_layers=3,
    cross_attention_dim=32,
    norm_num_groups=8,
)
denoise(
    "SD3Transformer2DModel",
    lambda: {
        "hidden_states": image(),
        "encoder_hidden_states": words(),
        "pooled_projections": torch.randn(BATCH, 64),
        "timestep": moment(),
    },
    sample_size=16,
    patch_size=2,
    in_channels=4,
    num_layers=3,
    attention_head_dim=16,
    num_attention_heads=4,
    caption_projection_dim=64,
    joint_attention_dim=32,
    pooled_projection_dim=64,
    out_channels=4,
)
denoise(
    "FluxTransformer2DModel",
    lambda: {
        "hidden_states": torch.randn(BATCH, 64, 4),
        "encoder_hidden_states": words(),
        "pooled_projections": torch.randn(BATCH, 32),
        "timestep": torch.rand(BATCH),
        "img_ids": torch.zeros(64, 3),
        "txt_ids": torch.zeros(12, 3),
    },
    patch_size=1,
    in_channels=4,
    num_layers=2,
    num_single_layers=2,
    attention_head_dim=16,
    num_attention_heads=4,
    joint_attention_dim=32,
    pooled_projection_dim=32,
    axes_dims_rope=[4, 4, 8],
)
denoise(
    "AuraFlowTransformer2DModel",
    lambda: {
        "hidden_states": image(),
        "encoder_hidden_states": words(),
        "timestep": torch.rand(BATCH),
    },
    sample_size=16,
    patch_size=2,
    in_channels=4,
    num_mmdit_layers=1,
    num_single_dit_layers=2,
    attention_head_dim=16,
    num_attention_heads=4,
    caption_projection_dim=64,
    joint_attention_dim=32,
    out_channels=4,
    pos_embed_max_size=256,
)
denoise(
    "CogVideoXTransformer3DModel",
    lambda: {
        "hidden_states": torch.randn(1, 3, 4, 16, 16),
        "encoder_hidden_states": words()[:1],
        "timestep": moment()[:1],
    },
    num_attention_heads=4,
    attention_head_dim=16,
    in_channels=4,
    out_channels=4,
    time_embed_dim=8,
    text_embed_dim=32,
    num_layers=2,
    sample_width=16,
    sample_height=16,
    sample_frames=9,
    patch_size=2,
    max_text_seq_length=12,
)
denoise(
    "LTXVideoTransformer3DModel",
    lambda: {
        "hidden_states": torch.randn(1, 2 * 8 * 8, 4),
        "encoder_hidden_states": words()[:1],
        "timestep": moment()[:1],
        "encoder_attention_mask": torch.ones(1, 12),
        "num_frames": 2,
        "height": 8,
        "width": 8,
    },
    in_channels=4,
    out_channels=4,
    num_attention_heads=4,
    attention_head_dim=16,
    cross_attention_dim=64,
    num_layers=2,
    caption_channels=32,
)
denoise(
    "SanaTransformer2DModel",
    lambda: {
        "hidden_states": image(),
        "encoder_hidden_states": words(),
        "timestep": moment(),
    },
    in_channels=4,
    out_channels=4,
    num_layers=2,
    attention_head_dim=16,
    num_attention_heads=4,
    num_cross_attention_heads=4,
    cross_attention_head_dim=16,
    cross_attention_dim=64,
    caption_channels=32,
    sample_size=16,
    patch_size=1,
)
denoise(
    "PriorTransformer",
    lambda: {
        "hidden_states": torch.randn(BATCH, 64),
        "timestep": moment(),
        "proj_embedding": torch.randn(BATCH, 64),
        "encoder_hidden_states": words(64, 77),
    },
    num_attention_heads=4,
    attention_head_dim=16,
    num_layers=3,
    embedding_dim=64,
    num_embeddings=77,
    additional_embeddings=4,
)
denoise(
    "StableCascadeUNet",
    lambda: {
        "sample": image(4, 16),
        "timestep_ratio": torch.rand(BATCH),
        "clip_text_pooled": words(32, 1),
        "clip_text": words(32, 12),
        "clip_img": words(32, 1),
    },
    in_channels=4,
    out_channels=4,
    timestep_ratio_embedding_dim=16,
    conditioning_dim=64,
    block_out_channels=(32, 64),
    num_attention_heads=(4, 4),
    down_num_layers_per_block=(1, 1),
    up_num_layers_per_block=(1, 1),
    down_blocks_repeat_mappers=(1, 1),
    up_blocks_repeat_mappers=(1, 1),
    block_types_per_layer=(
        ("SDCascadeResBlock", "SDCascadeTimestepBlock", "SDCascadeAttnBlock"),
        ("SDCascadeResBlock", "SDCascadeTimestepBlock", "SDCascadeAttnBlock"),
    ),
    clip_text_in_channels=32,
    clip_text_pooled_in_channels=32,
    clip_image_in_channels=32,
    switch_level=(False,),
)
denoise(
    "ControlNetModel",
    lambda: (image(4, 32), moment(), words(), torch.randn(BATCH, 3, 256, 256)),
    block_out_channels=(32, 64),
    layers_per_block=1,
    norm_num_groups=8,
    down_block_types=CROSS_DOWN,
    cross_attention_dim=32,
    attention_head_dim=8,
    conditioning_embedding_out_channels=(8, 16, 32, 64),
)

SMALL_CODEC = {
    "block_out_channels": (32, 64),
    "down_block_types": ("DownEncoderBlock2D",) * 2,
    "up_block_types": ("UpDecoderBlock2D",) * 2,
    "norm_num_groups": 8,
}
encode("AutoencoderKL", **SMALL_CODEC, latent_channels=4)
encode("VQModel", **SMALL_CODEC, latent_channels=3, num_vq_embeddings=64)
encode(
    "AutoencoderTiny",
    encoder_block_out_channels=(32, 32),
    decoder_block_out_channels=(32, 32),
    num_encoder_blocks=(1, 2),
    num_decoder_blocks=(2, 1),
)
encode(
    "AsymmetricAutoencoderKL",
    down_block_types=("DownEncoderBlock2D",) * 2,
    down_block_out_channels=(32, 64),
    layers_per_down_block=1,
    up_block_types=("UpDecoderBlock2D",) * 2,
    up_block_out_channels=(32, 64),
    layers_per_up_block=1,
    norm_num_groups=8,
)
encode(
    "AutoencoderKLTemporalDecoder",
    block_out_channels=(32, 64),
    down_block_types=("DownEncoderBlock2D",) * 2,
    latent_channels=4,
    layers_per_block=1,
)
encode(
    "AutoencoderOobleck",
    1,
    2,
    2048,
    encoder_hidden_size=16,
    decoder_channels=16,
    decoder_input_channels=8,
    downsampling_ratios=[2, 4],
    channel_multiples=[1, 2],
    audio_channels=2,
)
encode(
    "AutoencoderKLCogVideoX",
    1,
    3,
    5,
    16,
    16,
    block_out_channels=(16, 16, 16, 16),
    down_block_types=("CogVideoXDownBlock3D",) * 4,
    up_block_types=("CogVideoXUpBlock3D",) * 4,
    layers_per_block=1,
    norm_num_groups=8,
    latent_channels=4,
)
encode(
    "AutoencoderDC",
    encoder_block_types="ResBlock",
    decoder_block_types="ResBlock",
    encoder_block_out_channels=(32, 64),
    decoder_block_out_channels=(32, 64),
    encoder_layers_per_block=(1, 1),
    decoder_layers_per_block=(1, 1),
    encoder_qkv_multiscales=((), ()),
    decoder_qkv_multiscales=((), ()),
    latent_channels=4,
    attention_head_dim=8,
)

"""Transformers from Hugging Face, built from a configuration with random weights.

Each batch holds labels, so the model computes the loss itself, as people train them.
"""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from lowtide.errors import InvalidArgumentError
from lowtide.models._catalog import transformer_data
from lowtide.models._libraries import transformers
from lowtide.models._own import check_heads

Built = tuple[nn.Module, dict[str, Tensor], None]

# The share of tokens a masked language model is asked for; the label of the others.
_MASKED_FRACTION = 0.15
_IGNORED_LABEL = -100


def gpt2(
    name: str, *, batch: int, sequence: int, positions: int, **sizes: Any
) -> Built:
    """GPT-2 with its language-model head."""
    last = sizes["vocab"] - 1
    # The published ids lie outside a smaller vocabulary.
    marks = {"bos_token_id": last, "eos_token_id": last}
    model = _model(name, sizes, n_positions=max(positions, sequence), **marks)
    # The library falls back to this very loss with a warning, which on a first step
    # under torch.compile breaks the graph before the loss.
    model.loss_type = "ForCausalLM"
    return model, _text(sizes["vocab"], batch, sequence), None


def llama(name: str, *, size: str, batch: int, sequence: int, **given: Any) -> Built:
    """Llama with its language-model head."""
    sizes: dict[str, Any] = {**transformer_data("llama")["sizes"][size]}
    tied = sizes.pop("tied", False)
    sizes |= {word: value for word, value in given.items() if value is not None}
    check_heads(name, sizes["width"], sizes["heads"])
    if sizes["heads"] % sizes["kv_heads"]:
        raise InvalidArgumentError(
            f"kv_heads={sizes['kv_heads']} of model {name!r}",
            f"{sizes['heads']} heads cannot share them evenly",
            f"Use a divisor of {sizes['heads']}",
        )
    positions = {"max_position_embeddings": max(8_192, sequence)}
    model = _model(name, sizes, tie_word_embeddings=tied, **positions)
    return model, _text(sizes["vocab"], batch, sequence), None


def bert(
    name: str, *, batch: int, sequence: int, positions: int, **sizes: Any
) -> Built:
    """BERT with its masked-language-model head; 15 % of the tokens are asked for."""
    inputs = _text(sizes["vocab"], batch, sequence)
    asked = torch.rand(batch, sequence, dtype=torch.float32) < _MASKED_FRACTION
    # Without any asked token the loss would be 0 / 0.
    asked[:, 0] = True
    inputs["labels"] = inputs["labels"].masked_fill(~asked, _IGNORED_LABEL)
    model = _model(name, sizes, max_position_embeddings=max(positions, sequence))
    return model, inputs, None


def t5(
    name: str, *, batch: int, sequence: int, target: int | None, **sizes: Any
) -> Built:
    """T5 that reads `sequence` tokens and answers with `target` tokens."""
    model = _model(name, sizes, d_kv=sizes["width"] // sizes["heads"])
    inputs = {
        "input_ids": torch.randint(sizes["vocab"], (batch, sequence)),
        "labels": torch.randint(sizes["vocab"], (batch, target or sequence)),
    }
    return model, inputs, None


def vit(
    name: str, *, batch: int, image: int, classes: int, patch: int, **sizes: Any
) -> Built:
    """A vision transformer that classifies."""
    if image % patch:
        raise InvalidArgumentError(
            f"image={image} of model {name!r}",
            f"it is not a whole number of patches of {patch} pixels",
            f"Use a multiple of {patch}",
        )
    inputs = {
        "pixel_values": torch.randn(batch, 3, image, image),
        "labels": torch.randint(classes, (batch,)),
    }
    shape = {"image_size": image, "patch_size": patch, "num_labels": classes}
    return _model(name, sizes, **shape), inputs, None


def _model(name: str, sizes: Mapping[str, Any], **settings: Any) -> Any:
    """The model whose configuration has these sizes and settings, in its own words."""
    check_heads(name, sizes["width"], sizes["heads"])
    data = transformer_data(name.partition("_")[0])
    sizes = {**sizes, "intermediate": sizes["intermediate"] or 4 * sizes["width"]}
    for ours, value in sizes.items():
        settings |= dict.fromkeys(data["words"][ours].split(), value)
    config = getattr(transformers(), data["config"])(**data["settings"], **settings)
    return getattr(transformers(), data["model"])(config)


def _text(vocab: int, batch: int, sequence: int) -> dict[str, Tensor]:
    """Random tokens, to be predicted themselves (the model shifts them)."""
    tokens = torch.randint(vocab, (batch, sequence))
    # A copy, because a step cannot tell apart two arguments that share one storage.
    return {"input_ids": tokens, "labels": tokens.clone()}

"""Transformers from Hugging Face, built from a configuration with random weights.

Each batch holds labels, so the model computes the loss itself, as people train them.
"""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from lowtide.errors import InvalidArgumentError
from lowtide.models._libraries import transformers
from lowtide.models._own import check_heads

Built = tuple[nn.Module, dict[str, Tensor], None]

# Sizes as in the published configurations; "small" is one that trains on a laptop.
_LLAMA_WORDS = ("vocab", "layers", "width", "heads", "kv_heads", "intermediate")
_LLAMA_SIZES = {
    "small": (32_000, 8, 512, 8, 4, 1_408),
    "1b": (128_256, 16, 2_048, 32, 8, 8_192),
    "8b": (128_256, 32, 4_096, 32, 8, 14_336),
    "70b": (128_256, 80, 8_192, 64, 8, 28_672),
    "405b": (128_256, 126, 16_384, 128, 8, 53_248),
}
# Of the sizes above, only the 1B model reads and scores tokens with one matrix.
_LLAMA_TIED = frozenset({"1b"})

# The share of tokens a masked language model is asked for; the label of the others.
_MASKED_FRACTION = 0.15
_IGNORED_LABEL = -100

# Our options in the words of the libraries' configurations.
_WORDS = {
    "width": "hidden_size",
    "layers": "num_hidden_layers",
    "heads": "num_attention_heads",
    "kv_heads": "num_key_value_heads",
    "intermediate": "intermediate_size",
    "dropout": "hidden_dropout_prob attention_probs_dropout_prob",
    "attention": "attn_implementation",
    "vocab": "vocab_size",
}
_GPT2_WORDS = {
    **_WORDS,
    "width": "n_embd",
    "layers": "n_layer",
    "heads": "n_head",
    "intermediate": "n_inner",
    "dropout": "resid_pdrop embd_pdrop attn_pdrop",
}
_T5_WORDS = {
    **_WORDS,
    "width": "d_model",
    "layers": "num_layers",
    "heads": "num_heads",
    "intermediate": "d_ff",
    "dropout": "dropout_rate",
}
_LLAMA_THEIR_WORDS = {**_WORDS, "dropout": "attention_dropout"}


def gpt2(
    name: str, *, batch: int, sequence: int, positions: int, **sizes: Any
) -> Built:
    """GPT-2 with its language-model head."""
    vocab = sizes["vocab"]
    settings = _settings(name, sizes, _GPT2_WORDS)
    config = transformers().GPT2Config(
        n_positions=max(positions, sequence),
        # The published ids lie outside a smaller vocabulary.
        bos_token_id=vocab - 1,
        eos_token_id=vocab - 1,
        use_cache=False,
        **settings,
    )
    model = transformers().GPT2LMHeadModel(config)
    # The library falls back to this very loss with a warning, which on a first step
    # under torch.compile breaks the graph before the loss.
    model.loss_type = "ForCausalLM"
    return model, _text(vocab, batch, sequence), None


def llama(name: str, *, size: str, batch: int, sequence: int, **given: Any) -> Built:
    """Llama with its language-model head."""
    sizes: dict[str, Any] = dict(zip(_LLAMA_WORDS, _LLAMA_SIZES[size], strict=True))
    sizes |= {word: value for word, value in given.items() if value is not None}
    settings = _settings(name, sizes, _LLAMA_THEIR_WORDS)
    if sizes["heads"] % sizes["kv_heads"]:
        raise InvalidArgumentError(
            f"kv_heads={sizes['kv_heads']} of model {name!r}",
            f"{sizes['heads']} heads cannot share them evenly",
            f"Use a divisor of {sizes['heads']}",
        )
    config = transformers().LlamaConfig(
        max_position_embeddings=max(8_192, sequence),
        rope_parameters={"rope_type": "default", "rope_theta": 500_000.0},
        tie_word_embeddings=size in _LLAMA_TIED,
        bos_token_id=0,
        eos_token_id=0,
        use_cache=False,
        **settings,
    )
    model = transformers().LlamaForCausalLM(config)
    return model, _text(sizes["vocab"], batch, sequence), None


def bert(
    name: str, *, batch: int, sequence: int, positions: int, **sizes: Any
) -> Built:
    """BERT with its masked-language-model head; 15 % of the tokens are asked for."""
    config = transformers().BertConfig(
        max_position_embeddings=max(positions, sequence),
        pad_token_id=0,
        use_cache=False,
        **_settings(name, sizes, _WORDS),
    )
    inputs = _text(sizes["vocab"], batch, sequence)
    asked = torch.rand(batch, sequence, dtype=torch.float32) < _MASKED_FRACTION
    # Without any asked token the loss would be 0 / 0.
    asked[:, 0] = True
    inputs["labels"] = inputs["labels"].masked_fill(~asked, _IGNORED_LABEL)
    return transformers().BertForMaskedLM(config), inputs, None


def t5(
    name: str, *, batch: int, sequence: int, target: int | None, **sizes: Any
) -> Built:
    """T5 that reads `sequence` tokens and answers with `target` tokens."""
    config = transformers().T5Config(
        d_kv=sizes["width"] // sizes["heads"],
        pad_token_id=0,
        decoder_start_token_id=0,
        use_cache=False,
        **_settings(name, sizes, _T5_WORDS),
    )
    model = transformers().T5ForConditionalGeneration(config)
    inputs = {
        "input_ids": torch.randint(sizes["vocab"], (batch, sequence)),
        "labels": torch.randint(sizes["vocab"], (batch, target or sequence)),
    }
    return model, inputs, None


def vit(
    name: str, *, batch: int, image: int, classes: int, patch: int, **sizes: Any
) -> Built:
    """A vision transformer that classifies."""
    settings = _settings(name, sizes, _WORDS)
    if image % patch:
        raise InvalidArgumentError(
            f"image={image} of model {name!r}",
            f"it is not a whole number of patches of {patch} pixels",
            f"Use a multiple of {patch}",
        )
    config = transformers().ViTConfig(
        image_size=image,
        patch_size=patch,
        num_labels=classes,
        # Otherwise the loss is guessed from the labels at the first step.
        problem_type="single_label_classification",
        **settings,
    )
    inputs = {
        "pixel_values": torch.randn(batch, 3, image, image),
        "labels": torch.randint(classes, (batch,)),
    }
    return transformers().ViTForImageClassification(config), inputs, None


def _settings(
    name: str, sizes: Mapping[str, Any], words: Mapping[str, str]
) -> dict[str, Any]:
    """The sizes of the blocks in the words of one configuration."""
    check_heads(name, sizes["width"], sizes["heads"])
    sizes = {**sizes, "intermediate": sizes["intermediate"] or 4 * sizes["width"]}
    return {word: v for ours, v in sizes.items() for word in words[ours].split()}


def _text(vocab: int, batch: int, sequence: int) -> dict[str, Tensor]:
    """Random tokens, to be predicted themselves (the model shifts them)."""
    tokens = torch.randint(vocab, (batch, sequence))
    # A copy: two arguments in one storage would be told apart nowhere in a step.
    return {"input_ids": tokens, "labels": tokens.clone()}

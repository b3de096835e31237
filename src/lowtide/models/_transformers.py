"""Transformers from Hugging Face, built from a configuration with random weights.

Each batch holds labels, so the model computes the loss itself, as people train them.
"""

import torch
from torch import Tensor, nn

from lowtide.errors import InvalidArgumentError
from lowtide.models._libraries import transformers

Built = tuple[nn.Module, dict[str, Tensor], None]

# Sizes as in the published configurations; "small" is one that trains on a laptop.
_LLAMA_SIZES: dict[str, dict[str, int]] = {
    "small": {
        "vocab": 32_000,
        "layers": 8,
        "width": 512,
        "heads": 8,
        "kv_heads": 4,
        "intermediate": 1_408,
    },
    "1b": {
        "vocab": 128_256,
        "layers": 16,
        "width": 2_048,
        "heads": 32,
        "kv_heads": 8,
        "intermediate": 8_192,
    },
    "8b": {
        "vocab": 128_256,
        "layers": 32,
        "width": 4_096,
        "heads": 32,
        "kv_heads": 8,
        "intermediate": 14_336,
    },
    "70b": {
        "vocab": 128_256,
        "layers": 80,
        "width": 8_192,
        "heads": 64,
        "kv_heads": 8,
        "intermediate": 28_672,
    },
    "405b": {
        "vocab": 128_256,
        "layers": 126,
        "width": 16_384,
        "heads": 128,
        "kv_heads": 8,
        "intermediate": 53_248,
    },
}
# Of the sizes above, only the 1B model reads and scores tokens with one matrix.
_LLAMA_TIED = frozenset({"1b"})

# The share of tokens a masked language model is asked for; the label of the others.
_MASKED_FRACTION = 0.15
_IGNORED_LABEL = -100


def gpt2(
    name: str,
    *,
    batch: int,
    sequence: int,
    vocab: int,
    layers: int,
    width: int,
    heads: int,
    intermediate: int | None,
    positions: int,
    dropout: float,
    attention: str,
) -> Built:
    """GPT-2 with its language-model head."""
    _check_heads(name, width, heads)
    library = transformers()
    config = library.GPT2Config(
        vocab_size=vocab,
        n_positions=max(positions, sequence),
        n_embd=width,
        n_layer=layers,
        n_head=heads,
        n_inner=intermediate,
        resid_pdrop=dropout,
        embd_pdrop=dropout,
        attn_pdrop=dropout,
        # The published ids lie outside a smaller vocabulary.
        bos_token_id=vocab - 1,
        eos_token_id=vocab - 1,
        use_cache=False,
        attn_implementation=attention,
    )
    model = library.GPT2LMHeadModel(config)
    # The library falls back to this very loss with a warning, which on a first step
    # under torch.compile breaks the graph before the loss.
    model.loss_type = "ForCausalLM"
    return model, _text(vocab, batch, sequence), None


def llama(
    name: str,
    *,
    size: str,
    batch: int,
    sequence: int,
    dropout: float,
    attention: str,
    **sizes: int | None,
) -> Built:
    """Llama with its language-model head."""
    given = {key: value for key, value in sizes.items() if value is not None}
    chosen = {**_LLAMA_SIZES[size], **given}
    _check_heads(name, chosen["width"], chosen["heads"])
    if chosen["heads"] % chosen["kv_heads"]:
        raise InvalidArgumentError(
            f"kv_heads={chosen['kv_heads']} of model {name!r}",
            f"{chosen['heads']} heads cannot share them evenly",
            f"Use a divisor of {chosen['heads']}",
        )
    library = transformers()
    config = library.LlamaConfig(
        vocab_size=chosen["vocab"],
        hidden_size=chosen["width"],
        intermediate_size=chosen["intermediate"],
        num_hidden_layers=chosen["layers"],
        num_attention_heads=chosen["heads"],
        num_key_value_heads=chosen["kv_heads"],
        max_position_embeddings=max(8_192, sequence),
        rope_parameters={"rope_type": "default", "rope_theta": 500_000.0},
        attention_dropout=dropout,
        tie_word_embeddings=size in _LLAMA_TIED,
        bos_token_id=0,
        eos_token_id=0,
        use_cache=False,
        attn_implementation=attention,
    )
    model = library.LlamaForCausalLM(config)
    return model, _text(chosen["vocab"], batch, sequence), None


def bert(
    name: str,
    *,
    batch: int,
    sequence: int,
    vocab: int,
    layers: int,
    width: int,
    heads: int,
    intermediate: int | None,
    positions: int,
    dropout: float,
    attention: str,
) -> Built:
    """BERT with its masked-language-model head; 15 % of the tokens are asked for."""
    _check_heads(name, width, heads)
    library = transformers()
    config = library.BertConfig(
        vocab_size=vocab,
        hidden_size=width,
        num_hidden_layers=layers,
        num_attention_heads=heads,
        intermediate_size=intermediate or 4 * width,
        max_position_embeddings=max(positions, sequence),
        hidden_dropout_prob=dropout,
        attention_probs_dropout_prob=dropout,
        pad_token_id=0,
        use_cache=False,
        attn_implementation=attention,
    )
    inputs = _text(vocab, batch, sequence)
    asked = torch.rand(batch, sequence, dtype=torch.float32) < _MASKED_FRACTION
    # Without any asked token the loss would be 0 / 0.
    asked[:, 0] = True
    inputs["labels"] = inputs["labels"].masked_fill(~asked, _IGNORED_LABEL)
    return library.BertForMaskedLM(config), inputs, None


def t5(
    name: str,
    *,
    batch: int,
    sequence: int,
    target: int | None,
    vocab: int,
    layers: int,
    width: int,
    heads: int,
    intermediate: int | None,
    dropout: float,
    attention: str,
) -> Built:
    """T5 that reads `sequence` tokens and answers with `target` tokens."""
    _check_heads(name, width, heads)
    library = transformers()
    config = library.T5Config(
        vocab_size=vocab,
        d_model=width,
        d_kv=width // heads,
        d_ff=intermediate or 4 * width,
        num_layers=layers,
        num_heads=heads,
        dropout_rate=dropout,
        pad_token_id=0,
        decoder_start_token_id=0,
        use_cache=False,
        attn_implementation=attention,
    )
    model = library.T5ForConditionalGeneration(config)
    inputs = {
        "input_ids": torch.randint(vocab, (batch, sequence)),
        "labels": torch.randint(vocab, (batch, target or sequence)),
    }
    return model, inputs, None


def vit(
    name: str,
    *,
    batch: int,
    image: int,
    classes: int,
    patch: int,
    layers: int,
    width: int,
    heads: int,
    intermediate: int | None,
    dropout: float,
    attention: str,
) -> Built:
    """A vision transformer that classifies."""
    _check_heads(name, width, heads)
    if image % patch:
        raise InvalidArgumentError(
            f"image={image} of model {name!r}",
            f"it is no whole number of patches of {patch} pixels",
            f"Use a multiple of {patch}",
        )
    library = transformers()
    config = library.ViTConfig(
        image_size=image,
        patch_size=patch,
        num_labels=classes,
        hidden_size=width,
        num_hidden_layers=layers,
        num_attention_heads=heads,
        intermediate_size=intermediate or 4 * width,
        hidden_dropout_prob=dropout,
        attention_probs_dropout_prob=dropout,
        # Otherwise the loss is guessed from the labels at the first step.
        problem_type="single_label_classification",
        attn_implementation=attention,
    )
    inputs = {
        "pixel_values": torch.randn(batch, 3, image, image),
        "labels": torch.randint(classes, (batch,)),
    }
    return library.ViTForImageClassification(config), inputs, None


def _text(vocab: int, batch: int, sequence: int) -> dict[str, Tensor]:
    """Random tokens, to be predicted themselves (the model shifts them)."""
    tokens = torch.randint(vocab, (batch, sequence))
    # A copy: two arguments in one storage would be told apart nowhere in a step.
    return {"input_ids": tokens, "labels": tokens.clone()}


def _check_heads(name: str, width: int, heads: int) -> None:
    if width % heads:
        raise InvalidArgumentError(
            f"width={width} of model {name!r}",
            f"it cannot be divided among {heads} heads",
            f"Use a multiple of {heads}",
        )

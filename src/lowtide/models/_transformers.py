"""Transformers from Hugging Face, built from a configuration with random weights.

Each batch holds labels, so the model computes the loss itself, as people train them.
"""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from lowtide.errors import InvalidArgumentError
from lowtide.models._libraries import transformers
from lowtide.models._small import check_heads

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


@dataclass(frozen=True, slots=True)
class Stack:
    """The options that all transformers have: those of their blocks."""

    name: str
    layers: int
    width: int
    heads: int
    intermediate: int | None
    dropout: float
    attention: str

    def __post_init__(self) -> None:
        check_heads(self.name, self.width, self.heads)

    @property
    def feed_forward(self) -> int:
        """The width between the two parts of a feed-forward layer."""
        return self.intermediate or 4 * self.width

    def settings(self) -> dict[str, Any]:
        """In the words of most configurations."""
        return {
            "hidden_size": self.width,
            "num_hidden_layers": self.layers,
            "num_attention_heads": self.heads,
            "intermediate_size": self.feed_forward,
            "hidden_dropout_prob": self.dropout,
            "attention_probs_dropout_prob": self.dropout,
            "attn_implementation": self.attention,
        }


def gpt2(
    name: str,
    *,
    batch: int,
    sequence: int,
    vocab: int,
    positions: int,
    **blocks: Any,
) -> Built:
    """GPT-2 with its language-model head."""
    stack = Stack(name, **blocks)
    library = transformers()
    config = library.GPT2Config(
        vocab_size=vocab,
        n_positions=max(positions, sequence),
        n_embd=stack.width,
        n_layer=stack.layers,
        n_head=stack.heads,
        n_inner=stack.intermediate,
        resid_pdrop=stack.dropout,
        embd_pdrop=stack.dropout,
        attn_pdrop=stack.dropout,
        # The published ids lie outside a smaller vocabulary.
        bos_token_id=vocab - 1,
        eos_token_id=vocab - 1,
        use_cache=False,
        attn_implementation=stack.attention,
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
    chosen = dict(zip(_LLAMA_WORDS, _LLAMA_SIZES[size], strict=True))
    chosen |= {word: value for word, value in sizes.items() if value is not None}
    check_heads(name, chosen["width"], chosen["heads"])
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
    positions: int,
    **blocks: Any,
) -> Built:
    """BERT with its masked-language-model head; 15 % of the tokens are asked for."""
    stack = Stack(name, **blocks)
    library = transformers()
    config = library.BertConfig(
        vocab_size=vocab,
        max_position_embeddings=max(positions, sequence),
        pad_token_id=0,
        use_cache=False,
        **stack.settings(),
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
    **blocks: Any,
) -> Built:
    """T5 that reads `sequence` tokens and answers with `target` tokens."""
    stack = Stack(name, **blocks)
    library = transformers()
    config = library.T5Config(
        vocab_size=vocab,
        d_model=stack.width,
        d_kv=stack.width // stack.heads,
        d_ff=stack.feed_forward,
        num_layers=stack.layers,
        num_heads=stack.heads,
        dropout_rate=stack.dropout,
        pad_token_id=0,
        decoder_start_token_id=0,
        use_cache=False,
        attn_implementation=stack.attention,
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
    **blocks: Any,
) -> Built:
    """A vision transformer that classifies."""
    stack = Stack(name, **blocks)
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
        # Otherwise the loss is guessed from the labels at the first step.
        problem_type="single_label_classification",
        **stack.settings(),
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

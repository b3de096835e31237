"""Text, sound and what else transformers has, from small configurations."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch

from benchmarks.zoo.cases import Example, add

VOCABULARY = 512
BATCH, LENGTH = 8, 128

# Words for the same few sizes; each configuration takes those that it knows.
SIZES: dict[int, str] = {
    VOCABULARY: "vocab_size vocab_size_per_layer_input max_position_embeddings "
    "n_positions max_position",
    128: "hidden_size d_model n_embd embed_dim dim embedding_size "
    "d_embed emb_dim word_embed_proj_dim hidden_dim projection_dim",
    256: "intermediate_size ffn_dim encoder_ffn_dim decoder_ffn_dim d_ff n_inner "
    "dff ffn_hidden_size d_inner shared_expert_intermediate_size "
    "shared_intermediate_size moe_shared_expert_intermediate_size "
    "intermediate_size_mlp",
    64: "moe_intermediate_size expert_ffn_hidden_size q_lora_rank kv_lora_rank",
    4: "num_attention_heads n_head "
    "n_heads num_heads encoder_attention_heads decoder_attention_heads num_experts "
    "num_local_experts n_routed_experts moe_num_experts",
    2: "num_hidden_layers n_layer num_layers n_layers "
    "encoder_layers decoder_layers num_decoder_layers num_encoder_layers "
    "num_key_value_heads num_experts_per_tok moe_topk moe_k top_k_experts",
    32: "head_dim d_kv attention_head_dim qk_nope_head_dim v_head_dim",
    16: "qk_rope_head_dim",
    1: "n_group topk_group n_shared_experts first_k_dense_replace eos_token_id",
    0: "pad_token_id bos_token_id",
}
SMALL = {word: size for size, words in SIZES.items() for word in words.split()}


def configured(kind: str, **options: Any) -> Any:
    """A small configuration of this kind of model."""
    from transformers import CONFIG_MAPPING

    make = CONFIG_MAPPING[kind]
    known = make().to_dict()
    known |= dict.fromkeys(make.attribute_map)
    # A list has an entry for each of its stages.
    lists = {word for word, value in known.items() if isinstance(value, list | tuple)}
    lists |= {alias for alias, word in make.attribute_map.items() if word in lists}
    small = {w: size for w, size in SMALL.items() if w in known.keys() - lists}
    # One word for each size: an alias would be set twice.
    for alias, word in make.attribute_map.items():
        if alias in small and word in small:
            small[word] = small.pop(alias)
    return make(**(small | options))


def modelled(auto: str, kind: str, **options: Any) -> Any:
    """A model with random weights, as its `Auto` class makes it."""
    import transformers

    return getattr(transformers, auto).from_config(configured(kind, **options))


def tokens(length: int = LENGTH, batch: int = BATCH) -> torch.Tensor:
    """Random tokens; none is a special one."""
    return torch.randint(3, VOCABULARY, (batch, length))


def writing(kind: str, auto: str = "AutoModelForCausalLM", **options: Any) -> Example:
    """A model that learns to write the text that it reads."""
    model = modelled(auto, kind, **options)
    batches: list[Any] = []
    for _ in range(2):
        text = tokens()
        batches.append({"input_ids": text, "labels": text.clone()})
    return Example(model, batches)


def masked(example: Example, *, hides: bool) -> Example:
    """As a trainer hands it over: with a mask. The second batch's hides something."""
    for number, batch in enumerate(example.batches):
        mask = batch["attention_mask"] = torch.ones_like(batch["input_ids"])
        if hides and number:
            mask[:, -5:] = 0
    return example


def writing_masked(kind: str, *, hides: bool = False, **options: Any) -> Example:
    return masked(writing(kind, **options), hides=hides)


def judging_masked(kind: str) -> Example:
    return masked(judging(kind), hides=True)


def translating(kind: str, **options: Any) -> Example:
    """A model that reads one text and learns to write another."""
    options = {"decoder_start_token_id": 1, **options}
    model = modelled("AutoModelForSeq2SeqLM", kind, **options)
    batches: list[Any] = [
        {"input_ids": tokens(), "labels": tokens(64)} for _ in range(2)
    ]
    return Example(model, batches)


def looking(
    kind: str, size: int = 64, batch: int = BATCH, channels: int = 3, **options: Any
) -> Example:
    """A classifier of images."""
    model = modelled("AutoModelForImageClassification", kind, num_labels=10, **options)
    batches: list[Any] = [
        {
            "pixel_values": torch.randn(batch, channels, size, size),
            "labels": torch.randint(10, (batch,)),
        }
        for _ in range(2)
    ]
    return Example(model, batches)


def listening(kind: str, seconds: float = 0.5, **options: Any) -> Example:
    """A model that learns to write what it hears."""
    model = modelled("AutoModelForCTC", kind, **options)
    batches: list[Any] = [
        {
            "input_values": torch.randn(2, int(16000 * seconds)),
            "labels": torch.randint(3, 20, (2, 8)),
        }
        for _ in range(2)
    ]
    return Example(model, batches)


def hearing_and_writing(kind: str) -> Example:
    """A model that learns to write what it hears, word by word."""
    model = modelled(
        "AutoModelForSpeechSeq2Seq",
        kind,
        decoder_start_token_id=1,
        max_source_positions=64,
        max_target_positions=64,
    )
    batches: list[Any] = [
        {"input_features": torch.randn(2, 80, 128), "labels": tokens(32, 2)}
        for _ in range(2)
    ]
    return Example(model, batches)


def judging(kind: str, **options: Any) -> Example:
    """A classifier of texts."""
    model = modelled("AutoModelForSequenceClassification", kind, **options)
    batches: list[Any] = [
        {"input_ids": tokens(), "labels": torch.randint(2, (BATCH,))} for _ in range(2)
    ]
    return Example(model, batches)


def pairing(kind: str) -> Example:
    """A model that learns which text belongs to which image."""
    import transformers

    text = {word: size for word, size in SMALL.items() if word != "projection_dim"}
    sight = {**text, "image_size": 32, "patch_size": 8}
    parts = {"text_config": text, "vision_config": sight}
    model = transformers.AutoModel.from_config(
        transformers.CONFIG_MAPPING[kind](**parts, projection_dim=64)
    )
    batches: list[Any] = [
        {
            "input_ids": tokens(24),
            "pixel_values": torch.randn(BATCH, 3, 32, 32),
            "return_loss": True,
        }
        for _ in range(2)
    ]
    return Example(model, batches)


def outlining(kind: str, size: int = 64, **options: Any) -> Example:
    """A model that says of each pixel what it shows."""
    model = modelled("AutoModelForSemanticSegmentation", kind, num_labels=10, **options)
    batches: list[Any] = [
        {
            "pixel_values": torch.randn(2, 3, size, size),
            "labels": torch.randint(10, (2, size, size)),
        }
        for _ in range(2)
    ]
    return Example(model, batches)


def watching(kind: str, **options: Any) -> Example:
    """A classifier of films."""
    options = {"image_size": 32, "num_frames": 8, "num_labels": 10, **options}
    model = modelled("AutoModelForVideoClassification", kind, **options)
    batches: list[Any] = [
        {
            "pixel_values": torch.randn(2, 8, 3, 32, 32),
            "labels": torch.randint(10, (2,)),
        }
        for _ in range(2)
    ]
    return Example(model, batches)


WRITERS = """
afmoe apertus arcee aria_text bart bert biogpt bitnet blenderbot bloom cohere cohere2
ctrl diffllama doge dots1 electra ernie4_5 ernie4_5_moe exaone4 falcon gemma gemma2
gemma3_text glm glm4 glm4_moe gpt2 gpt_bigcode gpt_neo gpt_neox gpt_oss granite
granitemoe helium hunyuan_v1_dense jetmoe lfm2 llama mamba mamba2 minicpm3 ministral
mistral mixtral modernbert-decoder mpt nanochat nemotron olmo olmo2 olmo3 olmoe
openai-gpt opt persimmon phi phi3 phimoe qwen2 qwen2_moe qwen3 qwen3_moe
recurrent_gemma rwkv seed_oss smollm3 stablelm starcoder2 vaultgemma xglm xlnet
"""
READERS = """
albert big_bird camembert convbert deberta deberta-v2 distilbert esm fnet funnel ibert
layoutlm longformer megatron-bert mobilebert modernbert mpnet mra nystromformer rembert
roberta roformer squeezebert tapas xlm yoso
"""
TRANSLATORS = """
bigbird_pegasus led longt5 m2m_100 marian mbart mt5 mvp nllb-moe pegasus plbart
prophetnet switch_transformers t5 umt5
"""
LOOKERS = """
beit bit convnext convnextv2 dinov2 focalnet ijepa mobilenet_v1
mobilenet_v2 mobilevit mobilevitv2 poolformer pvt pvt_v2 regnet resnet segformer swin
swiftformer swinv2 vit vit_msn
"""
LISTENERS = """
data2vec-audio hubert sew unispeech unispeech-sat wav2vec2 wav2vec2-conformer wavlm
"""

Make = Callable[..., Example]
# What a kind wants to be told beyond the sizes.
SPECIAL: dict[str, dict[str, Any]] = {
    "gptj": {"rotary_dim": 16},
    "codegen": {"rotary_dim": 16},
    "gpt_neo": {"attention_types": [[["global", "local"], 1]]},
    "mamba2": {"num_heads": 8},
    "minicpm3": {"num_key_value_heads": 4},
    "swin": {"embed_dim": 32, "depths": [1, 1], "num_heads": [2, 4]},
    "swinv2": {"embed_dim": 32, "depths": [1, 1], "num_heads": [2, 4]},
}


def add_all(make: Make, kinds: str, **options: Any) -> None:
    """Register models that differ in their kind only."""
    for kind in kinds.split():
        chosen = {**options, **SPECIAL.get(kind, {})}
        add(f"transformers/{kind}", partial(make, kind, **chosen))


add_all(writing, WRITERS + " gptj codegen")
add_all(writing, READERS, auto="AutoModelForMaskedLM")
add_all(translating, TRANSLATORS)
add_all(looking, LOOKERS, image_size=64)
add_all(listening, LISTENERS)
add_all(hearing_and_writing, "whisper")
add_all(pairing, "clip siglip")
add_all(watching, "timesformer videomae vivit")
for kind in "segformer upernet".split():
    add(f"transformers/{kind}-pixels", partial(outlining, kind))
for kind in "llama qwen3".split():
    add(
        f"transformers/{kind}-masked",
        partial(writing_masked, kind, num_key_value_heads=2),
    )
for kind in "llama gpt2 mistral mamba".split():
    add(f"transformers/{kind}-padded", partial(writing_masked, kind, hides=True))
for kind in "bert distilbert deberta".split():
    add(f"transformers/{kind}-padded", partial(judging_masked, kind))
for kind in "bert gpt2 xlnet canine".split():
    add(f"transformers/{kind}-judge", partial(judging, kind))

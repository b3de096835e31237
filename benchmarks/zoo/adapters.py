"""Models that peft lets learn with few parameters of their own."""

from __future__ import annotations

from functools import partial
from typing import Any

from benchmarks.zoo.cases import Example, add
from benchmarks.zoo.language import modelled, writing

LINEAR = ["q_proj", "v_proj", "up_proj"]


def adapted(kind: str, options: dict[str, Any], base: str = "llama") -> Example:
    """A small language model with an adapter of this kind."""
    import peft

    example = writing(base)
    config = getattr(peft, kind)(task_type="CAUSAL_LM", **options)
    model = peft.get_peft_model(example.model, config)
    return Example(model, example.batches)


def adapt(name: str, kind: str, base: str = "llama", **options: Any) -> None:
    """Register a model with an adapter."""
    add(f"peft/{name}", partial(adapted, kind, options, base))


def classifier_with_lora() -> Example:
    """A reader whose head is trained as a whole, its body through an adapter."""
    import peft

    example = writing("bert", "AutoModelForMaskedLM")
    body = modelled("AutoModelForSequenceClassification", "bert")
    config = peft.LoraConfig(task_type="SEQ_CLS", target_modules=["query", "value"])
    batches = [
        {"input_ids": b["input_ids"], "labels": b["input_ids"][:, 0] % 2}
        for b in example.batches
    ]
    return Example(peft.get_peft_model(body, config), batches)


adapt("lora", "LoraConfig", target_modules=LINEAR, r=8)
adapt("lora_dropout", "LoraConfig", target_modules=LINEAR, lora_dropout=0.1)
adapt("lora_gpt2", "LoraConfig", "gpt2", target_modules=["c_attn"], fan_in_fan_out=True)
adapt("lora_embeddings", "LoraConfig", target_modules=["embed_tokens", "q_proj"])
adapt(
    "lora_saved_head",
    "LoraConfig",
    target_modules=LINEAR,
    modules_to_save=["lm_head"],
)
adapt("dora", "LoraConfig", target_modules=LINEAR, use_dora=True)
adapt("rslora", "LoraConfig", target_modules=LINEAR, use_rslora=True)
adapt("adalora", "AdaLoraConfig", target_modules=LINEAR, total_step=10)
adapt("loha", "LoHaConfig", target_modules=LINEAR)
adapt("lokr", "LoKrConfig", target_modules=LINEAR)
adapt(
    "ia3",
    "IA3Config",
    target_modules=["k_proj", "down_proj"],
    feedforward_modules=["down_proj"],
)
adapt("oft", "OFTConfig", target_modules=["q_proj"], oft_block_size=16)
adapt("hra", "HRAConfig", target_modules=LINEAR)
adapt("vera", "VeraConfig", target_modules=["q_proj", "o_proj"], r=8)
adapt("fourierft", "FourierFTConfig", target_modules=["q_proj"], n_frequency=50)
adapt("ln_tuning", "LNTuningConfig", target_modules=["input_layernorm"])
adapt("miss", "MissConfig", target_modules=LINEAR, r=8)
adapt("prompt_tuning", "PromptTuningConfig", num_virtual_tokens=8)
adapt("prefix_tuning", "PrefixTuningConfig", num_virtual_tokens=8)
adapt("p_tuning", "PromptEncoderConfig", num_virtual_tokens=8)
adapt("trainable_tokens", "TrainableTokensConfig", token_indices=[5, 6, 7])
add("peft/lora_classifier", classifier_with_lora)

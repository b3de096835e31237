"""TRL's supervised fine-tuning of a small Llama, with a tokenizer made on the spot.

lowtide run --budget 70% examples/stacks/trl_sft.py
"""

import torch
from datasets import Dataset
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast
from trl import SFTConfig, SFTTrainer

torch.manual_seed(0)
WORDS = 1024
words = {str(number): number for number in range(WORDS - 1)} | {"<end>": WORDS - 1}
tokenizer = Tokenizer(models.WordLevel(words, unk_token="<end>"))
tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
tokens = torch.randint(0, WORDS - 1, (32, 256))

SFTTrainer(
    model=LlamaForCausalLM(
        LlamaConfig(
            num_hidden_layers=6,
            hidden_size=256,
            intermediate_size=688,
            num_attention_heads=8,
            vocab_size=WORDS,
        )
    ),
    args=SFTConfig(
        output_dir="out",
        per_device_train_batch_size=4,
        max_steps=6,
        logging_steps=1,
        save_strategy="no",
        report_to="none",
        use_cpu=True,
        bf16=False,
        gradient_checkpointing=False,
    ),
    train_dataset=Dataset.from_dict({"input_ids": tokens.tolist()}),
    processing_class=PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, eos_token="<end>", pad_token="<end>"
    ),
).train()

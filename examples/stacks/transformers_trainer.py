"""The Hugging Face Trainer: GPT-2 from a configuration, on random tokens.

lowtide run --budget 60% examples/stacks/transformers_trainer.py
"""

import torch
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainingArguments

torch.manual_seed(0)
config = GPT2Config(n_layer=6, n_embd=256, n_head=8, n_positions=128, vocab_size=1024)
tokens = torch.randint(0, config.vocab_size, (64, config.n_positions))

Trainer(
    model=GPT2LMHeadModel(config),
    args=TrainingArguments(
        output_dir="out",
        per_device_train_batch_size=8,
        max_steps=6,
        logging_steps=1,
        save_strategy="no",
        report_to="none",
        use_cpu=True,
    ),
    train_dataset=[{"input_ids": row, "labels": row} for row in tokens],
).train()

"""LoRA with peft: a frozen Llama with small matrices beside its own, in a plain loop.

lowtide run --budget 70% examples/stacks/peft_lora.py
"""

import torch
from peft import LoraConfig, get_peft_model
from transformers import LlamaConfig, LlamaForCausalLM

torch.manual_seed(0)
config = LlamaConfig(
    num_hidden_layers=6,
    hidden_size=256,
    intermediate_size=688,
    num_attention_heads=8,
    vocab_size=1024,
)
lora = LoraConfig(r=8, target_modules=["q_proj", "v_proj"], lora_dropout=0.05)
model = get_peft_model(LlamaForCausalLM(config), lora)
learning = [p for p in model.parameters() if p.requires_grad]
optimizer = torch.optim.AdamW(learning, lr=1e-3)

for step in range(6):
    tokens = torch.randint(0, config.vocab_size, (8, 128))
    loss = model(input_ids=tokens, labels=tokens, use_cache=False).loss
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    print(f"step {step}  loss {loss.item():.6f}")

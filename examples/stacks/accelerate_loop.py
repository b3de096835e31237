"""accelerate: a loop of one's own, with clipping and accumulated gradients.

lowtide run --budget 60% examples/stacks/accelerate_loop.py
"""

import torch
from accelerate import Accelerator
from torch import nn

torch.manual_seed(0)
layer = nn.TransformerEncoderLayer(256, 8, 1024, batch_first=True, norm_first=True)
model = nn.TransformerEncoder(layer, 6, enable_nested_tensor=False)
accelerator = Accelerator(cpu=True, gradient_accumulation_steps=2)
model, optimizer = accelerator.prepare(
    model, torch.optim.AdamW(model.parameters(), lr=1e-3)
)

for step in range(12):
    inputs = torch.randn(8, 128, 256)
    with accelerator.accumulate(model):
        loss = (model(inputs) - inputs).square().mean()
        accelerator.backward(loss)
        if accelerator.sync_gradients:
            accelerator.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
    print(f"step {step}  loss {loss.item():.6f}")

"""timm: a vision transformer with stochastic depth, in a plain loop.

lowtide run --budget 70% examples/stacks/timm_images.py
"""

import timm
import torch
from torch.nn import functional

torch.manual_seed(0)
model = timm.create_model(
    "vit_tiny_patch16_224", img_size=112, num_classes=10, drop_path_rate=0.1
)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)

for step in range(6):
    images, labels = torch.randn(32, 3, 112, 112), torch.randint(0, 10, (32,))
    loss = functional.cross_entropy(model(images), labels)
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    print(f"step {step}  loss {loss.item():.6f}")

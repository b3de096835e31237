"""diffusers: a U-Net learns to tell noise from images, in a plain loop.

lowtide run --budget 70% examples/stacks/diffusers_unet.py
"""

import torch
from diffusers import DDPMScheduler, UNet2DModel

torch.manual_seed(0)
model = UNet2DModel(
    sample_size=32,
    block_out_channels=(32, 64, 128),
    layers_per_block=1,
    norm_num_groups=8,
    down_block_types=("DownBlock2D", "DownBlock2D", "AttnDownBlock2D"),
    up_block_types=("AttnUpBlock2D", "UpBlock2D", "UpBlock2D"),
)
noises = DDPMScheduler(num_train_timesteps=1000)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)

for step in range(6):
    images, noise = torch.randn(8, 3, 32, 32), torch.randn(8, 3, 32, 32)
    times = torch.randint(0, 1000, (8,))
    guess = model(noises.add_noise(images, noise, times), times).sample
    loss = (guess - noise).square().mean()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    print(f"step {step}  loss {loss.item():.6f}")

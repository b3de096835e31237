"""Lightning: a module that logs in its training step, and a Trainer.

lowtide run --budget 60% examples/stacks/lightning_fit.py
"""

import lightning
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


class Encoder(lightning.LightningModule):
    """Learns to give back what it gets."""

    def __init__(self) -> None:
        super().__init__()
        layer = nn.TransformerEncoderLayer(256, 8, 1024, batch_first=True)
        self.net = nn.TransformerEncoder(layer, 6, enable_nested_tensor=False)

    def training_step(self, batch, batch_idx):
        """The loss of one batch."""
        (inputs,) = batch
        loss = (self.net(inputs) - inputs).square().mean()
        self.log("loss", loss)
        return loss

    def configure_optimizers(self):
        """The optimizer."""
        return torch.optim.AdamW(self.parameters(), lr=1e-3)


lightning.seed_everything(0)
data = DataLoader(TensorDataset(torch.randn(48, 128, 256)), batch_size=8)
trainer = lightning.Trainer(
    accelerator="cpu",
    max_epochs=1,
    logger=False,
    enable_checkpointing=False,
    enable_progress_bar=False,
)
trainer.fit(Encoder(), data)
print(f"loss {trainer.callback_metrics['loss'].item():.6f}")

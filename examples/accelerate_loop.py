"""SREM in a plain loop with Accelerate, with the negatives of all processes.

`TiledSREM(across_processes=True)` computes the loss of the joined batch. Its gradients are to be summed over the
processes, and Accelerate averages them, so the loss is multiplied by their number. (Accelerate's own `gather` would
lose the gradient.) 40 % of the pairs are wrong. Needs: pip install accelerate

    python examples/accelerate_loop.py
    accelerate launch --cpu --num_processes 2 examples/accelerate_loop.py
"""

from __future__ import annotations

import torch
from accelerate import Accelerator
from torch import Tensor, nn
from torch.nn.functional import normalize
from torch.utils.data import DataLoader, TensorDataset

from sremkit import TiledSREM, WarmupMonitor


class DualEncoder(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.to_image, self.to_text = nn.Linear(32, 16), nn.Linear(24, 16)
        self.scale, self.bias = nn.Parameter(torch.tensor(8.0)), nn.Parameter(torch.tensor(-4.0))

    def forward(self, images: Tensor, texts: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        return normalize(self.to_image(images)), normalize(self.to_text(texts)), self.scale, self.bias


accelerator = Accelerator(cpu=True)
torch.manual_seed(0)
latent = torch.randn(512, 8)  # shared by an image and its text
images, texts = latent @ torch.randn(8, 32), latent @ torch.randn(8, 24)
is_wrong = torch.arange(512) < 205
texts[is_wrong] = texts[is_wrong].roll(1, dims=0)

model = DualEncoder()
optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
loader = DataLoader(TensorDataset(images, texts), batch_size=64 // accelerator.num_processes, shuffle=True)
model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
criterion = TiledSREM(across_processes=accelerator.num_processes > 1)
monitor = WarmupMonitor(interval=8)  # the terms are those of the joined batch, so all processes agree
for epoch in range(20):
    for image, text in loader:
        out = criterion.from_embeddings(*model(image, text), warmup=monitor.warmup)
        monitor.update(out)
        optimizer.zero_grad()
        accelerator.backward(out.total * accelerator.num_processes)
        optimizer.step()
    if epoch % 5 == 4:
        stage = "warm-up" if monitor.warmup else "training"
        accelerator.print(f"epoch {epoch + 1:2d} ({stage}): loss {out.total.item():.3f}")

with torch.no_grad():
    image_emb, text_emb, *_ = accelerator.unwrap_model(model)(images, texts)
suspects = (image_emb * text_emb).sum(dim=1).argsort()[: int(is_wrong.sum())]
accelerator.print(f"of the {len(suspects)} pairs that fit worst, {is_wrong[suspects].float().mean():.0%} are wrong")
accelerator.end_training()

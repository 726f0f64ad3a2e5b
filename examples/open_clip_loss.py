"""SREM in a training loop like open_clip's: the loss is called with what the model returns.

The model here is a stand-in with the outputs of an open_clip model, so that nothing needs to be installed; for a real
one write `open_clip.create_model("ViT-B-32", output_dict=True, init_logit_bias=-10)`. 40 % of the pairs are wrong.

    python examples/open_clip_loss.py
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn.functional import normalize

from sremkit import WarmupMonitor
from sremkit.integrations.open_clip import OpenCLIPLoss


class DualEncoder(nn.Module):
    """Returns a dictionary of the same keys as open_clip's models."""

    def __init__(self) -> None:
        super().__init__()
        self.visual, self.text = nn.Linear(32, 16), nn.Linear(24, 16)
        self.logit_scale = nn.Parameter(torch.tensor(2.3))
        self.logit_bias = nn.Parameter(torch.tensor(-5.0))

    def forward(self, images: Tensor, texts: Tensor) -> dict[str, Tensor]:
        return {
            "image_features": normalize(self.visual(images)),
            "text_features": normalize(self.text(texts)),
            "logit_scale": self.logit_scale.exp(),
            "logit_bias": self.logit_bias,
        }


torch.manual_seed(0)
latent = torch.randn(512, 8)  # shared by an image and its text
images, texts = latent @ torch.randn(8, 32), latent @ torch.randn(8, 24)
is_wrong = torch.arange(512) < 205
texts[is_wrong] = texts[is_wrong].roll(1, dims=0)

model = DualEncoder()
loss = OpenCLIPLoss(warmup=WarmupMonitor(interval=8))  # in place of open_clip.ClipLoss()
optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
for epoch in range(20):
    for pairs in torch.randperm(512).split(64):
        model_out = model(images[pairs], texts[pairs])
        losses = loss(**model_out, output_dict=True)
        total_loss = sum(losses.values())
        optimizer.zero_grad()
        total_loss.backward()
        optimizer.step()
    if epoch % 5 == 4:
        print(f"epoch {epoch + 1:2d} ({'warm-up' if loss.warmup.warmup else 'training'}): loss {total_loss.item():.3f}")

with torch.no_grad():
    out = model(images, texts)
    fit = (out["image_features"] * out["text_features"]).sum(dim=1)
suspects = fit.argsort()[: int(is_wrong.sum())]
print(f"of the {len(suspects)} pairs that fit worst, {is_wrong[suspects].float().mean():.0%} are wrong")

"""SREM in a plain training loop: two linear maps and pairs of which 40 % are wrong.

python examples/plain_loop.py
"""

from __future__ import annotations

import torch
from torch.nn.functional import normalize

from sremkit import SREM, WarmupMonitor

torch.manual_seed(0)
latent = torch.randn(256, 8)  # shared by an image and its text
images, texts = latent @ torch.randn(8, 32), latent @ torch.randn(8, 24)
is_wrong = torch.arange(256) < 102
texts[is_wrong] = texts[is_wrong].roll(1, dims=0)

to_image, to_text = torch.nn.Linear(32, 16), torch.nn.Linear(24, 16)
scale = torch.nn.Parameter(torch.tensor(8.0))
bias = torch.nn.Parameter(torch.tensor(-4.0))  # the energy margins need negative logits for mismatches
optimizer = torch.optim.Adam([*to_image.parameters(), *to_text.parameters(), scale, bias], lr=0.01)
criterion, monitor = SREM(), WarmupMonitor(interval=4)  # four batches are an epoch here


def logits_of(pairs: torch.Tensor) -> torch.Tensor:
    """(b, b): rows images, columns texts, the given pairs on the diagonal."""
    return scale * normalize(to_image(images[pairs])) @ normalize(to_text(texts[pairs])).T + bias


for epoch in range(30):
    losses = []
    for pairs in torch.randperm(256).split(64):
        out = criterion(logits_of(pairs), warmup=monitor.warmup)
        optimizer.zero_grad()
        out.total.backward()
        optimizer.step()
        losses.append(out.total.item())
        monitor.update(out)
    if epoch in (0, 9, 19, 29):
        stage = "warm-up" if monitor.warmup else "training"
        print(f"epoch {epoch + 1:2d} ({stage}): loss {sum(losses) / len(losses):.3f}; {monitor.message()}")

out = criterion(logits_of(torch.arange(256)))
right, wrong = out.clean_i2t[~is_wrong], out.clean_i2t[is_wrong]
print(f"counted clean: {right.float().mean():.0%} of the right pairs, {wrong.float().mean():.0%} of the wrong ones")

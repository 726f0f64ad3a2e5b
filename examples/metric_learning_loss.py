"""SREM where a loss of pytorch-metric-learning stands: embeddings and labels.

Texts are the reference embeddings, and the label of a pair is the number of its image: two texts of one image are not
each other's negatives. 40 % of the pairs are wrong.

    python examples/metric_learning_loss.py
"""

from __future__ import annotations

import torch
from torch import nn

from sremkit import WarmupMonitor
from sremkit.integrations.metric_learning import MetricLearningLoss

torch.manual_seed(0)
latent = torch.randn(256, 8)  # shared by an image and its two texts
labels = torch.arange(256).repeat(2)
images, texts = latent @ torch.randn(8, 32), (latent @ torch.randn(8, 24)).repeat(2, 1)
texts += 0.3 * torch.randn_like(texts)
is_wrong = torch.rand(512) < 0.4
texts[is_wrong] = texts[is_wrong].roll(1, dims=0)

to_image, to_text = nn.Linear(32, 16), nn.Linear(24, 16)
loss_func = MetricLearningLoss(warmup=WarmupMonitor(interval=8))  # in place of losses.NTXentLoss()
optimizer = torch.optim.Adam([*to_image.parameters(), *to_text.parameters(), *loss_func.parameters()], lr=0.01)
for epoch in range(20):
    for pairs in torch.randperm(512).split(64):
        image_emb, text_emb, label = to_image(images[labels[pairs]]), to_text(texts[pairs]), labels[pairs]
        total = loss_func(image_emb, label, ref_emb=text_emb, ref_labels=label)
        optimizer.zero_grad()
        total.backward()
        optimizer.step()
    if epoch % 5 == 4:
        print(f"epoch {epoch + 1:2d} ({'warm-up' if loss_func.warmup.warmup else 'training'}): loss {total.item():.3f}")

with torch.no_grad():
    fit = torch.cosine_similarity(to_image(images[labels]), to_text(texts))
suspects = fit.argsort()[: int(is_wrong.sum())]
print(f"of the {len(suspects)} pairs that fit worst, {is_wrong[suspects].float().mean():.0%} are wrong")

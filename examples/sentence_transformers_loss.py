"""SREM as the loss of a SentenceTransformer, on pairs of two columns.

The model is a bag of words over a small vocabulary, so that nothing is downloaded; for a real one write
`SentenceTransformer("clip-ViT-B-32")`, and give the loss to a `SentenceTransformerTrainer`. A pair is a sentence and
its translation word by word; 40 % of the pairs are wrong. Needs: pip install sentence-transformers

    python examples/sentence_transformers_loss.py
"""

from __future__ import annotations

import torch
from sentence_transformers import SentenceTransformer
from torch import Tensor, nn

from sremkit import WarmupMonitor
from sremkit.integrations.sentence_transformers import SentenceTransformersLoss


class BagOfWords(nn.Module):
    """A module of sentence-transformers: reads and completes a dictionary of features."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.EmbeddingBag(80, 24)

    def forward(self, features: dict[str, Tensor]) -> dict[str, Tensor]:
        return {**features, "sentence_embedding": self.embed(features["input_ids"])}


torch.manual_seed(0)
sentences = torch.stack([torch.randperm(40)[:4] for _ in range(512)])
translations = 40 + torch.randperm(40)[sentences]
is_wrong = torch.arange(512) < 205
translations[is_wrong] = translations[is_wrong].roll(1, dims=0)

model = SentenceTransformer(modules=[BagOfWords()], device="cpu")
loss = SentenceTransformersLoss(model, warmup=WarmupMonitor(interval=8))
optimizer = torch.optim.Adam(loss.parameters(), lr=0.02)  # those of the model, and scale and bias
for epoch in range(20):
    for pairs in torch.randperm(512).split(64):
        total = loss([{"input_ids": sentences[pairs]}, {"input_ids": translations[pairs]}])
        optimizer.zero_grad()
        total.backward()
        optimizer.step()
    if epoch % 5 == 4:
        print(f"epoch {epoch + 1:2d} ({'warm-up' if loss.warmup.warmup else 'training'}): loss {total.item():.3f}")

with torch.no_grad():
    first, second = (model({"input_ids": ids})["sentence_embedding"] for ids in (sentences, translations))
suspects = torch.cosine_similarity(first, second).argsort()[: int(is_wrong.sum())]
print(f"of the {len(suspects)} pairs that fit worst, {is_wrong[suspects].float().mean():.0%} are wrong")

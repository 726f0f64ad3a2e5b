"""SREM-plus in a plain loop, with pair ids of one's own, stopped and resumed in the middle.

Weights come from a memory of each pair, so a pair has the same id in every epoch: here the file name of its image and
the number of its caption. 40 % of the pairs are wrong.

    python examples/srem_plus_loop.py
"""

from __future__ import annotations

import tempfile
from pathlib import Path

import torch
from torch import nn
from torch.nn.functional import normalize

from sremkit import SREMPlus

torch.manual_seed(0)
latent = torch.randn(512, 8)  # shared by an image and its text
images, texts = latent @ torch.randn(8, 32), latent @ torch.randn(8, 24)
is_wrong = torch.arange(512) < 205
texts[is_wrong] = texts[is_wrong].roll(1, dims=0)
pair_ids = [f"{k // 2:04d}.jpg#{k % 2}" for k in range(512)]

to_image, to_text = nn.Linear(32, 16), nn.Linear(24, 16)
scale = nn.Parameter(torch.tensor(8.0))
optimizer = torch.optim.Adam([*to_image.parameters(), *to_text.parameters(), scale], lr=0.01)
criterion, warmup = SREMPlus(), True
for epoch in range(15):
    for rows in torch.randperm(512).split(64):
        logits = scale * normalize(to_image(images[rows])) @ normalize(to_text(texts[rows])).T
        loss = criterion(logits, [pair_ids[row] for row in rows], warmup=warmup)
        optimizer.zero_grad()
        loss.total.backward()
        optimizer.step()
    criterion.finish_epoch()
    if warmup and criterion.is_ready():
        warmup = False
        print(f"epoch {epoch + 1}: the warm-up is over: {criterion.message()}")
    if epoch == 9:  # a checkpoint, with those of model and optimizer
        with tempfile.TemporaryDirectory() as folder:
            torch.save({"criterion": criterion.state_dict(), "warmup": warmup}, Path(folder) / "loss.pt")
            state = torch.load(Path(folder) / "loss.pt", weights_only=True)
        criterion, warmup = SREMPlus(), state["warmup"]
        criterion.load_state_dict(state["criterion"])
        print(f"epoch {epoch + 1}: resumed with the memory of {len(criterion.clean_prob())} pairs")

is_suspect = criterion.clean_prob(pair_ids) < 0.5
print(f"of the {int(is_suspect.sum())} pairs that are probably wrong, {is_wrong[is_suspect].float().mean():.0%} are")

"""Every backbone can learn: a few pairs are memorised, and autocast ranks them as float32 does."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from small_models import IMAGE_DIM, PIXELS, SMALL, TEXT_DIM, VOCAB, Items
from sremkit.data.batch import Batch
from sremkit.models import Matcher, build_matcher

STEPS = 100


def wider(name: str) -> dict[str, Any]:
    """Options with room enough to memorise sixteen pairs."""
    return {key: 32 if key in ("embed_size", "sim_dim") else value for key, value in SMALL[name].items()}


def sixteen_pairs() -> Items:
    """Distinct random images with 4 regions and distinct random captions of 3 to 9 words."""
    g = torch.Generator().manual_seed(11)
    captions = [[1, *torch.randint(4, VOCAB, (1 + k % 7,), generator=g).tolist(), 4 + k, 2] for k in range(16)]
    return Items(
        list(torch.randn(16, 4, IMAGE_DIM, generator=g)),
        captions,
        torch.randn(16, TEXT_DIM, generator=g),
        torch.randn(16, 3, PIXELS, PIXELS, generator=g),
    )


def recall_at_1(logits: Tensor) -> tuple[float, float]:
    """Percent of images, and of texts, whose own partner scores strictly higher than all others."""
    pair = logits.diagonal()
    others = logits.masked_fill(torch.eye(len(logits), dtype=torch.bool), -torch.inf)
    share = [(pair > others.amax(dim=dim)).double().mean().item() for dim in (1, 0)]
    return 100 * share[0], 100 * share[1]


def memorise(name: str, batch: Batch) -> Matcher:
    with torch.random.fork_rng():
        torch.manual_seed(5)
        matcher = build_matcher(name, **wider(name)).train()
    optimizer = torch.optim.Adam(matcher.parameters(), lr=3e-3 if matcher.image_input == "pixels" else 1e-2)
    schedule = torch.optim.lr_scheduler.LinearLR(optimizer, 1.0, 0.01, total_iters=STEPS)
    match = torch.arange(len(batch))
    for _ in range(STEPS):
        logits, losses = matcher.logits_and_losses(batch)
        loss = F.cross_entropy(logits, match) + F.cross_entropy(logits.T, match) + sum(losses.values())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        schedule.step()
    return matcher.eval()


def rank_correlation(first: Tensor, second: Tensor) -> float:
    """Spearman's correlation of the candidates' ranks, mean over the rows."""
    ranks = [x.argsort(dim=1).argsort(dim=1).double() for x in (first, second)]
    centred = [F.normalize(r - r.mean(dim=1, keepdim=True), dim=1) for r in ranks]
    return (centred[0] * centred[1]).sum(dim=1).mean().item()


@pytest.mark.parametrize("name", sorted(SMALL))
def test_sixteen_pairs_are_memorised_and_bfloat16_ranks_them_equally(name: str) -> None:
    batch = sixteen_pairs().batch(name)
    matcher = memorise(name, batch)
    with torch.no_grad():
        logits = matcher(batch)
        with torch.autocast("cpu", dtype=torch.bfloat16):
            images, texts = matcher.encode_images(batch), matcher.encode_texts(batch)
            mixed = matcher.compare(images, texts)
    assert recall_at_1(logits) == (100.0, 100.0)
    assert mixed.dtype == torch.float32
    assert not torch.equal(mixed, logits)  # else mixed precision was never on
    assert {t.dtype for e in (images, texts) for t in (e.local, e.pooled) if t is not None} == {torch.float32}
    assert recall_at_1(mixed) == (100.0, 100.0)
    assert rank_correlation(logits, mixed) > 0.98
    assert rank_correlation(logits.T, mixed.T) > 0.98


@pytest.mark.parametrize("name", sorted(SMALL))
def test_training_in_bfloat16_gives_finite_float32_gradients(name: str) -> None:
    batch = sixteen_pairs().batch(name)
    matcher = build_matcher(name, **wider(name)).train()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        logits, losses = matcher.logits_and_losses(batch)
    (F.cross_entropy(logits, torch.arange(16)) + sum(losses.values())).backward()
    gradients = [p.grad for p in matcher.parameters() if p.grad is not None]
    assert {g.dtype for g in gradients} == {torch.float32}
    assert all(torch.isfinite(g).all() for g in gradients)

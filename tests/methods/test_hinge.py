"""Plain hinge training: what it sums, in what it measures, and whom it leaves out."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from oracles import triplet as oracle
from oracles.weighting import sigmoid
from sremkit.data import Batches
from sremkit.methods import build_method
from training import tiny


def given(logits: torch.Tensor):
    return lambda batch: logits


def batch_of(rows: list[int]):
    return Batches(tiny.tiny_pairs(), batch_size=len(rows)).take(np.array(rows))


def logits(b: int = 6) -> torch.Tensor:
    return 2 * torch.randn(b, b, generator=torch.Generator().manual_seed(0), dtype=torch.float64)


@pytest.mark.parametrize("name", ["hinge", "hinge-mean"])
@pytest.mark.parametrize("similarity", ["sigmoid", "logit"])
@pytest.mark.parametrize("warmup", [False, True])
def test_the_total_is_the_sum_over_pairs(name: str, similarity: str, warmup: bool) -> None:
    method = build_method(name, similarity=similarity, margin=0.3)
    table = logits().tolist()
    s = [[sigmoid(x) for x in row] for row in table] if similarity == "sigmoid" else table
    reduction = "mean" if warmup or name == "hinge-mean" else "hardest"
    expected = oracle.triplet(s, [0.3] * 6, reduction)
    loss = method.loss(given(logits()), batch_of([0, 2, 4, 6, 8, 10]), warmup=warmup)  # six images
    assert loss.total.item() == pytest.approx(sum(expected), rel=1e-10)
    assert loss.parts["hinge"].item() == pytest.approx(sum(expected) / 6, rel=1e-6)


@pytest.mark.parametrize("name", ["hinge", "hinge-mean"])
def test_captions_of_one_image_are_masked_by_default(name: str) -> None:
    pairs = [0, 1, 4, 6]  # pairs 0 and 1 share their image
    high = logits(4)
    high[0, 1] = high[1, 0] = 9.0
    low = high.clone()
    low[0, 1] = low[1, 0] = -9.0
    masked, plain = build_method(name), build_method(name, mask_repeated_images=False)
    losses = [
        [method.loss(given(f), batch_of(pairs), warmup=False).total.item() for f in (high, low)]
        for method in (masked, plain)
    ]
    assert losses[0][0] == losses[0][1]
    assert losses[1][0] > losses[1][1]


def test_half_precision_logits_are_compared_in_float32() -> None:
    half = logits().bfloat16()
    batch = batch_of([0, 2, 4, 6, 8, 10])
    totals = [build_method("hinge").loss(given(f), batch, warmup=False).total for f in (half, half.float())]
    assert totals[0].dtype == torch.float32
    assert totals[0] == totals[1]  # the sigmoid too

"""Weights of training pairs: low for mismatched pairs, 1 where nothing can be told."""

from __future__ import annotations

import numpy as np
import torch

from made_pairs import make_pairs
from sremkit.audit.embed import read_vectors
from sremkit.audit.scoring.clean_weights import estimate_clean_prob


def weights(num_images: int) -> tuple[torch.Tensor, np.ndarray]:
    pairs, is_wrong = make_pairs(0.3, num_images=num_images, captions=1, fuzz=0.2)
    v = read_vectors(pairs)
    groups = np.arange(num_images)
    return estimate_clean_prob(v.images, v.texts, v.image_of_text, groups, candidates=100, seed=0), is_wrong


def test_mismatched_pairs_get_less_weight() -> None:
    clean_prob, is_wrong = weights(400)
    assert clean_prob[is_wrong].mean() < 0.3 < 0.7 < clean_prob[~is_wrong].mean()


def test_few_pairs_have_equal_weights() -> None:
    clean_prob, _ = weights(60)
    assert (clean_prob == 1).all()

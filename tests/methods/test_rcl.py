"""RCL as a method: two captions of one image are nobody's negatives, in both directions."""

from __future__ import annotations

import pytest
import torch

from sremkit.data.batch import Batch
from sremkit.methods import build_method


def total(logits: torch.Tensor, image_ids: list[int], **options: object) -> float:
    batch = Batch(pair_id=torch.arange(len(logits)), image_id=torch.tensor(image_ids))
    return build_method("rcl", **options).loss(lambda _: logits, batch, warmup=False).total.item()


def logits(*between: float) -> torch.Tensor:
    """Of four pairs; between the first two they are these."""
    table = torch.randn(4, 4, generator=torch.Generator().manual_seed(0))
    table[0, 1], table[1, 0] = between
    return table


@pytest.mark.parametrize("similarity", ["sigmoid", "logit"])
@pytest.mark.parametrize("changed", [(4.0, -4.0), (-4.0, 4.0)])
def test_two_captions_of_one_image_are_nobodys_negatives_unless_asked(
    similarity: str, changed: tuple[float, float]
) -> None:
    options = {"similarity": similarity, "temperature": 0.5}
    shared, apart = [7, 7, 8, 9], [6, 7, 8, 9]
    before, after = logits(-4.0, -4.0), logits(*changed)
    assert total(before, shared, **options) == total(after, shared, **options)
    assert total(before, apart, **options) != total(after, apart, **options)
    plain = {**options, "mask_repeated_images": False}
    assert total(after, shared, **plain) == total(after, apart, **plain) != total(after, shared, **options)

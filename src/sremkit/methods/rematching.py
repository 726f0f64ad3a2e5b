"""Who belongs to whom: the image that fits each text best, out of all images.

A wrong pair's text and picture are good; only their meeting is not. Where the text's best image also counts the
text among its best ones, the two may be taken for a pair.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from sremkit.models import Encoded, Matcher

TEXTS_AT_ONCE = 4096


class Partners(NamedTuple):
    """The image that fits each text best."""

    image: Tensor  # (m,) int64
    is_mutual: Tensor  # (m,) bool: the text is among the best ones of that image


@torch.no_grad()
def find_partners(
    matcher: Matcher, images: Encoded, texts: Encoded, *, among: int, texts_at_once: int = TEXTS_AT_ONCE
) -> Partners:
    """Compare all images with all texts, some texts at a time; the result is on the CPU.

    Args:
        among: how many texts an image counts as its best ones.
    """
    device = next(matcher.parameters()).device
    best_of_image = torch.full((len(images), among), -torch.inf, device=device)
    scores, partners = [], []
    for start in range(0, len(texts), texts_at_once):
        some_texts = texts[start : start + texts_at_once]
        block = matcher.score_all(images, some_texts, on_device=True).float()  # (n, some)
        score, image = block.max(dim=0)
        scores.append(score)
        partners.append(image)
        best_here = block.topk(min(among, block.shape[1]), dim=1).values
        best_of_image = torch.cat([best_of_image, best_here], dim=1).topk(among, dim=1).values
    image = torch.cat(partners)
    return Partners(image.cpu(), (torch.cat(scores) >= best_of_image[image, -1]).cpu())

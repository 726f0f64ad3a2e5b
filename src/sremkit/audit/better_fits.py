"""For every pair, who would fit better: the best other text for its image and the best other image for its text."""

from __future__ import annotations

import math

import numpy as np
import torch
from torch import Tensor

from sremkit.audit.verdicts import NOBODY

CLEARLY = math.log(10.0)  # the model would choose the other one with odds of ten to one
LARGEST_POOL = 20_000  # texts, and images, to choose from
IMAGES_AT_ONCE = 256


def find_better(
    image_emb: Tensor,
    text_emb: Tensor,
    image_of_text: Tensor,
    group_of_image: np.ndarray,
    rows: np.ndarray,
    *,
    seed: int,
    pool_rows: np.ndarray | None = None,
) -> tuple[np.ndarray, np.ndarray]:
    """For the pairs `rows` of one fold: row of a better text and number of a better image, or NOBODY.

    They are sought in the same fold, among at most LARGEST_POOL texts and images. A text that was given with
    the same picture, or a copy of it, is no other text.

    Args:
        pool_rows: the pairs to seek among, where it is not `rows` themselves.
    """
    pair_rows = torch.from_numpy(rows)
    group = torch.from_numpy(group_of_image)
    rng = np.random.default_rng(seed)
    pool_rows = rows if pool_rows is None else pool_rows
    texts = torch.from_numpy(np.sort(rng.permutation(pool_rows)[:LARGEST_POOL]))
    every_image = np.unique(image_of_text[pair_rows].numpy())
    pool_images = np.unique(image_of_text[torch.from_numpy(pool_rows)].numpy())
    pool = torch.from_numpy(np.sort(rng.permutation(pool_images)[:LARGEST_POOL]))
    given = (image_emb[image_of_text[pair_rows]] * text_emb[pair_rows]).sum(dim=1)  # (f,)

    best_text, fit_of_text = _best(
        image_emb, torch.from_numpy(every_image), text_emb, texts, group, group[image_of_text]
    )
    place = torch.searchsorted(torch.from_numpy(every_image), image_of_text[pair_rows])
    better_text = torch.where(fit_of_text[place] > given + CLEARLY, best_text[place], NOBODY)

    # The given image, or a copy, may be the best itself: then nobody is better, so it need not be left out.
    best_image, fit_of_image = _best(text_emb, pair_rows, image_emb, pool, None, None)
    better_image = torch.where(fit_of_image > given + CLEARLY, best_image, NOBODY)
    same = group[best_image] == group[image_of_text[pair_rows]]
    return better_text.numpy(), better_image.masked_fill(same, NOBODY).numpy()


def _best(
    queries: Tensor,
    query_rows: Tensor,
    others: Tensor,
    other_rows: Tensor,
    query_group: Tensor | None,
    other_group: Tensor | None,
) -> tuple[Tensor, Tensor]:
    """For each query the best of the others and its logit; of the same group is left out where groups are given."""
    columns = others[other_rows].T.contiguous()  # (d, o)
    best, fit = [], []
    for part in query_rows.split(IMAGES_AT_ONCE):
        logits = queries[part] @ columns  # (p, o)
        if query_group is not None and other_group is not None:
            logits.masked_fill_(query_group[part][:, None] == other_group[other_rows], -math.inf)
        top = logits.max(dim=1)
        best.append(other_rows[top.indices])
        fit.append(top.values)
    return torch.cat(best), torch.cat(fit)

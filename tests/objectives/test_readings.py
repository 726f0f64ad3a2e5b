"""What the two readings of the complementary loss learn by themselves, on pairs of which 40 % are wrong.

A pair is made from a hidden vector, seen through one matrix as an image and through another as a text, with noise.
Two linear maps are trained with the warm-up alone, that is, from complementary labels alone. docs/deviations.md
quotes these numbers.
"""

from __future__ import annotations

from typing import NamedTuple

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import normalize

from sremkit import SREM

NUM_PAIRS, WRONG = 192, 76


class Learned(NamedTuple):
    recall: float  # share of images whose true text scores highest among all
    misled: float  # share of wrongly paired images whose given text scores highest
    mean_score: float  # over all images and texts
    true_score: float  # over the true pairs
    losses: list[float]


def learn(reading: str, *, seed: int, steps: int = 200) -> Learned:
    generator = torch.Generator().manual_seed(seed)

    def draw(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=generator)

    hidden = draw(NUM_PAIRS, 12)
    images = hidden @ draw(12, 24) + 0.4 * draw(NUM_PAIRS, 24)
    texts = hidden @ draw(12, 20) + 0.4 * draw(NUM_PAIRS, 20)
    given = torch.arange(NUM_PAIRS)
    given[:WRONG] = given[:WRONG].roll(1)

    one = torch.ones(NUM_PAIRS, 1)  # so that the linear maps have an offset
    images, texts = torch.cat([images, one], 1), torch.cat([texts, one], 1)
    image_map = nn.Parameter(0.2 * draw(25, 16))
    text_map = nn.Parameter(0.2 * draw(21, 16))
    scale, bias = nn.Parameter(torch.tensor(5.0)), nn.Parameter(torch.tensor(0.0))
    optimizer = torch.optim.Adam([image_map, text_map, scale, bias], lr=0.01)

    def logits(rows: Tensor, columns: Tensor) -> Tensor:
        return scale * normalize(images[rows] @ image_map) @ normalize(texts[columns] @ text_map).T + bias

    criterion, losses = SREM(reading=reading), []
    for _ in range(steps):
        batch = torch.randperm(NUM_PAIRS, generator=generator)[:48]
        loss = criterion(logits(batch, given[batch]), warmup=True).total
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())

    everything = torch.arange(NUM_PAIRS)
    with torch.no_grad():
        F = logits(everything, everything)
    best, scores = F.argmax(1), F.sigmoid()
    return Learned(
        recall=(best == everything).double().mean().item(),
        misled=(best == given)[:WRONG].double().mean().item(),
        mean_score=scores.mean().item(),
        true_score=scores.diagonal().mean().item(),
        losses=losses,
    )


@pytest.mark.parametrize("seed", [0, 1])
def test_the_printed_reading_falls_into_its_trivial_minimum(seed: int) -> None:
    learned = learn("printed", seed=seed)
    assert learned.losses[0] > 1
    assert learned.losses[-1] < 0.01  # it is minimised all right ...
    assert learned.mean_score < 0.01  # ... by letting all scores fall
    assert learned.true_score < 1.1 * learned.mean_score  # together
    assert learned.recall < 0.05  # no pair is distinguished; chance is 1/192


@pytest.mark.parametrize("seed", [0, 1])
def test_the_normalized_reading_finds_the_true_matches_from_complementary_labels_alone(seed: int) -> None:
    learned = learn("normalized", seed=seed)
    assert learned.recall > 0.95
    assert learned.misled < 0.05
    assert learned.true_score > learned.mean_score + 0.3

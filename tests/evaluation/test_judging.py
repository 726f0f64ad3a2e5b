"""Verdicts on every pair: both directions count, and a pair that meets no other is neither right nor wrong."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from torch import Tensor

from sremkit.data import Batches
from sremkit.data.batch import Batch
from sremkit.data.pairs import Pairs
from sremkit.evaluation.judging import Judgement, judge_pairs
from training import tiny


class Told(torch.nn.Module):
    """A matcher whose logits (n, n) of all pairs are known."""

    def __init__(self, logits: Tensor) -> None:
        super().__init__()
        self.logits = torch.nn.Parameter(logits.double())

    def forward(self, batch: Batch) -> Tensor:
        return self.logits[batch.pair_id][:, batch.pair_id]


def pairs_of(images: list[int]) -> Pairs:
    return tiny.tiny_pairs(num_images=len(images), captions=1).paired_as(np.array(images))


def random_logits(n: int) -> Tensor:
    return 2 * torch.randn(n, n, generator=torch.Generator().manual_seed(0), dtype=torch.float64)


def slowly(
    logits: Tensor, pairs: Pairs, *, batch_size: int, rounds: int
) -> tuple[list[list[float]], list[int]]:
    """The match of each pair in each batch that it shared with others, and how often it was alone."""
    table, n = logits.tolist(), len(logits)
    found: list[list[float]] = [[] for _ in range(n)]
    alone = [0] * n
    batches = Batches(pairs, batch_size=batch_size, unique_images=True)
    for round_ in range(rounds):
        for members in batches.order(round_):
            for i in members:
                if len(members) == 1:
                    alone[i] += 1
                    continue
                own = math.exp(table[i][i])
                row = sum(math.exp(table[i][j]) for j in members)
                column = sum(math.exp(table[j][i]) for j in members)
                found[i].append((own / row + own / column) / 2)
    return found, alone


def test_both_directions_by_hand() -> None:
    # Image 0 with texts 0 and 1: 1 / (1 + 3) = 1/4; text 0 with images 0 and 1: 1 / (1 + 7) = 1/8. Mean 3/16, and the
    # same two numbers for pair 1. Energies are minus ln of those sums.
    judged = judge_pairs(Told(torch.tensor([[0.0, math.log(3)], [math.log(7), 0.0]])), pairs_of([0, 1]))
    assert judged.match.tolist() == pytest.approx([3 / 16, 3 / 16])
    assert judged.energy_i2t.tolist() == pytest.approx([-math.log(4), -math.log(8)])
    assert judged.energy_t2i.tolist() == pytest.approx([-math.log(8), -math.log(4)])


def test_ordinary_pairs_get_their_mean_over_the_rounds() -> None:
    logits, pairs = random_logits(12), pairs_of(list(range(12)))
    found, alone = slowly(logits, pairs, batch_size=4, rounds=3)
    assert alone == [0] * 12
    judged = judge_pairs(Told(logits), pairs, batch_size=4)
    assert judged.match.tolist() == pytest.approx([sum(values) / 3 for values in found], rel=1e-12)


def test_a_round_in_which_a_pair_was_alone_does_not_count() -> None:
    """Ten texts share picture 0: in each round most of them are alone, where every pair is perfect."""
    logits, pairs = random_logits(14), pairs_of([0] * 10 + [1, 2, 3, 4])
    found, alone = slowly(logits, pairs, batch_size=3, rounds=6)
    sometimes = [i for i in range(14) if found[i] and alone[i]]
    never = [i for i in range(14) if not found[i]]
    assert sometimes
    assert never
    judged = judge_pairs(Told(logits), pairs, batch_size=3, rounds=6)
    means = {i: sum(values) / len(values) for i, values in enumerate(found) if values}
    assert judged.match[list(means)].tolist() == pytest.approx(list(means.values()), rel=1e-12)
    # Who never met another pair is put in the middle of those who did.
    assert judged.match[never].tolist() == pytest.approx([sum(means.values()) / len(means)] * len(never))
    for energies in (judged.energy_i2t, judged.energy_t2i):
        assert energies[never].tolist() == pytest.approx([energies[list(means)].mean()] * len(never))


def test_where_all_pairs_share_a_picture_nothing_is_said() -> None:
    judged: Judgement = judge_pairs(Told(random_logits(3)), pairs_of([0, 0, 0]))
    assert judged.match.tolist() == [0.5] * 3
    assert judged.energy_i2t.tolist() == judged.energy_t2i.tolist() == [0.0] * 3

"""The paper's theorem: complementary labels alone recover the classifier, on a problem whose optimum is known.

Inputs x = 0 .. K - 1 have the true classes 0 .. K - 1. The given label of x is class (x - s) mod K with probability
SHARES[s], so that SHARES[0] = 40 % of the given labels are right. The loss sees only the classes that were *not* given.
For uniform complementary labels the minimum over all classifiers is known: with u = 1 - P the loss is
-sum_k (1 - p_k) log u_k under sum_k u_k = K - 1, which is least at u_k = 1 - p_k, so at P = p, the distribution of the
given labels. That is the optimum of cross-entropy on the given labels, and its maximum is the true class.
"""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from sremkit.objectives.complementary import complementary

SHARES = (0.4, 0.2, 0.1, 0.2, 0.1)  # 60 % of the given labels are wrong
NUM_CLASSES = len(SHARES)
POSTERIOR = torch.tensor(
    [[SHARES[(x - k) % NUM_CLASSES] for k in range(NUM_CLASSES)] for x in range(NUM_CLASSES)], dtype=torch.float64
)


def loss_of(table: Tensor, *, sharpness: float = 0.0, reading: str = "normalized") -> Tensor:
    """The expected complementary loss of a classifier given by its table of logits (inputs, classes).

    Row i of a matrix of the objective has the given label i, so shift s of the inputs gives label i to input i + s.
    """
    no_pair = torch.zeros(NUM_CLASSES, dtype=torch.bool)
    terms = [
        share * complementary(table.roll(-s, dims=0), no_pair, sharpness=sharpness, offset=0.5, reading=reading)
        for s, share in enumerate(SHARES)
    ]
    return torch.stack(terms).sum()


def minimized(start: Tensor, steps: int = 15, **options) -> Tensor:
    table = start.clone().requires_grad_()
    optimizer = torch.optim.LBFGS([table], max_iter=20, line_search_fn="strong_wolfe", tolerance_grad=1e-10,
                                  tolerance_change=0.0)  # fmt: skip

    def closure() -> Tensor:
        optimizer.zero_grad()
        loss = loss_of(table, **options)
        loss.backward()
        return loss

    for _ in range(steps):
        optimizer.step(closure)
    return table.detach()


def start_of(seed: int) -> Tensor:
    return torch.randn(NUM_CLASSES, NUM_CLASSES, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize("seed", [0, 1])
def test_complementary_labels_alone_give_the_distribution_of_the_given_labels(seed: int) -> None:
    classifier = minimized(start_of(seed)).softmax(dim=1)
    torch.testing.assert_close(classifier, POSTERIOR, rtol=0, atol=1e-5)
    assert classifier.argmax(dim=1).tolist() == list(range(NUM_CLASSES))  # the true class, at 60 % wrong labels


def test_the_minimum_is_the_known_one() -> None:
    """The value of the loss at P = p, written out: (K - 1) classes at a time, weighted by (1 - p_k) / (K - 1)."""
    expected = -sum((1 - p) * math.log(1 - p) for p in SHARES)
    assert loss_of(POSTERIOR.log()).item() == pytest.approx(expected, rel=1e-12)
    for seed in range(5):
        nearby = POSTERIOR.log() + 0.05 * start_of(seed)
        assert loss_of(nearby) > loss_of(POSTERIOR.log())


def test_biased_complementary_labels_keep_the_class_and_not_the_distribution() -> None:
    """Labels that prefer hard negatives are no longer uniform, so the theorem needs them rectified."""
    classifier = minimized(POSTERIOR.log(), sharpness=3.0).softmax(dim=1)
    assert classifier.argmax(dim=1).tolist() == list(range(NUM_CLASSES))
    assert (classifier - POSTERIOR).abs().max() > 0.01


def test_the_printed_loss_has_another_minimum() -> None:
    """Scores that are not normalized can all fall together: below the loss of the right classifier."""
    right = POSTERIOR.log() - (1 - POSTERIOR).log()  # sigmoids equal to the posterior
    all_low = torch.full((NUM_CLASSES, NUM_CLASSES), -20.0, dtype=torch.float64)
    assert loss_of(all_low, reading="printed") < 1e-6 < loss_of(right, reading="printed")

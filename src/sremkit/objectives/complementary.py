"""Cross-modal biased complementary learning: every other pair of the batch says what a query is not.

    Pbar_ij = exp(beta (S_ij - b)) / (1 + sum_{k != i} exp(beta (S_ik - b))),  j != i       [eq:selection]
    Q = softmax(Pbar) over the allowed labels: not i, and not phi(i) where i is clean

    reading "normalized":  L_c = -mean_i (B - 1) sum_j Q_ij log(1 - P_ij)                   [eq:complementary]
    reading "printed":     S' = Q^T S                                                       [eq:rectify]
                           L_c = -mean_i mean_{j != i} log(1 - S'_ij)

S = sigmoid(F), P = softmax of the row, beta the sharpness, b the offset. The printed reading is the paper
to the letter. Its minimum is trivial (all scores 0), and trained on it alone nothing tells pairs apart;
normalised over the row, pushing the negatives down lifts the pair. docs/deviations.md has the story and the
numbers.

Relations: the normalised reading is RCL's log loss when sharpness is 0 and no pair is clean.
"""

from __future__ import annotations

from typing import Literal, get_args

import torch
from torch import Tensor
from torch.nn.functional import logsigmoid

from sremkit.objectives.candidates import (
    as_logits,
    count_valid,
    diagonal_mask,
    hardest_negative,
    keep_valid,
    low,
)
from sremkit.objectives.precision import product

Reading = Literal["normalized", "printed"]


def complementary(
    logits: Tensor,
    clean: Tensor,
    *,
    sharpness: float,
    offset: float,
    reading: Reading = "normalized",
    valid: Tensor | None = None,
) -> Tensor:
    """Complementary loss of the rows.

    Args:
        clean: (b,) bool, clean in this direction: the hardest negatives of these rows are in the ranking loss
            already and are left out here. All False in the warm-up.

    A row without an allowed label contributes 0 to the mean.
    """
    check_reading(reading)
    logits = as_logits(logits)
    labels = selection(logits, clean, sharpness=sharpness, offset=offset, valid=valid)  # (b, b)
    # DEVIATION(eq:complementary): by default not what is printed, which collapses; see docs/deviations.md.
    of_reading = normalized_loss if reading == "normalized" else printed_loss
    return of_reading(logits, labels, valid=valid)  # [eq:complementary]


def selection(
    logits: Tensor, clean: Tensor, *, sharpness: float, offset: float, valid: Tensor | None = None
) -> Tensor:
    """Q (b, b): how likely column j is chosen as what row i is not; a row sums to 1, or to 0 with no label.

    It carries no gradient: it says which labels are drawn. With one, the loss could be lowered by making the
    drawing prefer easy negatives instead of by scoring the hard ones lower.
    """
    logits = logits.detach()
    is_pair = diagonal_mask(logits)
    # The 1 in the denominator is exp(0): give the pair itself the exponent 0 and the quotient is a softmax.
    exponents = (sharpness * (logits.sigmoid() - offset)).masked_fill(is_pair, 0.0)
    likelihood = keep_valid(exponents, valid).softmax(dim=1)  # [eq:selection]
    hard_index, _ = hardest_negative(logits, valid)
    columns = torch.arange(logits.shape[1], device=logits.device)
    is_used = (columns == hard_index[:, None]) & clean[:, None]
    allowed = ~(is_pair | is_used) if valid is None else valid & ~(is_pair | is_used)
    chosen = likelihood.masked_fill(~allowed, low(logits.dtype)).softmax(dim=1)
    return chosen.masked_fill(~allowed, 0.0)  # a row with nothing allowed would otherwise be uniform


def normalized_loss(logits: Tensor, labels: Tensor, *, valid: Tensor | None = None) -> Tensor:
    """-mean_i (B - 1) sum_j Q_ij log(1 - P_ij).

    The factor makes it a sum over negatives: the gradient of a mean is B times too small beside the ranking.
    """
    expected = (labels * log_not_chosen(logits, valid=valid)).sum(dim=1)
    return -((count_valid(logits, valid) - 1) * expected).mean()


def log_not_chosen(logits: Tensor, *, valid: Tensor | None = None) -> Tensor:
    """log(1 - P_ij) off the diagonal, exact for every P; 0 on the diagonal and for excluded candidates.

    A negative that is not the hardest has P <= 1/2, so log1p(-P) is exact. The hardest may have P = 1 in
    floating point, so for it log(1 - P) is taken as logsumexp(others) - logsumexp(all), which is
    logsigmoid(logsumexp(others) - F).
    """
    logits = keep_valid(logits, valid)
    hard_index = hardest_negative(logits.detach(), valid)[0][:, None]  # (b, 1)
    hard = logits.gather(1, hard_index)
    others = logits.scatter(1, hard_index, low(logits.dtype)).logsumexp(dim=1, keepdim=True)
    probability = logits.softmax(dim=1).scatter(1, hard_index, 0.0)
    easy = torch.log1p(-probability.masked_fill(diagonal_mask(logits), 0.0))
    return easy.scatter(1, hard_index, logsigmoid(others - hard)).masked_fill(diagonal_mask(logits), 0.0)


def printed_loss(logits: Tensor, labels: Tensor, *, valid: Tensor | None = None) -> Tensor:
    """The paper to the letter.

    Q^T is not row-stochastic, so S' can reach 1 and beyond, where log(1 - S') does not exist: 1 - S' is
    held at the smallest step above 0. Scores of excluded candidates are left out of the product.
    """
    scores = logits.sigmoid() if valid is None else logits.sigmoid().where(valid, 0.0)
    rectified = product(labels.T, scores)  # [eq:rectify]
    log_rest = (1 - rectified).clamp_min(torch.finfo(logits.dtype).eps).log()
    is_pair = diagonal_mask(logits)
    left_out = is_pair if valid is None else is_pair | ~valid
    negatives = (count_valid(logits, valid) - 1).clamp_min(1)
    return -(log_rest.masked_fill(left_out, 0.0).sum(dim=1) / negatives).mean()


def check_reading(reading: str) -> None:
    if reading not in get_args(Reading):
        raise ValueError(f"reading must be one of {', '.join(get_args(Reading))}; got '{reading}'")

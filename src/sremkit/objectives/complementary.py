"""Cross-modal biased complementary learning: the negatives of the batch as complementary labels of a query.

    Pbar_ij = exp(beta (S_ij - b)) / (1 + sum_{k != i} exp(beta (S_ik - b))),  j != i       [eq:selection]
    Q = softmax(Pbar) over the allowed labels: not i, and not phi(i) where i is clean

    reading "normalized":  L_c = -mean_i (B - 1) sum_j Q_ij log(1 - P_ij)                   [eq:complementary]
    reading "printed":     S' = Q^T S                                                       [eq:rectify]
                           L_c = -mean_i mean_{j != i} log(1 - S'_ij)

S = sigmoid(F), P = softmax of the row, beta the sharpness, b the offset. The printed reading follows the paper to the
letter. Its minimum is trivial (all scores 0), and a model trained on it alone collapses. Normalized over the row, lower
scores of the negatives raise the pair. docs/deviations.md explains the two readings with numbers.

Relations: the normalized reading is RCL's log loss when the sharpness is 0 and no pair is clean.
"""

from __future__ import annotations

from typing import Literal, get_args

import torch
from torch import Tensor
from torch.nn.functional import logsigmoid

from sremkit.objectives.logits import (
    as_logits,
    count_valid,
    diagonal_mask,
    hardest_negative,
    mask_invalid,
    mask_value,
    not_negative,
    product,
)

Reading = Literal["normalized", "printed"]
READINGS = get_args(Reading)  # outside of what PyTorch 2.6 compiles


def complementary(
    logits: Tensor,
    clean: Tensor,
    *,
    sharpness: float,
    offset: float,
    reading: Reading = "normalized",
    valid: Tensor | None = None,
) -> Tensor:
    """Complementary loss of the rows. A row without an allowed label contributes 0 to the mean.

    Args:
        clean: (b,) bool, clean in this direction. The hardest negatives of clean rows are part of the ranking loss and
            are excluded here. All False in the warm-up.
    """
    check_reading(reading)
    logits = as_logits(logits)
    labels = label_weights(logits, clean, sharpness=sharpness, offset=offset, valid=valid)  # (b, b)
    # DEVIATION(eq:complementary): the default is not the printed loss, which collapses; see docs/deviations.md.
    loss = normalized_loss if reading == "normalized" else printed_loss
    return loss(logits, labels, valid=valid)  # [eq:complementary]


def label_weights(
    logits: Tensor, clean: Tensor, *, sharpness: float, offset: float, valid: Tensor | None = None
) -> Tensor:
    """Q (b, b): probability that column j is the complementary label of row i. A row sums to 1, or to 0 without labels.

    It carries no gradient: it is a sampling distribution. With a gradient, the loss could be lowered by selecting easy
    negatives instead of scoring hard ones lower.
    """
    logits = logits.detach()
    # The 1 in the denominator is exp(0): with the exponent 0 for the pair itself the quotient is a softmax.
    exponents = (sharpness * (logits.sigmoid() - offset)).masked_fill(diagonal_mask(logits), 0.0)
    likelihood = mask_invalid(exponents, valid).softmax(dim=1)  # [eq:selection]
    hard_index, _ = hardest_negative(logits, valid)
    columns = torch.arange(logits.shape[1], device=logits.device)
    ranked = (columns == hard_index[:, None]) & clean[:, None]
    excluded = not_negative(logits, valid) | ranked
    weights = likelihood.masked_fill(excluded, mask_value(logits.dtype)).softmax(dim=1)
    return weights.masked_fill(excluded, 0.0)  # without this, a row with no allowed label would be uniform


def normalized_loss(logits: Tensor, labels: Tensor, *, valid: Tensor | None = None) -> Tensor:
    """-mean_i (B - 1) sum_j Q_ij log(1 - P_ij).

    The factor turns a mean over negatives into a sum, whose gradient is comparable with that of the ranking loss.
    """
    expected = (labels * log_complement(logits, valid=valid)).sum(dim=1)
    return -((count_valid(logits, valid) - 1) * expected).mean()


def log_complement(logits: Tensor, *, valid: Tensor | None = None) -> Tensor:
    """log(1 - P_ij) off the diagonal, exact for every P; 0 on the diagonal and for masked candidates.

    A negative that is not the hardest has P <= 1/2, so log1p(-P) is exact. The hardest may have P = 1 in floating
    point. For it log(1 - P) = logsumexp(others) - logsumexp(all) = logsigmoid(logsumexp(others) - F).
    """
    logits = mask_invalid(logits, valid)
    hard_index = hardest_negative(logits.detach(), valid)[0][:, None]  # (b, 1)
    hard = logits.gather(1, hard_index)
    others = logits.scatter(1, hard_index, mask_value(logits.dtype)).logsumexp(dim=1, keepdim=True)
    probability = logits.softmax(dim=1).scatter(1, hard_index, 0.0)
    easy = torch.log1p(-probability.masked_fill(diagonal_mask(logits), 0.0))
    return easy.scatter(1, hard_index, logsigmoid(others - hard)).masked_fill(diagonal_mask(logits), 0.0)


def printed_loss(logits: Tensor, labels: Tensor, *, valid: Tensor | None = None) -> Tensor:
    """-mean_i mean_{j != i} log(1 - S'_ij), as printed in the paper.

    The rows of Q^T do not sum to 1, so S' can reach 1 and more, where log(1 - S') is undefined: 1 - S' is bounded below
    by the machine epsilon. Scores of masked candidates are excluded from the product.
    """
    scores = logits.sigmoid() if valid is None else logits.sigmoid().where(valid, 0.0)
    rectified = product(labels.T, scores)  # [eq:rectify]
    log_rest = (1 - rectified).clamp_min(torch.finfo(logits.dtype).eps).log()
    num_negatives = (count_valid(logits, valid) - 1).clamp_min(1)
    return -(log_rest.masked_fill(not_negative(logits, valid), 0.0).sum(dim=1) / num_negatives).mean()


def check_reading(reading: str) -> None:
    if reading not in READINGS:
        raise ValueError(f"reading must be one of {', '.join(READINGS)}; got '{reading}'")

"""DECL: evidential loss of a query over its candidates, and the robust dynamic hinge.

    e_ij = exp(s_ij / temperature)                                                                [eq:evidence]

    a = e + 1 over the row,   S = sum_j a_j,   a~ = 1 + (a - 1)(1 - y)
    l_i = sum_j (y_j - a_j / S)^2 + sum_j a_j (S - a_j) / (S^2 (S + 1)) + kl_weight KL(Dir(a~) || Dir(1))
                                                                                                [eq:evidential]
    KL = lnG(sum a~) - sum lnG(a~_j) - lnG(K) + sum (a~_j - 1)(psi(a~_j) - psi(sum a~))

where y is one-hot at the given pair of a clean row and zero in other rows; K is the number of candidates.

    h_i = (1/H) (sum of the H largest [margin + s_ij - s_ii]_+ + sum of the H largest [margin + s_ji - s_ii]_+)
                                                                                                  [eq:hardness]

H falls from the batch size to a few: from the mean over all negatives towards the hardest one.
Reference: Qin et al., Deep Evidential Learning with Noisy Correspondence for Cross-modal Retrieval, ACM MM 2022.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from sremkit.objectives.logits import as_logits, check_logits, diagonal_mask, mask_invalid
from sremkit.objectives.triplet import row_hinges

# float64 overflows at exp(709); below exp(354) squared sums of evidence do not overflow either.
MAX_EXPONENT = 300.0
MAX_DIRECT = 1e5  # here ln-gamma and its series agree to ten digits


def evidence(similarity: Tensor, *, temperature: float) -> Tensor:
    """Evidence (b, b) in float64 of similarities (b, b), in the published method tanh of the logits.

    It is clamped at exp(300), which only unbounded similarities, such as raw logits, can reach.
    """
    if temperature <= 0:
        raise ValueError(f"temperature must be positive, got {temperature}")
    # Sums of evidence reach millions; float32 would round their ln-gamma to whole units.
    exponent = as_logits(similarity).double() / temperature
    return exponent.clamp(max=MAX_EXPONENT).exp()  # [eq:evidence]


def evidential(evidence: Tensor, clean: Tensor, *, kl_weight: float, valid: Tensor | None = None) -> Tensor:
    """Loss of each row (b,) in float64; pass the transposed evidence for the other direction.

    Args:
        clean: (b,) bool, rows whose given pair is the target; the others have no target.
        valid: (b, b) bool, True where a candidate counts, the diagonal included; for repeated images.
    """
    check_logits(evidence)
    evidence = evidence.double()
    counts = torch.ones_like(evidence) if valid is None else valid.to(evidence.dtype)
    target = diagonal_mask(evidence) & clean[:, None]  # (b, b)
    concentration = (evidence + 1) * counts  # 0 for masked candidates
    total = concentration.sum(dim=1, keepdim=True)  # (b, 1)
    expected = concentration / total
    error = (target.to(evidence.dtype) - expected).square().sum(dim=1)
    variance = (expected * (1 - expected) / (total + 1)).sum(dim=1)
    misleading = 1 + (evidence * counts).masked_fill(target, 0.0)  # a~: evidence for non-targets
    return error + variance + kl_weight * _kl_to_uniform(misleading, counts)  # [eq:evidential]


def _kl_to_uniform(concentration: Tensor, counts: Tensor) -> Tensor:
    """KL(Dir(concentration) || Dir(1)) of each row (b,) over the classes that count.

    Written with h(x) = lnG(x) + x - (x - 1) psi(x). The large terms cancel analytically, because the total is the sum
    of the concentrations, and h grows only like log(x) / 2.
    """
    total = (concentration * counts).sum(dim=1)
    classes = counts.sum(dim=1)
    each = (_h(concentration) * counts).sum(dim=1)
    return _h(total) + (classes - 1) * torch.digamma(total) - each - torch.lgamma(classes)


def _h(x: Tensor) -> Tensor:
    """h(x) = lnG(x) + x - (x - 1) psi(x) for x >= 1; by its series for large x, where the direct form cancels."""
    small = x.clamp(max=MAX_DIRECT)
    large = x.clamp(min=MAX_DIRECT)
    directly = torch.lgamma(small) + small - (small - 1) * torch.digamma(small)
    series = 0.5 * (large.log() + math.log(2 * math.pi) + 1) - 1 / (3 * large)
    return torch.where(x < MAX_DIRECT, directly, series)


def has_most_evidence(evidence: Tensor, *, valid: Tensor | None = None) -> Tensor:
    """(b,) bool: whether e_ij + e_ji of a row is largest at the given pair, i = j. A tie counts against the pair.

    DECL normalizes the rows of this sum before the comparison, which does not change the result.
    """
    check_logits(evidence)
    both = evidence + evidence.T
    negatives = mask_invalid(both, valid).masked_fill(diagonal_mask(both), -torch.inf)
    return both.diagonal() > negatives.max(dim=1).values


def dynamic_hinge(
    similarity: Tensor, *, margin: float, num_hardest: int | Tensor, valid: Tensor | None = None
) -> Tensor:
    """Robust dynamic hinge of each pair (b,), the sum of both directions.

    Relations: `triplet` with reduction "hardest" at 1, with "mean" at b.

    Args:
        num_hardest: H, the number of hardest candidates in the mean, clamped to b. A scalar integer tensor is not read
            by the host, so it may change between replays of a CUDA graph; it is clamped to at least 1.
        valid: (b, b) bool, True where a candidate counts, the diagonal included; for repeated images.
    """
    similarity = as_logits(similarity)
    if not isinstance(num_hardest, Tensor) and num_hardest < 1:
        raise ValueError(f"num_hardest must be at least 1, got {num_hardest}")
    i2t = _mean_of_largest(row_hinges(similarity, margin, valid), num_hardest)
    t2i = _mean_of_largest(row_hinges(similarity.T, margin, None if valid is None else valid.T), num_hardest)
    return i2t + t2i  # [eq:hardness]


def _mean_of_largest(rows: Tensor, count: int | Tensor) -> Tensor:
    """The mean (b,) of the `count` largest entries of each row, or of all if there are fewer."""
    width = rows.shape[1]
    if not isinstance(count, Tensor):
        return rows.topk(min(count, width), dim=1).values.mean(dim=1)
    count = count.clamp(1, width)
    beyond = torch.arange(width, device=rows.device) >= count  # (b,)
    return rows.sort(dim=1, descending=True).values.masked_fill(beyond, 0.0).sum(dim=1) / count

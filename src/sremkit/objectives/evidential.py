"""DECL: how much evidence a query gathers for each candidate, and hinges whose hardness grows.

    e_ij = exp(s_ij / temperature)                                                                [eq:evidence]

    a = e + 1 over the row,   S = sum_j a_j,   a~ = 1 + (a - 1)(1 - y)
    l_i = sum_j (y_j - a_j / S)^2 + sum_j a_j (S - a_j) / (S^2 (S + 1)) + kl_weight KL(Dir(a~) || Dir(1))
                                                                                                [eq:evidential]
    KL = lnG(sum a~) - sum lnG(a~_j) - lnG(K) + sum (a~_j - 1)(psi(a~_j) - psi(sum a~))

where y is one-hot at the given pair, and zero everywhere for a pair that is not believed; K counts the candidates.

    h_i = (1/H) (sum of the H largest [margin + s_ij - s_ii]_+ + sum of the H largest [margin + s_ji - s_ii]_+)
                                                                                                  [eq:hardness]

H falls from the whole batch to a few: from the mean over all negatives towards the hardest one.
Reference: Qin et al., Deep Evidential Learning with Noisy Correspondence for Cross-modal Retrieval, ACM MM 2022.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from sremkit.objectives.candidates import as_logits, check_logits, diagonal_mask, keep_valid

# float64 ends at exp(709); below exp(354) sums of evidence and their squares have room as well.
LARGEST_EXPONENT = 300.0
LARGEST_DIRECT = 1e5  # here ln-gamma and its series agree to ten digits


def evidence(similarity: Tensor, *, temperature: float) -> Tensor:
    """Evidence (b, b) in float64 of similarities (b, b), in the published method tanh of the logits.

    It ends at exp(300), which only logits taken as they are can reach: from there on it grows no more.
    """
    if temperature <= 0:
        raise ValueError(f"temperature must be positive, got {temperature}")
    # Sums of evidence reach millions, whose ln-gamma float32 would round to whole units.
    exponent = as_logits(similarity).double() / temperature
    return exponent.clamp(max=LARGEST_EXPONENT).exp()  # [eq:evidence]


def evidential(
    evidence: Tensor, believed: Tensor, *, kl_weight: float, valid: Tensor | None = None
) -> Tensor:
    """Loss of each row (b,) in float64; pass the transposed evidence for the other direction.

    Args:
        believed: (b,) bool, whether the given pair of a row is taken for right.
        valid: (b, b) bool, True where a candidate counts, the diagonal included; for repeated images.
    """
    check_logits(evidence)
    evidence = evidence.double()
    counts = torch.ones_like(evidence) if valid is None else valid.to(evidence.dtype)
    target = diagonal_mask(evidence) & believed[:, None]  # (b, b)
    concentration = (evidence + 1) * counts  # 0 where a candidate does not count
    total = concentration.sum(dim=1, keepdim=True)  # (b, 1)
    expected = concentration / total
    error = (target.to(evidence.dtype) - expected).square().sum(dim=1)
    variance = (expected * (1 - expected) / (total + 1)).sum(dim=1)
    misleading = 1 + (evidence * counts).masked_fill(target, 0.0)  # evidence for what is not the answer
    return error + variance + kl_weight * _from_uniform(misleading, counts)  # [eq:evidential]


def _from_uniform(concentration: Tensor, counts: Tensor) -> Tensor:
    """KL(Dir(concentration) || Dir(1)) of each row (b,) over the classes that count.

    Written with h(x) = lnG(x) + x - (x - 1) psi(x): what is large cancels, because the total is the sum of the
    concentrations, and h itself grows only as half a logarithm.
    """
    total = (concentration * counts).sum(dim=1)
    classes = counts.sum(dim=1)
    each = (_slowly_growing(concentration) * counts).sum(dim=1)
    return _slowly_growing(total) + (classes - 1) * torch.digamma(total) - each - torch.lgamma(classes)


def _slowly_growing(x: Tensor) -> Tensor:
    """h(x) = lnG(x) + x - (x - 1) psi(x) for x >= 1; of large numbers by its series, where digits would cancel."""
    small = x.clamp(max=LARGEST_DIRECT)
    large = x.clamp(min=LARGEST_DIRECT)
    directly = torch.lgamma(small) + small - (small - 1) * torch.digamma(small)
    series = 0.5 * (large.log() + math.log(2 * math.pi) + 1) - 1 / (3 * large)
    return torch.where(x < LARGEST_DIRECT, directly, series)


def most_evidence(evidence: Tensor, *, valid: Tensor | None = None) -> Tensor:
    """(b,) bool: whether a pair gathers more evidence e_ij + e_ji at i = j than with any other pair.

    A tie counts against the pair. DECL divides by the rows of this sum before it compares inside a row, which
    changes nothing.
    """
    check_logits(evidence)
    both = evidence + evidence.T
    rivals = keep_valid(both, valid).masked_fill(diagonal_mask(both), -torch.inf)
    return both.diagonal() > rivals.max(dim=1).values


def growing_hardness(
    similarity: Tensor, *, margin: float, num_hardest: int | Tensor, valid: Tensor | None = None
) -> Tensor:
    """Hinges of each pair (b,), both directions added.

    Relations: `triplet` with reduction "hardest" at 1, with "mean" at b.

    Args:
        num_hardest: H, over how many hardest candidates is averaged; at most b are. A tensor () of whole numbers
            is not looked at by the host, so that it may change in steps that are replayed; at least 1 are.
        valid: (b, b) bool, True where a candidate counts, the diagonal included; for repeated images.
    """
    similarity = as_logits(similarity)
    if not isinstance(num_hardest, Tensor) and num_hardest < 1:
        raise ValueError(f"num_hardest must be at least 1, got {num_hardest}")
    left_out = diagonal_mask(similarity) if valid is None else diagonal_mask(similarity) | ~valid
    lead = similarity.diagonal() - margin  # (b,)
    i2t, t2i = (
        _mean_of_largest((s - lead[:, None]).relu().masked_fill(out, 0.0), num_hardest)
        for s, out in ((similarity, left_out), (similarity.T, left_out.T))
    )
    return i2t + t2i  # [eq:hardness]


def _mean_of_largest(rows: Tensor, count: int | Tensor) -> Tensor:
    """The mean (b,) of the `count` largest of each row, or of all where there are fewer."""
    width = rows.shape[1]
    if not isinstance(count, Tensor):
        return rows.topk(min(count, width), dim=1).values.mean(dim=1)
    count = count.clamp(1, width)
    beyond = torch.arange(width, device=rows.device) >= count  # (b,)
    return rows.sort(dim=1, descending=True).values.masked_fill(beyond, 0.0).sum(dim=1) / count

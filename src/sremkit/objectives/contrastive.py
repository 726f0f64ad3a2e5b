"""Contrastive losses over the rows of the logits: InfoNCE, generalized and symmetric cross-entropy.

    L = -mean_i log P_ii,   P = softmax of the row                                             [eq:infonce]
    l_i = (1 - P_ii^q) / q,   0 < q <= 1;   l_i = -log P_ii at q = 0                            [eq:generalized]
    l_i = (-log P_ii + A (1 - P_ii)) / 2,   A = -log 1e-7                                        [eq:symmetric]

Pass `logits.T` for the other direction. InfoNCE trusts every given pair, so it learns wrong pairs as well. The
gradient of generalized cross-entropy is P_ii^q times that of InfoNCE, which reduces the effect of improbable pairs;
at q = 1 it is about as small as that of the complementary loss, which learns slowly from scratch. Symmetric
cross-entropy adds the cross-entropy with prediction and target exchanged, where log 0 counts as -A.
References: van den Oord et al., 2018, https://arxiv.org/abs/1807.03748; Zhang and Sabuncu, Generalized Cross Entropy
Loss for Training Deep Neural Networks with Noisy Labels, NeurIPS 2018; Wang et al., Symmetric Cross Entropy for Robust
Learning with Noisy Labels, ICCV 2019.
"""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor

from sremkit.objectives.logits import as_logits, mask_invalid

REVERSE_WEIGHT = -math.log(1e-7)  # A


def infonce(logits: Tensor) -> Tensor:
    """Mean cross-entropy of the given pair among all candidates of its row."""
    targets = torch.arange(len(logits), device=logits.device)
    return F.cross_entropy(logits, targets)  # [eq:infonce]


def row_cross_entropy(logits: Tensor, *, valid: Tensor | None = None) -> Tensor:
    """-log P_ii of each row (b,); `valid` (b, b) is False for masked candidates, as repeated images."""
    logits = as_logits(logits)
    targets = torch.arange(len(logits), device=logits.device)
    return F.cross_entropy(mask_invalid(logits, valid), targets, reduction="none")


def generalized_cross_entropy(logits: Tensor, *, power: float, valid: Tensor | None = None) -> Tensor:
    """The loss of each row (b,); `power` is q, and `valid` (b, b) False for masked candidates, as repeated images."""
    check_power(power)
    cross_entropy = row_cross_entropy(logits, valid=valid)
    if power == 0:
        return cross_entropy
    return -torch.expm1(-power * cross_entropy) / power  # [eq:generalized]


def check_power(power: float) -> None:
    if not 0 <= power <= 1:
        raise ValueError(f"the power of generalized cross-entropy must lie between 0 and 1, got {power}")


def symmetric_cross_entropy(logits: Tensor, *, valid: Tensor | None = None) -> Tensor:
    """The loss of each row (b,); `valid` (b, b) is False for masked candidates, as repeated images."""
    logits = as_logits(logits)
    log_prob = F.log_softmax(mask_invalid(logits, valid), dim=1).diagonal()  # (b,) log P_ii
    return (-log_prob - REVERSE_WEIGHT * torch.expm1(log_prob)) / 2  # [eq:symmetric]

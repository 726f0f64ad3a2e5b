"""Hinge ranking in both directions, with one margin for all pairs or a soft margin for each.

    c_ij = [a_i + S_ij - S_ii]_+   image i as query,   d_ij = [a_j + S_ij - S_jj]_+   text j as query,   0 where i = j

    hardest:  l_i = max_j c_ij + max_j d_ji            mean:  l_i = (1/n_i) sum_j c_ij + (1/n'_i) sum_j d_ji
                                                                                               [eq:triplet]

The published loss is the sum over the pairs. n_i and n'_i count the candidates of image i and of text i, the pair
itself included: B where no candidate is masked. A soft margin a_i belongs to pair i and is used wherever pair i is
the correct match, so in its row of c and in its column of d. It grows from 0 to the full margin a with the soft
label y of the pair:

    exponential: a (m^y - 1) / (m - 1)     linear: a y     sine: a (sin(pi y - pi / 2) + 1) / 2   [eq:soft-margin]

References: Faghri et al., VSE++, 2018 (hardest); Huang et al., Learning with Noisy Correspondence for Cross-modal
Matching (NCR), NeurIPS 2021 (mean, soft margins).
"""

from __future__ import annotations

from typing import Literal, get_args

import torch
from torch import Tensor

from sremkit.objectives.logits import as_logits, count_valid, not_negative

Reduction = Literal["hardest", "mean"]
Shape = Literal["exponential", "linear", "sine"]


def triplet(similarity: Tensor, *, margin: float | Tensor, reduction: Reduction, valid: Tensor | None = None) -> Tensor:
    """Loss of each pair (b,), the sum of both directions; 0 for a pair without any negative.

    Args:
        similarity: (b, b) rows images, columns texts; sigmoids, cosines or any scale that fits the margin.
        margin: a number, or (b,) one for each pair.
        valid: (b, b) bool, True where a candidate counts, the diagonal included; for repeated images.
    """
    if reduction not in get_args(Reduction):
        raise ValueError(f"reduction must be one of {', '.join(get_args(Reduction))}; got '{reduction}'")
    similarity = as_logits(similarity)
    if isinstance(margin, Tensor) and margin.shape not in ((), (len(similarity),)):
        raise ValueError(
            f"margin must be a number or one for each of the {len(similarity)} pairs; got shape {tuple(margin.shape)}"
        )
    i2t = _reduce_rows(similarity, margin, reduction, valid)
    t2i = _reduce_rows(similarity.T, margin, reduction, None if valid is None else valid.T)
    return i2t + t2i  # [eq:triplet]


def _reduce_rows(similarity: Tensor, margin: float | Tensor, reduction: Reduction, valid: Tensor | None) -> Tensor:
    """The hinges (b,) with the rows as queries."""
    hinges = row_hinges(similarity, margin, valid)
    if reduction == "hardest":
        return hinges.max(dim=1).values
    return hinges.sum(dim=1) / count_valid(similarity, valid)


def row_hinges(similarity: Tensor, margin: float | Tensor, valid: Tensor | None) -> Tensor:
    """c (b, b): the hinge of each candidate with the rows as queries; 0 where it is no negative."""
    lead = similarity.diagonal() - margin  # (b,)
    return (similarity - lead[:, None]).relu().masked_fill(not_negative(similarity, valid), 0.0)


def soft_margin(label: Tensor, *, margin: float, shape: Shape = "exponential", base: float = 10.0) -> Tensor:
    """Margins (b,) of soft labels (b,) in [0, 1]: 0 for a label of 0, `margin` for a label of 1.

    Args:
        base: m of the exponential shape; above 1. The larger, the smaller the margins of uncertain pairs.
    """
    if shape == "exponential":
        fraction = (base**label - 1) / (base - 1)
    elif shape == "linear":
        fraction = label
    elif shape == "sine":
        fraction = (torch.sin(torch.pi * label - torch.pi / 2) + 1) / 2
    else:
        raise ValueError(f"shape must be one of {', '.join(get_args(Shape))}; got '{shape}'")
    return margin * fraction  # [eq:soft-margin]

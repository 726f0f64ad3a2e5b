"""Hinge ranking in both directions, with one margin for all pairs or one for each.

    c_ij = [a_i + S_ij - S_ii]_+   image i asks,     d_ij = [a_j + S_ij - S_jj]_+   text j asks,   0 where i = j

    hardest:  l_i = max_j c_ij + max_j d_ji            mean:  l_i = (1/n_i) sum_j c_ij + (1/n'_i) sum_j d_ji
                                                                                               [eq:triplet]

The published loss is the sum over the pairs. n_i and n'_i count the candidates of image i and of text i, the pair
itself included: B where everybody is a candidate. A soft margin a_i belongs to pair i and is used wherever pair i
is the right answer, so in its row of c and in its column of d.
References: Faghri et al., VSE++, 2018 (hardest); Huang et al., NCR, 2021 (mean, soft margins).
"""

from __future__ import annotations

from typing import Literal, get_args

from torch import Tensor

from sremkit.objectives.candidates import as_logits, count_valid, diagonal_mask

Reduction = Literal["hardest", "mean"]


def triplet(
    similarity: Tensor, *, margin: float | Tensor, reduction: Reduction, valid: Tensor | None = None
) -> Tensor:
    """Loss of each pair (b,), both directions added; 0 for a pair without any negative.

    Args:
        similarity: (b, b) rows images, columns texts; sigmoids, cosines or whatever the margin is measured in.
        margin: a number, or (b,) one for each pair.
        valid: (b, b) bool, True where a candidate counts, the diagonal included; for repeated images.
    """
    if reduction not in get_args(Reduction):
        raise ValueError(f"reduction must be one of {', '.join(get_args(Reduction))}; got '{reduction}'")
    similarity = as_logits(similarity)
    if isinstance(margin, Tensor) and margin.shape not in ((), (len(similarity),)):
        raise ValueError(
            f"margin must be a number or one for each of the {len(similarity)} pairs; "
            f"got shape {tuple(margin.shape)}"
        )
    i2t = _rows(similarity, margin, reduction, valid)
    t2i = _rows(similarity.T, margin, reduction, None if valid is None else valid.T)
    return i2t + t2i  # [eq:triplet]


def _rows(similarity: Tensor, margin: float | Tensor, reduction: Reduction, valid: Tensor | None) -> Tensor:
    """The hinges of the rows as queries: (b,)."""
    lead = similarity.diagonal() - margin  # (b,)
    hinges = (similarity - lead[:, None]).relu()  # (b, b)
    left_out = diagonal_mask(similarity) if valid is None else diagonal_mask(similarity) | ~valid
    hinges = hinges.masked_fill(left_out, 0.0)
    if reduction == "hardest":
        return hinges.max(dim=1).values
    return hinges.sum(dim=1) / count_valid(similarity, valid)

"""Who is whose candidate in a batch, and which negative is the hardest.

A row of the logits is a query, its columns are the candidates, and the diagonal is the given pair. `valid`
(b, b) is True where a candidate counts; the diagonal always does. An excluded candidate is given a logit so
low that its exponential is exactly 0, and finite so that no 0 * inf can make a NaN.
"""

from __future__ import annotations

import torch
from torch import Tensor


def as_logits(logits: Tensor, *, square: bool = True) -> Tensor:
    """The checked logits in float32 at least."""
    check_logits(logits, square=square)
    # Half precision drowns the difference between a pair and its hardest negative in rounding.
    return logits.float() if logits.dtype in (torch.float16, torch.bfloat16) else logits


def check_logits(logits: Tensor, *, square: bool = True) -> None:
    """A clear error unless the logits are a matrix of the expected kind."""
    if not logits.is_floating_point():
        raise ValueError(
            f"logits must be floating-point numbers, got {logits.dtype}; convert them with .float()"
        )
    if logits.ndim != 2 or logits.numel() == 0 or (square and logits.shape[0] != logits.shape[1]):
        raise ValueError(
            f"logits must be a {'square ' if square else ''}matrix, rows images and columns texts"
            f"{', with the given pairs on the diagonal' if square else ''}; got shape {tuple(logits.shape)}"
        )


def low(dtype: torch.dtype) -> float:
    """The logit of an excluded candidate: its exponential is 0 and sums with it stay finite."""
    return torch.finfo(dtype).min / 4


def keep_valid(logits: Tensor, valid: Tensor | None) -> Tensor:
    """Logits whose excluded candidates can neither win a row nor add to it."""
    return logits if valid is None else logits.masked_fill(~valid, low(logits.dtype))


def diagonal_mask(logits: Tensor) -> Tensor:
    """(b, b) bool, True for the given pairs."""
    return torch.eye(len(logits), dtype=torch.bool, device=logits.device)


def hardest_negative(logits: Tensor, valid: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """phi(i) = argmax over j != i of F_ij, the first in a tie; and whether row i has a negative at all."""
    negatives = keep_valid(logits, valid).masked_fill(diagonal_mask(logits), low(logits.dtype))
    value, index = negatives.max(dim=1)
    return index, value > low(logits.dtype)


def count_valid(logits: Tensor, valid: Tensor | None) -> Tensor:
    """(b,) how many candidates each row has, the given pair included."""
    if valid is None:
        return torch.full_like(logits[:, 0], logits.shape[1])
    return valid.sum(dim=1).to(logits.dtype)


def distinct_images(image_ids: Tensor) -> Tensor:
    """(b, b) bool: a candidate from another pair counts unless it belongs to the same image.

    Two captions of one image can meet in a batch. The "negative" between them is a true match, so it is
    nobody's negative: not a hard one, not a complementary label, and no part of the energy or the entropy.
    """
    same_pair = torch.eye(len(image_ids), dtype=torch.bool, device=image_ids.device)
    return (image_ids[:, None] != image_ids[None, :]) | same_pair

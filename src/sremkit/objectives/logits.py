"""The matrix of logits, as every objective uses it: checks, full float32, candidate masks and hardest negatives.

A row of the logits is a query, its columns are the candidates, and the diagonal holds the given pairs. `valid`
(b, b) is True where a candidate counts; the diagonal always does. A masked candidate gets a logit so low that its
exponential is exactly 0, and finite, so that no 0 * inf produces a NaN.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor


def as_logits(logits: Tensor, *, square: bool = True) -> Tensor:
    """The checked logits in float32 at least."""
    check_logits(logits, square=square)
    # In half precision the difference between a pair and its hardest negative is lost in rounding.
    return logits.float() if logits.dtype in (torch.float16, torch.bfloat16) else logits


def as_embeddings(image_emb: Tensor, text_emb: Tensor) -> tuple[Tensor, Tensor]:
    """The checked embeddings (b, d) in one dtype, float32 at least."""
    check_tensor("image_emb", image_emb)
    check_tensor("text_emb", text_emb)
    if image_emb.ndim != 2 or image_emb.shape != text_emb.shape:
        raise ValueError(
            "image_emb and text_emb must both be (b, d), row i of each belonging to pair i; "
            f"got {tuple(image_emb.shape)} and {tuple(text_emb.shape)}"
        )
    dtype = torch.promote_types(torch.promote_types(image_emb.dtype, text_emb.dtype), torch.float32)
    return image_emb.to(dtype), text_emb.to(dtype)


def check_logits(logits: Tensor, *, square: bool = True) -> None:
    """Raise unless the logits are a floating-point matrix, square by default."""
    check_tensor("logits", logits)
    if not logits.is_floating_point():
        raise ValueError(f"logits must be floating-point numbers, got {logits.dtype}; convert them with .float()")
    if logits.ndim != 2 or logits.numel() == 0 or (square and logits.shape[0] != logits.shape[1]):
        raise ValueError(
            f"logits must be a {'square ' if square else ''}matrix, rows images and columns texts"
            f"{', with the given pairs on the diagonal' if square else ''}; got shape {tuple(logits.shape)}"
        )


def check_tensor(name: str, value: object) -> None:
    if not isinstance(value, Tensor):
        given = f"{type(value).__module__}.{type(value).__name__}".removeprefix("builtins.")
        raise TypeError(f"{name} must be a torch.Tensor, got {given}; make one with torch.as_tensor")


def check_finite(what: str, *tensors: Tensor) -> None:
    """Raise if a tensor holds NaN or infinite values. On a GPU this waits for the device."""
    for tensor in tensors:
        smallest, largest = tensor.detach().aminmax()  # one pass, and no temporary matrix
        if not bool((smallest.isfinite() & largest.isfinite()).item()):
            raise ValueError(
                f"{what} hold NaN or infinite values; check for a division by a zero norm, an overflow in half "
                "precision or too high a learning rate (check_finite=False disables this check)"
            )


def mask_value(dtype: torch.dtype) -> float:
    """The logit of a masked candidate: its exponential is 0 and sums with it stay finite."""
    return torch.finfo(dtype).min / 4


def mask_invalid(logits: Tensor, valid: Tensor | None) -> Tensor:
    """Logits with masked candidates, which then affect neither the maximum nor the softmax of a row."""
    return logits if valid is None else logits.masked_fill(~valid, mask_value(logits.dtype))


def diagonal_mask(rows: Tensor) -> Tensor:
    """(b, b) bool, True for the given pairs; of a tensor with b rows."""
    return torch.eye(len(rows), dtype=torch.bool, device=rows.device)


def not_negative(logits: Tensor, valid: Tensor | None) -> Tensor:
    """(b, b) bool, True where a candidate is no negative: the given pair, or a masked candidate."""
    return diagonal_mask(logits) if valid is None else diagonal_mask(logits) | ~valid


def hardest_negative(logits: Tensor, valid: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """phi(i) = argmax over j != i of F_ij, the first in a tie; and whether row i has a negative at all."""
    lowest = mask_value(logits.dtype)
    value, index = mask_invalid(logits, valid).masked_fill(diagonal_mask(logits), lowest).max(dim=1)
    return index, value > lowest


def count_valid(logits: Tensor, valid: Tensor | None) -> Tensor:
    """(b,) the number of candidates of each row, the given pair included."""
    if valid is None:
        return torch.full_like(logits[:, 0], logits.shape[1])
    return valid.sum(dim=1).to(logits.dtype)


def distinct_images(image_ids: Tensor) -> Tensor:
    """(b, b) bool, symmetric: a candidate from another pair counts unless it belongs to the same image.

    A batch can hold two captions of one image. The "negative" between them is a true match, so it is masked in both
    directions: it is no hard negative, no complementary label, and no part of the energy or the entropy.
    """
    return (image_ids[:, None] != image_ids[None, :]) | diagonal_mask(image_ids)


def mean_over(values: Tensor, members: Tensor) -> Tensor:
    """Mean of `values` where `members` is True; 0 when there are none. No data-dependent shape."""
    return values.where(members, 0.0).sum() / members.sum().clamp_min(1)


def product(left: Tensor, right: Tensor) -> Tensor:
    """`left @ right` and its gradient without autocast and, on a CUDA device, without TF32.

    A bfloat16 or TF32 product rounds logits to two or three digits, and the difference between a pair and its hardest
    negative is lost in that rounding. While compiling, both settings apply: they are process-wide and cannot be changed
    inside a graph.
    """
    return left @ right if torch.compiler.is_compiling() else _Product.apply(left, right)


class _Product(torch.autograd.Function):
    """An autograd function, because backward may run under autocast where forward did not."""

    @staticmethod
    def forward(ctx: Any, left: Tensor, right: Tensor) -> Tensor:
        ctx.save_for_backward(left, right)
        with full_float32(left.device):
            return left @ right

    @staticmethod
    def backward(ctx: Any, upstream: Tensor) -> tuple[Tensor, Tensor]:
        left, right = ctx.saved_tensors
        with full_float32(left.device):
            return upstream @ right.T, left.T @ upstream


@contextmanager
def full_float32(device: torch.device) -> Iterator[None]:
    """Disable autocast and, on a CUDA device, TF32."""
    with torch.autocast(device_type=device.type, enabled=False):
        if device.type != "cuda":
            yield
            return
        matmul = torch.backends.cuda.matmul
        # Since torch 2.9 the setting has two names, and the old one raises once the new one was used.
        name, value = ("fp32_precision", "ieee") if hasattr(matmul, "fp32_precision") else ("allow_tf32", False)
        before = getattr(matmul, name)
        setattr(matmul, name, value)
        try:
            yield
        finally:
            setattr(matmul, name, before)

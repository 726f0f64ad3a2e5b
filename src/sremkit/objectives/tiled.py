"""The objective of very large batches of two vectors a pair, without ever holding the matrix of logits.

    F = scale · X Yᵀ + bias        X, Y (b, d): the embeddings of images and of texts

At b = 32,768 the matrix and its gradient would take 8 GB, and what is computed on the way several times that.
Here some rows of F are computed, go through all steps, and are forgotten; what is kept of them is a few
numbers a row. A second pass computes them again, and multiplies their gradient G at once into

    dX = scale · G Y,   dY = scale · Gᵀ X,   dscale = sum of X ∘ G Y,   dbias = sum of G

The other direction does the same with some columns of F. So the steps are those of `fused`, which is told
where its rows come from and where their gradient goes. Memory grows with b, not with its square; each direction
costs four products of embeddings.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import torch
from torch import Tensor

from sremkit.objectives.fused import Direction, Outcome, Plan, Ranking, direction, outcome, rank
from sremkit.objectives.precision import product
from sremkit.objectives.srem import SREM, all_finite, as_embeddings
from sremkit.objectives.terms import Terms

#: Numbers of the logits that are computed at once: five such blocks are held, 0.6 GB on a device.
_DEVICE_NUMBERS, _CPU_NUMBERS = 1 << 25, 1 << 21


class TiledSREM(SREM):
    """SREM for dual encoders and large batches: the same `from_embeddings`, in blocks of the logits.

    The result is SREM's. `parts` and statistics are detached as ever; there is no second derivative.

    Args:
        block_numbers: how many logits are computed at once; by default 2^25 on a device and 2^21 on a CPU.
        settings: those of SREM. The printed reading is not to be had: it multiplies (b, b) matrices.
    """

    def __init__(self, *, block_numbers: int | None = None, **settings: Any) -> None:
        super().__init__(**settings)
        if self.reading == "printed":
            raise ValueError(
                "TiledSREM computes the normalized reading alone; use SREM for reading='printed'"
            )
        if block_numbers is not None and block_numbers < 1:
            raise ValueError(f"block_numbers must be positive, got {block_numbers}")
        self.block_numbers = block_numbers

    def from_embeddings(
        self,
        image_emb: Tensor,
        text_emb: Tensor,
        scale: Tensor | float,
        bias: Tensor | float = 0.0,
        *,
        warmup: bool = False,
        image_ids: Tensor | None = None,
        **options: Any,
    ) -> Terms:
        """The objective of logits `scale * image_emb @ text_emb.T + bias`, as SREM's."""
        if options:
            raise TypeError(f"unknown options: {', '.join(options)}; there are warmup and image_ids")
        image_emb, text_emb = as_embeddings(image_emb, text_emb)
        self._check_options(len(image_emb), warmup, image_ids)
        scale, bias = (
            torch.as_tensor(x, dtype=image_emb.dtype, device=image_emb.device) for x in (scale, bias)
        )
        given = (image_emb, text_emb, scale.reshape(1), bias.reshape(1))
        if self.check_finite and not all(all_finite(x) for x in given):
            raise ValueError(
                "embeddings, scale or bias hold NaN or infinite values; look for a division by a zero norm or "
                "too high a learning rate (check_finite=False switches this check off)"
            )
        plan = self._plan(warmup)
        with torch.autocast(device_type=image_emb.device.type, enabled=False):
            found, total = _weighted_sum(
                image_emb, text_emb, scale, bias, image_ids, plan, self.block_numbers
            )
        return self._as_terms(found, total, warmup)


class Gradients(NamedTuple):
    """What the gradient of the logits is multiplied into."""

    times_texts: Tensor  # (b, d): G Y
    times_images: Tensor  # (b, d): Gᵀ X
    total: Tensor  # (): sum of G


class EmbeddingBlocks:
    """Rows of the logits, or with `transposed` of their transpose, computed from embeddings when asked for."""

    def __init__(
        self,
        rows: Tensor,
        columns: Tensor,
        scale: Tensor,
        bias: Tensor,
        *,
        rows_a_block: int,
        buffers: list[Tensor] | None = None,
        transposed: bool = False,
    ) -> None:
        self.rows, self.columns, self.scale, self.bias = rows, columns, scale, bias
        self.rows_a_block = rows_a_block
        self.transposed = transposed
        if buffers is None:
            buffers = [rows.new_empty(rows_a_block * len(rows)) for _ in range(4)]
        self._buffers = buffers

    @property
    def T(self) -> EmbeddingBlocks:  # noqa: N802 (as for a tensor)
        """The blocks of the transpose, with the same buffers."""
        return EmbeddingBlocks(
            self.columns,
            self.rows,
            self.scale,
            self.bias,
            rows_a_block=self.rows_a_block,
            buffers=self._buffers,
            transposed=not self.transposed,
        )

    @property
    def single(self) -> bool:
        return self.rows_a_block == len(self.rows)

    def __len__(self) -> int:
        return len(self.rows)

    def __iter__(self) -> Iterator[slice]:
        for start in range(0, len(self), self.rows_a_block):
            yield slice(start, min(start + self.rows_a_block, len(self)))

    def buffers(self, rows: slice) -> list[Tensor]:
        return [
            buffer[: (rows.stop - rows.start) * len(self)].view(-1, len(self)) for buffer in self._buffers
        ]

    def load(self, rows: slice, into: Tensor, scratch: Tensor) -> Tensor:
        return into.copy_(product(self.rows[rows], self.columns.T)).mul_(self.scale).add_(self.bias)

    def deliver(self, target: Gradients, rows: slice, values: Tensor, scratch: Tensor) -> None:
        """Multiply a block of the gradient into what is known of it."""
        of_rows, of_columns = target.times_texts, target.times_images
        if self.transposed:
            of_rows, of_columns = of_columns, of_rows
        of_rows[rows] += product(values, self.columns)
        of_columns += product(values.T, self.rows[rows])
        target.total.add_(values.sum())


class SharedImages:
    """Rows of the mask of pairs that share their image without being the same pair."""

    def __init__(self, image_ids: Tensor) -> None:
        self.image_ids = image_ids

    def __getitem__(self, rows: slice) -> Tensor:
        same = self.image_ids[rows, None] == self.image_ids
        same.diagonal(rows.start).fill_(False)
        return same

    def candidates(self, dtype: torch.dtype) -> Tensor:
        """(b,) how many candidates each row has: all but those that share its image."""
        _, which, counts = self.image_ids.unique(return_inverse=True, return_counts=True)
        return (len(self.image_ids) + 1 - counts[which]).to(dtype)


@torch.no_grad()
def evaluate_tiled(
    image_emb: Tensor,
    text_emb: Tensor,
    scale: Tensor,
    bias: Tensor,
    image_ids: Tensor | None,
    plan: Plan,
    *,
    rows_a_block: int,
    with_gradient: bool,
) -> tuple[Outcome, Gradients | None]:
    """Every term of the plan, unweighted, and the gradient of their weighted sum."""
    blocks = EmbeddingBlocks(image_emb, text_emb, scale, bias, rows_a_block=rows_a_block)
    shared = None if image_ids is None else SharedImages(image_ids.to(image_emb.device))
    candidates = torch.full_like(image_emb[:, 0], len(image_emb))
    if shared is not None:
        candidates = shared.candidates(image_emb.dtype)
    target = None
    if with_gradient:
        target = Gradients(torch.zeros_like(image_emb), torch.zeros_like(text_emb), torch.zeros_like(bias))
    t2i = direction(blocks.T, shared, candidates, plan, target)
    i2t = direction(blocks, shared, candidates, plan, target)
    rank_i2t, rank_t2i = rank(i2t, t2i.weight, plan), rank(t2i, i2t.weight, plan)
    if target is not None:
        _add_ranking(
            i2t, rank_i2t, image_emb, text_emb, target.times_texts, target.times_images, target.total
        )
        _add_ranking(
            t2i, rank_t2i, text_emb, image_emb, target.times_images, target.times_texts, target.total
        )
    return outcome(i2t, t2i, rank_i2t, rank_t2i, plan, image_emb.new_empty(0, 0)), target


def _add_ranking(
    queries: Direction,
    ranking: Ranking,
    rows: Tensor,
    columns: Tensor,
    of_rows: Tensor,
    of_columns: Tensor,
    total: Tensor,
) -> None:
    """The ranking loss reads two logits of a row: its pair's and its hardest negative's."""
    by_positive, by_hard = ranking.by_positive.unsqueeze(1), ranking.by_hard.unsqueeze(1)
    of_rows += by_positive * columns + by_hard * columns[queries.hard_index]
    of_columns += by_positive * rows
    of_columns.index_add_(0, queries.hard_index, by_hard * rows)
    total.add_(by_positive.sum() + by_hard.sum())


def _weighted_sum(
    image_emb: Tensor,
    text_emb: Tensor,
    scale: Tensor,
    bias: Tensor,
    image_ids: Tensor | None,
    plan: Plan,
    block_numbers: int | None,
) -> tuple[Outcome, Tensor]:
    """Every term of the plan, detached, and their weighted sum with its gradient."""
    given = (image_emb, text_emb, scale, bias)
    if block_numbers is None:
        block_numbers = _CPU_NUMBERS if image_emb.device.type == "cpu" else _DEVICE_NUMBERS
    found, target = evaluate_tiled(
        image_emb.detach(),
        text_emb.detach(),
        scale.detach(),
        bias.detach(),
        image_ids,
        plan,
        rows_a_block=min(len(image_emb), max(1, block_numbers // len(image_emb))),
        with_gradient=torch.is_grad_enabled() and any(x.requires_grad for x in given),
    )
    total = (
        plan.ranking_weight * (found.ranking_i2t + found.ranking_t2i)
        + plan.energy_weight * (found.energy_bound_i2t + found.energy_bound_t2i)
        + plan.complementary_weight * (found.complementary_i2t + found.complementary_t2i)
    )
    return found, total if target is None else _KnownGradient.apply(*given, total, *target)


class _KnownGradient(torch.autograd.Function):
    """A value whose gradient by embeddings, scale and bias is known already."""

    @staticmethod
    def forward(
        ctx: Any,
        image_emb: Tensor,
        text_emb: Tensor,
        scale: Tensor,
        bias: Tensor,
        value: Tensor,
        times_texts: Tensor,
        times_images: Tensor,
        total: Tensor,
    ) -> Tensor:
        ctx.save_for_backward(image_emb, scale, times_texts, times_images, total)
        return value.clone()

    @staticmethod
    def backward(ctx: Any, upstream: Tensor) -> tuple[Tensor | None, ...]:
        if torch.is_grad_enabled():
            raise RuntimeError("TiledSREM has no second derivative; use the functions of sremkit.objectives")
        image_emb, scale, times_texts, times_images, total = ctx.saved_tensors
        by_scale = upstream * (image_emb * times_texts).sum()
        by_emb = upstream * scale
        return by_emb * times_texts, by_emb * times_images, by_scale, upstream * total, None, None, None, None

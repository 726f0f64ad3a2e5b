"""The objective of very large batches of two vectors a pair, without ever holding the matrix of logits.

    F = scale · X Yᵀ + bias        X, Y (b, d): the embeddings of images and of texts

At b = 32,768 the matrix and its gradient would take 8 GB, and what is computed on the way several times that.
Here some rows of F are computed, go through all steps, and are forgotten; what is kept of them is a few
numbers a row. A second pass computes them again, and multiplies their gradient G at once into

    dX = scale · G Y,   dY = scale · Gᵀ X,   dscale = sum of X ∘ G Y,   dbias = sum of G

The other direction does the same with some columns of F. So the steps are those of `fused`, which is told
where its rows come from and where their gradient goes. Memory grows with b, not with its square; each direction
costs four products of embeddings.

Across processes each one brings some pairs. The embeddings are gathered once; a process computes an even share
of the rows, and of the columns; the numbers of each row are put together in between, and the products of the
gradient are added up at the end. Every process then has the same objective, and the gradient of its own pairs.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor

from sremkit.objectives.embedding_blocks import EmbeddingBlocks, Gradients, SharedImages
from sremkit.objectives.fused import Direction, Outcome, Plan, Ranking, direction, outcome, rank
from sremkit.objectives.processes import Share, share_alone, share_of_group
from sremkit.objectives.srem import SREM, all_finite, as_embeddings
from sremkit.objectives.terms import Terms

#: Numbers of the logits that are computed at once: five such blocks are held, 0.6 GB on a device.
_DEVICE_NUMBERS, _CPU_NUMBERS = 1 << 25, 1 << 21


class TiledSREM(SREM):
    """SREM for dual encoders and large batches: the same `from_embeddings`, in blocks of the logits.

    The result is SREM's. `parts` and statistics are detached as ever; there is no second derivative.

    Args:
        block_numbers: how many logits are computed at once; by default 2^25 on a device and 2^21 on a CPU.
        across_processes: every process of the default group gives its own pairs, any number of them, and the
            objective and the statistics are those of the joined batch, in the order of the ranks. Parameters
            get the gradient of one process on the joined batch when their gradients are *summed* over
            processes; scale and bias likewise.
        settings: those of SREM. The printed reading is not to be had: it multiplies (b, b) matrices.
    """

    def __init__(
        self, *, block_numbers: int | None = None, across_processes: bool = False, **settings: Any
    ) -> None:
        super().__init__(**settings)
        if self.reading == "printed":
            raise ValueError(
                "TiledSREM computes the normalized reading alone; use SREM for reading='printed'"
            )
        if block_numbers is not None and block_numbers < 1:
            raise ValueError(f"block_numbers must be positive, got {block_numbers}")
        self.block_numbers = block_numbers
        self.across_processes = across_processes

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
        share = share_alone(len(image_emb))
        if self.across_processes:
            share = share_of_group(len(image_emb), image_emb.device)
        joined = Joined(
            share.gather_own(image_emb),
            share.gather_own(text_emb),
            None if image_ids is None else share.gather_own(image_ids.to(image_emb.device)),
            share,
        )
        # What was gathered is looked at, so that all processes stop and none waits for another.
        looked_at = (joined.image_emb, joined.text_emb, scale.reshape(1), bias.reshape(1))
        if self.check_finite and not all(all_finite(x) for x in looked_at):
            raise ValueError(
                "embeddings, scale or bias hold NaN or infinite values; look for a division by a zero norm or "
                "too high a learning rate (check_finite=False switches this check off)"
            )
        given = (image_emb, text_emb, scale, bias)
        with torch.autocast(device_type=image_emb.device.type, enabled=False):
            found, total = _weighted_sum(given, joined, self._plan(warmup), self.block_numbers)
        return self._as_terms(found, total, warmup)


class Joined(NamedTuple):
    """The embeddings of all processes, detached."""

    image_emb: Tensor  # (b, d)
    text_emb: Tensor  # (b, d)
    image_ids: Tensor | None  # (b,)
    share: Share


@torch.no_grad()
def evaluate_tiled(
    joined: Joined, scale: Tensor, bias: Tensor, plan: Plan, *, rows_a_block: int, with_gradient: bool
) -> tuple[Outcome, Gradients | None]:
    """Every term of the plan, unweighted, and the gradient of their weighted sum."""
    image_emb, text_emb, image_ids, share = joined
    blocks = EmbeddingBlocks(image_emb, text_emb, scale, bias, rows_a_block=rows_a_block, share=share)
    shared = None if image_ids is None else SharedImages(image_ids)
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
        share.add_up(*target)
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
    given: tuple[Tensor, Tensor, Tensor, Tensor], joined: Joined, plan: Plan, block_numbers: int | None
) -> tuple[Outcome, Tensor]:
    """Every term of the plan, detached, and their weighted sum with its gradient by what was given."""
    size, share = len(joined.image_emb), joined.share
    if block_numbers is None:
        block_numbers = _CPU_NUMBERS if joined.image_emb.device.type == "cpu" else _DEVICE_NUMBERS
    _, _, scale, bias = given
    found, target = evaluate_tiled(
        joined,
        scale.detach(),
        bias.detach(),
        plan,
        rows_a_block=max(1, min(share.rows.stop - share.rows.start, block_numbers // size)),
        with_gradient=torch.is_grad_enabled() and any(x.requires_grad for x in given),
    )
    total = (
        plan.ranking_weight * (found.ranking_i2t + found.ranking_t2i)
        + plan.energy_weight * (found.energy_bound_i2t + found.energy_bound_t2i)
        + plan.complementary_weight * (found.complementary_i2t + found.complementary_t2i)
    )
    if target is None:
        return found, total
    own = share.own
    # The sum over processes is the whole: of the scale the own rows give a part, of the bias an even one.
    of_own = (target.times_texts[own], target.times_images[own], target.total / share.world)
    return found, _KnownGradient.apply(*given, total, *of_own)


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

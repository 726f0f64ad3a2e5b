"""SREM for very large batches of embeddings, without the matrix of logits in memory.

    F = scale · X Yᵀ + bias        X, Y (b, d): the embeddings of images and of texts

At b = 32,768 the matrix and its gradient would take 8 GB, and the temporaries several times that. Here a block of
rows of F, or of columns, is computed, goes through the steps of `fused.direction` and is discarded; only a few
numbers per row are kept. A second pass computes the block again and multiplies its gradient G directly into

    dX = scale · G Y,   dY = scale · Gᵀ X,   dscale = sum of X ∘ G Y,   dbias = sum of G

Memory grows with b, not with its square; each direction costs four products of embeddings.

With several processes the embeddings are gathered once, and each process computes an even share of the rows and of
the columns. The numbers of each row are gathered between the passes, the products of the gradient summed at the end.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor

from sremkit.objectives.fast.blocks import Blocks
from sremkit.objectives.fast.fused import FusedResult, Ranked, SREMConfig, both_directions
from sremkit.objectives.gather import BatchShard, group_shard, single_process_shard
from sremkit.objectives.logits import as_embeddings, check_finite, full_float32
from sremkit.objectives.srem import SREM
from sremkit.objectives.terms import Terms

#: Logits per block. Five buffers of this size are held, 0.6 GB on a GPU.
_DEVICE_LOGITS, _CPU_LOGITS = 1 << 25, 1 << 21


class TiledSREM(SREM):
    """SREM for dual encoders and large batches: the same `from_embeddings`, in blocks of the logits.

    Given a matrix of logits it computes what SREM does, in one process. There is no second derivative.

    Args:
        block_elements: the number of logits per block; by default 2^25 on a GPU and 2^21 on a CPU.
        across_processes: every process of the default group provides its own pairs, any number of them. Objective and
            statistics are those of the joined batch, in the order of the ranks. *Summed* over the processes, the
            gradients of parameters, scale and bias are those of one process on the joined batch.
        settings: those of SREM. The printed reading is not supported: it multiplies (b, b) matrices.
    """

    def __init__(self, *, block_elements: int | None = None, across_processes: bool = False, **settings: Any) -> None:
        super().__init__(**settings)
        if self.reading == "printed":
            raise ValueError("TiledSREM supports only the normalized reading; use SREM for reading='printed'")
        if self.warmup_power is not None:
            raise ValueError("TiledSREM warms up by the complementary loss; leave warmup_power out, or use SREM")
        if block_elements is not None and block_elements < 1:
            raise ValueError(f"block_elements must be positive, got {block_elements}")
        self.block_elements = block_elements
        self.across_processes = across_processes

    def forward(self, logits: Tensor, *, warmup: bool = False, image_ids: Tensor | None = None) -> Terms:
        """As SREM, on one process. Raises with `across_processes`: a matrix of own logits is not the joined batch."""
        if self.across_processes:
            raise RuntimeError(
                "TiledSREM(across_processes=True) computes the loss of the joined batch from embeddings; call "
                "from_embeddings(image_emb, text_emb, scale, bias), or use SREM for a matrix of logits"
            )
        return super().forward(logits, warmup=warmup, image_ids=image_ids)

    def from_embeddings(
        self,
        image_emb: Tensor,
        text_emb: Tensor,
        scale: Tensor | float,
        bias: Tensor | float = 0.0,
        *,
        warmup: bool = False,
        image_ids: Tensor | None = None,
    ) -> Terms:
        """The objective of logits `scale * image_emb @ text_emb.T + bias`, as for SREM."""
        image_emb, text_emb = as_embeddings(image_emb, text_emb)
        self._check_options(len(image_emb), warmup, image_ids)
        scale, bias = (torch.as_tensor(x, dtype=image_emb.dtype, device=image_emb.device) for x in (scale, bias))
        shard = single_process_shard(len(image_emb))
        if self.across_processes:
            shard = group_shard(len(image_emb), image_emb.device)
        images, texts = shard.gather_pairs(image_emb), shard.gather_pairs(text_emb)
        ids = None if image_ids is None else shard.gather_pairs(image_ids.to(image_emb.device))
        if self.check_finite:  # of the joined batch, so that all processes raise and none waits for another
            check_finite("embeddings, scale or bias", images, texts, scale.reshape(1), bias.reshape(1))
        inputs = (image_emb, text_emb, scale, bias)
        with_gradient = torch.is_grad_enabled() and any(x.requires_grad for x in inputs)
        config = self._config(warmup)
        with torch.autocast(device_type=image_emb.device.type, enabled=False):
            blocks = EmbeddingBlocks(
                images, texts, scale.detach(), bias.detach(), shard=shard, block_elements=self.block_elements
            )
            result, gradients = evaluate_tiled(blocks, ids, config, with_gradient=with_gradient)
            total = result.total(config)
            if gradients is not None:
                # Summed over the processes this gives the whole gradient: each process contributes its own rows of the
                # scale's gradient and an even share of the bias's.
                times_texts, times_images, of_bias = gradients
                own = Gradients(times_texts[shard.own], times_images[shard.own], of_bias / shard.world_size)
                total = _KnownGradient.apply(*inputs, total, own)
        return result.terms(total, config)


class Gradients(NamedTuple):
    """Products of the gradient G of the logits."""

    times_texts: Tensor  # (b, d): G Y
    times_images: Tensor  # (b, d): Gᵀ X
    total: Tensor  # (): sum of G


class EmbeddingBlocks(Blocks):
    """Blocks of the logits, or with `transposed` of their transpose, computed from embeddings on demand.

    With several processes, each computes the rows of its own shard.
    """

    def __init__(
        self,
        rows: Tensor,
        columns: Tensor,
        scale: Tensor,
        bias: Tensor,
        *,
        shard: BatchShard,
        block_elements: int | None,
        transpose_of: EmbeddingBlocks | None = None,
    ) -> None:
        if block_elements is None:
            block_elements = _CPU_LOGITS if rows.device.type == "cpu" else _DEVICE_LOGITS
        self.rows, self.columns, self.scale, self.bias, self.shard = rows, columns, scale, bias, shard
        rows_per_block = max(1, min(shard.rows.stop - shard.rows.start, block_elements // len(rows)))
        self.block_elements = block_elements
        super().__init__(rows, shard.rows, rows_per_block=rows_per_block, transpose_of=transpose_of)

    @property
    def T(self) -> EmbeddingBlocks:  # noqa: N802 (like torch.Tensor.T)
        return EmbeddingBlocks(
            self.columns, self.rows, self.scale, self.bias,
            shard=self.shard, block_elements=self.block_elements, transpose_of=self,
        )  # fmt: skip

    def load(self, rows: slice, into: Tensor, scratch: Tensor) -> Tensor:
        loaded = add_product(into, self.rows[rows], self.columns.T, keep=0.0)
        return loaded.mul_(self.scale).add_(self.bias)

    def write_gradient(self, target: Gradients, rows: slice, values: Tensor, scratch: Tensor) -> None:
        of_rows, of_columns = target.times_texts, target.times_images
        if self.transposed:
            of_rows, of_columns = of_columns, of_rows
        add_product(of_rows[rows], values, self.columns)
        add_product(of_columns, values.T, self.rows[rows])
        target.total.add_(values.sum())

    def gather(self, parts: tuple[Tensor, ...]) -> Tensor:
        return self.shard.gather_rows(torch.cat(parts))


class SharedImages:
    """Rows of the mask of pairs that share their image without being the same pair."""

    def __init__(self, image_ids: Tensor) -> None:
        self.image_ids = image_ids

    def __getitem__(self, rows: slice) -> Tensor:
        same = self.image_ids[rows, None] == self.image_ids
        same.diagonal(rows.start).fill_(False)
        return same

    def candidates(self, dtype: torch.dtype) -> Tensor:
        """(b,) the number of candidates of each row: all but those that share its image."""
        _, which, counts = self.image_ids.unique(return_inverse=True, return_counts=True)
        others: Tensor = len(self.image_ids) + 1 - counts[which]
        return others.to(dtype)


@torch.no_grad()
def add_product(target: Tensor, left: Tensor, right: Tensor, *, keep: float = 1.0) -> Tensor:
    """Replace `target` by `keep * target + left @ right`, in full float32; with keep 0 its old values are ignored.

    No large tensor is allocated: alternating large temporary and small lasting allocations fragment the memory of a
    process, which then grows with every block.
    """
    with full_float32(left.device):
        return target.addmm_(left, right, beta=keep)


@torch.no_grad()
def evaluate_tiled(
    blocks: EmbeddingBlocks, image_ids: Tensor | None, config: SREMConfig, *, with_gradient: bool
) -> tuple[FusedResult, Gradients | None]:
    """Every term, unweighted, and the gradient of their weighted sum."""
    images, texts = blocks.rows, blocks.columns
    shared, candidates = None, torch.full_like(images[:, 0], len(images))
    if image_ids is not None:
        shared = SharedImages(image_ids)
        candidates = shared.candidates(images.dtype)
    target = None
    if with_gradient:
        target = Gradients(torch.zeros_like(images), torch.zeros_like(texts), torch.zeros_like(blocks.bias))
    i2t, t2i = both_directions(blocks, shared, candidates, config, target)
    if target is not None:
        blocks.shard.all_reduce_sum(*target)
        of_images, of_texts, total = target
        _add_ranking(i2t, images, texts, of_images, of_texts, total)
        _add_ranking(t2i, texts, images, of_texts, of_images, total)
    return FusedResult(i2t.result, t2i.result, images.new_empty(0, 0)), target


def _add_ranking(
    ranked: Ranked, rows: Tensor, columns: Tensor, of_rows: Tensor, of_columns: Tensor, total: Tensor
) -> None:
    """Add the gradient of the ranking loss, which depends on two logits of a row: the pair and its hardest negative."""
    grad_positive, grad_hard = ranked.grad_positive.unsqueeze(1), ranked.grad_hard.unsqueeze(1)
    of_rows += grad_positive * columns + grad_hard * columns[ranked.hard_index]
    of_columns += grad_positive * rows
    of_columns.index_add_(0, ranked.hard_index, grad_hard * rows)
    total.add_(grad_positive.sum() + grad_hard.sum())


class _KnownGradient(torch.autograd.Function):
    """A value with a known gradient with respect to embeddings, scale and bias."""

    @staticmethod
    def forward(
        ctx: Any, image_emb: Tensor, text_emb: Tensor, scale: Tensor, bias: Tensor, value: Tensor, gradients: Gradients
    ) -> Tensor:
        ctx.save_for_backward(image_emb, scale, *gradients)
        return value.clone()

    @staticmethod
    def backward(ctx: Any, upstream: Tensor) -> tuple[Tensor | None, ...]:
        if torch.is_grad_enabled():
            raise RuntimeError("TiledSREM has no second derivative; use sremkit.objectives.srem_reference")
        image_emb, scale, times_texts, times_images, total = ctx.saved_tensors
        factor = upstream * scale
        grad_scale = upstream * (image_emb * times_texts).sum()
        return factor * times_texts, factor * times_images, grad_scale, upstream * total, None, None

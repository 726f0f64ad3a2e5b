"""IMRAM: attention in several steps; each query's memory is updated by what it attended to.

    c^t = attention of the memory q^t,   r^t = mean_l cos(w_l, c^t_l)   (w the first queries, q^0 = w)
    g = σ(W_g [q; c] + b_g),   o = tanh(W_o [q; c] + b_o),   q^{t+1} = g ⊙ q + (1 - g) ⊙ o

and S = sum_t r^t, with words as queries (t2i, "text"), with regions as queries (i2t, "image"), or the sum of
both ("full"). The logit is scale · S + bias.

Reference: Chen et al., "IMRAM: Iterative Matching with Recurrent Attention Memory", CVPR 2020.
"""

from __future__ import annotations

from typing import Any, Literal, NamedTuple, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from sremkit import ops
from sremkit.models import BACKBONES
from sremkit.models.encoding import Encoded
from sremkit.models.layers.cross_attention import Contexts, CrossAttentionMatcher, Direction
from sremkit.models.layers.encoders import LogitScale, check_positive
from sremkit.models.layers.masking import masked_mean
from sremkit.ops.cross_attention import Queries, affinities, attended_cosines, gram_matrix
from sremkit.ops.functional import l2_normalize, without_autocast
from sremkit.ops.memory_update import memory_update

#: The paper names a direction after the modality of its queries.
QUERY_MODALITY: dict[Direction, str] = {"t2i": "text", "i2t": "image"}


class MemoryWeights(NamedTuple):
    """Both layers of a memory: W_q (2d, d) for the memory, W_c (2d, d) for the contexts, and b (2d,)."""

    of_memory: Tensor
    of_contexts: Tensor
    bias: Tensor


class Memory(nn.Module):
    """The gated update of a query by what it attended to.

    W [q; c] = W_q q + W_c c, and W_c c is the attention over W_c v: so the contexts are projected once, and not every
    attended vector of every pair.
    """

    def __init__(self, embed_size: int, *, unit_memory: bool) -> None:
        super().__init__()
        self.gate = nn.Linear(2 * embed_size, embed_size)
        self.output = nn.Linear(2 * embed_size, embed_size)
        self.unit_memory = unit_memory

    def weights(self) -> MemoryWeights:
        """In the dtype of matrix products, converted once for all steps."""
        dtype = ops.compute_dtype(self.gate.weight)
        weight = torch.cat([self.gate.weight, self.output.weight]).to(dtype)
        bias = torch.cat([self.gate.bias, self.output.bias]).to(dtype)
        of_memory, of_contexts = weight.chunk(2, dim=1)
        return MemoryWeights(of_memory, of_contexts, bias)

    def forward(self, *inputs: Tensor, with_kernel: bool) -> Tensor:
        """The next memory (c, Q, d); inputs as for `memory_update`."""
        updated = memory_update(*inputs, with_kernel=with_kernel)
        return l2_normalize(updated) if self.unit_memory else updated


class ProjectedQueries(NamedTuple):
    """Queries; with a memory also its weights and W_q q + b of the first queries, (1, Q, 2d)."""

    queries: Queries
    weights: MemoryWeights | None
    projected: Tensor | None


@BACKBONES.register("imram")
class IterativeMatching(CrossAttentionMatcher):
    """Attention in several steps with a memory (IMRAM).

    Args:
        direction: "text" for words that attend to regions, "image" for regions that attend to words, "full" for both.
        num_steps: number of attention steps (K).
        attention_scale: inverse temperature of the attention.
        unit_memory: L2-normalise the memory after each step.
        recompute: in training, recompute a chunk's memories in the backward pass. They are as wide as the
            embeddings, for every word of every pair and every step; keeping them all is a third faster
            and takes gigabytes.
        scale: initial slope from similarity to logit; 10 over the number of cosines summed, unless given.
        neutral: similarity whose logit is initially 0; half the number of cosines summed, unless given.
    """

    compares_in_autocast = True

    def __init__(
        self,
        *,
        direction: Literal["text", "image", "full"] = "full",
        num_steps: int = 3,
        attention_scale: float = 9.0,
        unit_memory: bool = False,
        recompute: bool = True,
        scale: float | None = None,
        neutral: float | None = None,
        **encoders: Any,
    ) -> None:
        super().__init__(**encoders)
        check_positive(num_steps=num_steps)
        if direction not in ("text", "image", "full"):
            raise ValueError(f"direction must be 'text', 'image' or 'full', got '{direction}'")
        self.num_steps, self.attention_scale, self.recompute = num_steps, attention_scale, recompute
        self.directions = [d for d, queries in QUERY_MODALITY.items() if direction in (queries, "full")]
        embed_size = self.regions.project.out_features
        self.memories = nn.ModuleDict(
            {
                QUERY_MODALITY[d]: Memory(embed_size, unit_memory=unit_memory)
                for d in self.directions
                if num_steps > 1  # after the last step there is no update
            }
        )
        summed = num_steps * len(self.directions)
        scale = 10.0 / summed if scale is None else scale
        self.to_logit = LogitScale(scale=scale, neutral=0.5 * summed if neutral is None else neutral)

    def compare(self, images: Encoded, texts: Encoded) -> Tensor:
        similarities = []
        for direction in self.directions:
            weights = self.memory(direction).weights() if self.memories else None
            similarities.append(self.similarity(direction, images, texts, weights))
        return self.to_logit(torch.stack(similarities).sum(dim=0))

    def memory(self, direction: Direction) -> Memory:
        return cast(Memory, self.memories[QUERY_MODALITY[direction]])

    def prepare_queries(self, queries: Queries, weights: MemoryWeights | None) -> ProjectedQueries:
        if weights is None:
            return ProjectedQueries(queries, None, None)
        projected = F.linear(queries.rows.unsqueeze(0), weights.of_memory, weights.bias)
        return ProjectedQueries(queries, weights, projected)

    def project_contexts(self, local: Tensor, weights: MemoryWeights | None) -> Tensor | None:
        return None if weights is None else F.linear(local, weights.of_contexts)

    def score(self, direction: Direction, queries: ProjectedQueries, contexts: Contexts) -> Tensor:
        """Sum over the steps of the mean cosine of queries and attended vectors: (c, q)."""
        if self.recompute and torch.is_grad_enabled():
            return checkpoint(self._score, direction, queries, contexts, use_reentrant=False, preserve_rng_state=False)
        return self._score(direction, queries, contexts)

    def _score(self, direction: Direction, queries: ProjectedQueries, contexts: Contexts) -> Tensor:
        (first, weights, projected), (local, mask, projected_contexts) = queries, contexts
        gram = gram_matrix(local)
        with without_autocast(first.rows):
            compared = affinities(first.rows, local)  # (c, k, Q)
        means: list[Tensor] = []
        memory, affinity = first.rows.unsqueeze(0), compared
        for step in range(self.num_steps):
            if step > 0:
                # In this order the gradient of the memory, the larger of the two, is contiguous like the memory.
                affinity = (memory @ local.transpose(1, 2)).transpose(1, 2)
            found = attended_cosines(affinity, compared, first, gram, mask, self.attention_scale)
            means.append(masked_mean(*first.by_item(found.cosines), dim=-1))
            if step + 1 == self.num_steps:
                break
            assert weights is not None
            assert projected is not None
            assert projected_contexts is not None
            if step > 0:
                projected = F.linear(memory, weights.of_memory, weights.bias)
            inputs = (memory, projected, found.attention(), projected_contexts)
            memory = self.memory(direction)(*inputs, with_kernel=first.packing is not None)
        return torch.stack(means).sum(dim=0)

    def floats_per_pair(self, images: Encoded, texts: Encoded) -> int:
        (_, r, d), w = images.parts()[0].shape, texts.parts()[1].shape[1]
        if ops.uses_triton(next(self.parameters())):
            # Memories exist for some items at a time only, however many pairs there are; what a text costs by itself
            # is shared by its pairs in a block, whose number of images is not known yet.
            return 8 * r * w + 12 * d * w // max(1, min(len(images), 128))
        num_queries = max({"t2i": w, "i2t": r}[direction] for direction in self.directions)
        return 8 * r * w + 8 * d * num_queries

    def floats_per_word(self, direction: Direction, images: Encoded) -> int:
        n, r, d = images.parts()[0].shape
        # t2i has a memory for each word and image, i2t one for each region and text, whatever the text's length:
        # counted as if a text had eight words.
        return 4 * n * d if direction == "t2i" else 4 * n * r * d // 8

    def floats_per_context(self, queries: Queries, num_contexts: int) -> int:
        # The sums of both layers, and the memory before and after: floats of half the width count half.
        return queries.rows.numel() * ops.compute_dtype(queries.rows).itemsize

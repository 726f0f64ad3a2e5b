"""IMRAM: attention in several steps; each query remembers what it found and asks again.

    c^t = attention of the memory q^t,   r^t = mean_l cos(w_l, c^t_l)   (w the first queries, q^0 = w)
    g = σ(W_g [q; c] + b_g),   o = tanh(W_o [q; c] + b_o),   q^{t+1} = g ⊙ q + (1 - g) ⊙ o

and S = sum_t r^t. Words ask regions ("text"), regions ask words ("image"), or both are added ("full").

Reference: Chen et al., "IMRAM: Iterative Matching with Recurrent Attention Memory", CVPR 2020.
"""

from __future__ import annotations

from typing import Literal, NamedTuple, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from sremkit import kernels
from sremkit.data.batch import Batch
from sremkit.kernels.plain_memory import plain_memory_update
from sremkit.models import BACKBONES
from sremkit.models.attended import (
    Queries,
    all_queries,
    attend_and_compare,
    kernels_hold,
    kernels_serve,
    packed_queries,
)
from sremkit.models.attention import affinities, gram_matrix
from sremkit.models.chunks import in_first_order, item_slices, length_chunks
from sremkit.models.encoders import RegionEncoder, WordEncoder, check_positive
from sremkit.models.masking import masked_mean
from sremkit.models.matcher import Encoded, Matcher
from sremkit.models.similarity import LearnedLogit, full_precision, unit, without_autocast

Direction = Literal["text", "image", "full"]


class Layers(NamedTuple):
    """Both layers of a memory: W_q (2d, d) for the memory, W_c (2d, d) for contexts, and b (2d,)."""

    of_memory: Tensor
    of_contexts: Tensor
    bias: Tensor


class Memory(nn.Module):
    """How a query changes by what it attended to.

    W [q; c] = W_q q + W_c c, and W_c c is the attention over W_c v: so contexts are multiplied once, and not every
    attended vector of every pair.
    """

    def __init__(self, embed_size: int, *, unit_memory: bool) -> None:
        super().__init__()
        self.gate = nn.Linear(2 * embed_size, embed_size)
        self.output = nn.Linear(2 * embed_size, embed_size)
        self.unit_memory = unit_memory

    def layers(self) -> Layers:
        """In the number format of products, once for all who use them."""
        dtype = kernels.compute_dtype(self.gate.weight)
        weight, bias = (
            torch.cat([getattr(layer, name) for layer in (self.gate, self.output)]).to(dtype)
            for name in ("weight", "bias")
        )
        of_memory, of_contexts = weight.chunk(2, dim=1)
        return Layers(of_memory, of_contexts, bias)

    def forward(
        self,
        memory: Tensor,
        from_memory: Tensor,
        attention: Tensor,
        from_contexts: Tensor,
        *,
        by_kernels: bool,
    ) -> Tensor:
        """The next memory (c, Q, d).

        Args:
            memory: (c, Q, d), or (1, Q, d) while it is still the same for all items.
            from_memory: (c, Q, 2d) or (1, Q, 2d): W_q q + b
            attention: (c, k, Q)
            from_contexts: (c, k, 2d): W_c v
        """
        inputs = (memory, from_memory, attention, from_contexts)
        if by_kernels:
            from sremkit.kernels.memory_update import memory_update  # imports Triton

            updated = memory_update(*inputs)
        else:
            updated = plain_memory_update(*inputs)
        return unit(updated) if self.unit_memory else updated


class Asking(NamedTuple):
    """All that depends on those who ask alone; without layers they do not remember."""

    queries: Queries
    layers: Layers | None
    from_memory: Tensor | None  # (1, Q, 2d): W_q q + b of the first queries


class Asked(NamedTuple):
    """All that depends on those who are asked alone."""

    local: Tensor  # (c, k, d)
    mask: Tensor  # (c, k)
    gram: Tensor  # (c, k, k)
    from_contexts: Tensor | None  # (c, k, 2d): W_c v, if those who ask remember

    def some(self, items: slice) -> Asked:
        from_contexts = None if self.from_contexts is None else self.from_contexts[items]
        return Asked(self.local[items], self.mask[items], self.gram[items], from_contexts)


def all_asking(queries: Queries, layers: Layers | None) -> Asking:
    if layers is None:
        return Asking(queries, None, None)
    return Asking(queries, layers, F.linear(queries.rows.unsqueeze(0), layers.of_memory, layers.bias))


def all_asked(items: Encoded, layers: Layers | None) -> Asked:
    """Items whose parts are looked at, by those who ask with these layers."""
    local, mask = items.parts()
    local = full_precision(local)
    from_contexts = None if layers is None else F.linear(local, layers.of_contexts)
    return Asked(local, mask, gram_matrix(local), from_contexts)


@BACKBONES.register("imram")
class IterativeMatching(Matcher):
    """Attention in several steps with a memory (IMRAM).

    Args:
        direction: "text" for words that ask regions, "image" for regions that ask words, "full" for both.
        num_steps: how often each query asks (K).
        attention_scale: sharpness of the attention.
        unit_memory: bring the memory to unit length after each step.
        recompute: in training, compute a chunk's memories again when gradients need them. They are as
            wide as the embeddings, for every word of every pair and every step; keeping them all is a
            third faster and takes gigabytes.
        scale: starting slope from similarity to logit; 10 over the number of cosines added, unless given.
        neutral: similarity whose logit starts at 0; half the number of cosines added, unless given.
    """

    recordable = True

    def __init__(
        self,
        *,
        vocab_size: int,
        image_dim: int = 2048,
        embed_size: int = 1024,
        word_dim: int = 300,
        direction: Direction = "full",
        num_steps: int = 3,
        attention_scale: float = 9.0,
        unit_memory: bool = False,
        recompute: bool = True,
        scale: float | None = None,
        neutral: float | None = None,
    ) -> None:
        super().__init__()
        check_positive(vocab_size=vocab_size, image_dim=image_dim, embed_size=embed_size, word_dim=word_dim)
        check_positive(num_steps=num_steps)
        if direction not in ("text", "image", "full"):
            raise ValueError(f"direction must be 'text', 'image' or 'full', got '{direction}'")
        self.direction, self.num_steps = direction, num_steps
        self.attention_scale, self.recompute = attention_scale, recompute
        self.regions = RegionEncoder(image_dim, embed_size)
        self.words = WordEncoder(vocab_size, word_dim, embed_size)
        remembers = num_steps > 1  # after the last step nobody asks again
        self.sides: tuple[str, ...] = ("text", "image") if direction == "full" else (direction,)
        self.memories = nn.ModuleDict(
            {side: Memory(embed_size, unit_memory=unit_memory) for side in self.sides if remembers}
        )
        added = num_steps * len(self.sides)
        self.to_logit = LearnedLogit(
            scale=10.0 / added if scale is None else scale,
            neutral=0.5 * added if neutral is None else neutral,
        )

    def encode_images(self, batch: Batch) -> Encoded:
        return self.regions(batch)

    def encode_texts(self, batch: Batch) -> Encoded:
        return self.words(batch)

    def kernels_hold(self, batch: Batch) -> bool:
        return kernels_hold(batch)

    def floats_per_pair(self, images: Encoded, texts: Encoded) -> int:
        (_, r, d), w = images.parts()[0].shape, texts.parts()[1].shape[1]
        num_queries = max({"text": w, "image": r}[side] for side in self.sides)
        if kernels.uses_triton(next(self.parameters())):
            # Memories exist only of some items at a time, however many pairs there are; what a text costs by itself
            # is shared by its pairs in a block, of which we do not know yet how many images it has.
            return 8 * r * w + 12 * d * w // max(1, min(len(images), 128))
        return 8 * r * w + 8 * d * num_queries

    def compare(self, images: Encoded, texts: Encoded) -> Tensor:
        similarities = [self.similarity(side, images, texts) for side in self.sides]
        return self.to_logit(torch.stack(similarities).sum(dim=0))

    def similarity(self, side: str, images: Encoded, texts: Encoded) -> Tensor:
        """What this side finds when it asks, for every image with every text: (n, m)."""
        if kernels_serve(*((texts, images) if side == "text" else (images, texts))):
            return self.packed_similarity(side, images, texts)
        images = images.trimmed()
        (n, r, d), layers = images.parts()[0].shape, self.layers_of(side)
        # Words ask: a memory for each word and image. Regions ask: one for each region and text, whatever
        # the text's length; counted as if a text had eight words.
        per_word = 4 * n * d if side == "text" else 4 * n * r * d // 8
        # Once for all texts.
        asked = all_asked(images, layers) if side == "text" else None
        asking = all_asking(all_queries(images), layers) if side == "image" else None
        parts, columns = [], []
        for chunk in length_chunks(texts, floats_per_word=per_word):
            found = self.ask(
                side,
                asking or all_asking(all_queries(chunk.texts), layers),
                asked or all_asked(chunk.texts, layers),
            )
            parts.append(found if side == "text" else found.T)
            columns.append(chunk.columns)
        return in_first_order(parts, columns)

    def packed_similarity(self, side: str, images: Encoded, texts: Encoded) -> Tensor:
        """The same by kernels. Queries are not padded, so those who are asked come in any order, some at a time."""
        layers = self.layers_of(side)
        asking = all_asking(packed_queries(texts if side == "text" else images), layers)
        asked = all_asked(images if side == "text" else texts, layers)
        rows = asking.queries.rows
        # The sums of both layers, and the memory before and after: numbers of half the width count half.
        some = item_slices(asked.local, floats_per_item=rows.numel() * kernels.compute_dtype(rows).itemsize)
        found = torch.cat([self.ask(side, asking, asked.some(items)) for items in some])
        return found if side == "text" else found.T

    def layers_of(self, side: str) -> Layers | None:
        """Of this side's memory, if it remembers."""
        return self.memory_of(side).layers() if side in self.memories else None

    def memory_of(self, side: str) -> Memory:
        return cast(Memory, self.memories[side])

    def ask(self, side: str, asking: Asking, asked: Asked) -> Tensor:
        """Sum over the steps of the mean cosine of queries and what they attend to: (c, q)."""
        if self.recompute and torch.is_grad_enabled():
            return checkpoint(self._ask, side, asking, asked, use_reentrant=False, preserve_rng_state=False)
        return self._ask(side, asking, asked)

    def _ask(self, side: str, asking: Asking, asked: Asked) -> Tensor:
        queries, layers = asking.queries, asking.layers
        with without_autocast(queries.rows):
            compared = affinities(queries.rows, asked.local)  # (c, k, Q)
        means: list[Tensor] = []
        memory, affinity = queries.rows.unsqueeze(0), compared
        for step in range(self.num_steps):
            found = attend_and_compare(
                affinity, compared, queries, asked.gram, context_mask=asked.mask, scale=self.attention_scale
            )
            means.append(masked_mean(*queries.by_item(found.cosines), dim=-1))
            if step + 1 == self.num_steps:
                break
            assert layers is not None
            assert asking.from_memory is not None
            assert asked.from_contexts is not None
            memory = self.memory_of(side)(
                memory,
                asking.from_memory if step == 0 else F.linear(memory, layers.of_memory, layers.bias),
                found.attention(),
                asked.from_contexts,
                by_kernels=queries.packing is not None,
            )  # (c, Q, d)
            # This way round the gradient by the memory, the larger of the two, lies as the memory does.
            affinity = (memory @ asked.local.transpose(1, 2)).transpose(1, 2)
        return torch.stack(means).sum(dim=0)

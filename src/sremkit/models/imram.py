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

from sremkit.data.batch import Batch
from sremkit.models import BACKBONES
from sremkit.models.attended import attend_and_compare
from sremkit.models.attention import affinities, gram_matrix
from sremkit.models.chunks import in_first_order, length_chunks
from sremkit.models.encoders import RegionEncoder, WordEncoder, check_positive
from sremkit.models.masking import masked_mean
from sremkit.models.matcher import Encoded, Matcher
from sremkit.models.similarity import LearnedLogit, full_precision, unit, without_autocast

Direction = Literal["text", "image", "full"]


class Memory(nn.Module):
    """How a query changes by what it attended to."""

    def __init__(self, embed_size: int, *, unit_memory: bool) -> None:
        super().__init__()
        self.gate = nn.Linear(2 * embed_size, embed_size)
        self.output = nn.Linear(2 * embed_size, embed_size)
        self.unit_memory = unit_memory

    def from_memory(self, memory: Tensor) -> Tensor:
        """W_q q + b of both layers: (..., 2d)."""
        weight = torch.cat([self.gate.weight, self.output.weight])[:, : memory.shape[-1]]
        return F.linear(memory, weight, torch.cat([self.gate.bias, self.output.bias]))

    def from_contexts(self, contexts: Tensor) -> Tensor:
        """W_c v of both layers: (..., 2d)."""
        weight = torch.cat([self.gate.weight, self.output.weight])[:, contexts.shape[-1] :]
        return F.linear(contexts, weight)

    def forward(
        self, memory: Tensor, from_memory: Tensor, attention: Tensor, from_contexts: Tensor
    ) -> Tensor:
        """The next memory (c, queries, d).

        W [q; c] = W_q q + W_c c, and W_c c is the attention over W_c v: so contexts are multiplied once, and not
        every attended vector of every pair.

        Args:
            memory: (c, queries, d), or (1, queries, d) while it is still the same for all items.
            attention: (c, k, queries)
        """
        mixed = torch.baddbmm(from_memory, attention.transpose(1, 2).to(from_contexts.dtype), from_contexts)
        gate, output = mixed.chunk(2, dim=-1)
        gate, output = torch.sigmoid(gate), torch.tanh(output)
        updated = gate * memory + (1 - gate) * output
        return unit(updated) if self.unit_memory else updated


class Side(NamedTuple):
    """One modality, ready to ask and to be asked; what a direction does not need is None."""

    local: Tensor  # (n, l, d)
    mask: Tensor  # (n, l)
    gram: Tensor | None  # (n, l, l), to be asked
    as_contexts: Tensor | None  # (n, l, 2d), to be asked by those who remember
    as_queries: Tensor | None  # (1, n·l, 2d), to ask and remember


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
        asking = {"text": ("text",), "image": ("image",), "full": ("text", "image")}[direction]
        self.memories = nn.ModuleDict(
            {side: Memory(embed_size, unit_memory=unit_memory) for side in asking if remembers}
        )
        added = num_steps * len(asking)
        self.to_logit = LearnedLogit(
            scale=10.0 / added if scale is None else scale,
            neutral=0.5 * added if neutral is None else neutral,
        )

    def encode_images(self, batch: Batch) -> Encoded:
        return self.regions(batch)

    def encode_texts(self, batch: Batch) -> Encoded:
        return self.words(batch)

    def floats_per_pair(self, images: Encoded, texts: Encoded) -> int:
        (_, r, d), w = images.parts()[0].shape, texts.parts()[1].shape[1]
        num_queries = {"text": w, "image": r, "full": max(r, w)}[self.direction]
        return 8 * r * w + 8 * d * num_queries

    def compare(self, images: Encoded, texts: Encoded) -> Tensor:
        images = images.trimmed()
        regions = self.prepared("image", images)  # once for all texts
        n, r, d = regions.local.shape
        # Words ask: a memory for each word and image. Regions ask: one for each region and text, whatever
        # the text's length; counted as if a text had eight words.
        per_word = 4 * n * d if self.direction == "text" else 4 * n * r * d // 8
        parts, columns = [], []
        for chunk in length_chunks(texts, floats_per_word=per_word):
            words = self.prepared("text", chunk.texts)
            if self.recompute and torch.is_grad_enabled():
                similarity = checkpoint(
                    self.similarity, regions, words, use_reentrant=False, preserve_rng_state=False
                )
            else:
                similarity = self.similarity(regions, words)
            parts.append(similarity)
            columns.append(chunk.columns)
        return self.to_logit(in_first_order(parts, columns))

    def prepared(self, modality: str, items: Encoded) -> Side:
        """All that depends on one modality alone."""
        local, mask = items.parts()
        local = full_precision(local)
        other = "image" if modality == "text" else "text"
        asked = self.direction in (other, "full")
        as_contexts = as_queries = None
        if other in self.memories:
            as_contexts = self.memory_of(other).from_contexts(local)
        if modality in self.memories:
            as_queries = self.memory_of(modality).from_memory(local.flatten(0, 1).unsqueeze(0))
        return Side(local, mask, gram_matrix(local) if asked else None, as_contexts, as_queries)

    def memory_of(self, modality: str) -> Memory:
        return cast(Memory, self.memories[modality])

    def similarity(self, regions: Side, words: Side) -> Tensor:
        """S of every image with every text: (n, m)."""
        if self.direction == "text":
            return self.ask("text", words, regions)
        if self.direction == "image":
            return self.ask("image", regions, words).T
        return self.ask("text", words, regions) + self.ask("image", regions, words).T

    def ask(self, modality: str, queries: Side, contexts: Side) -> Tensor:
        """Sum over the steps of the mean cosine of queries and what they attend to: (c, q)."""
        assert contexts.gram is not None
        with without_autocast(queries.local):
            first_affinity = affinities(queries.local, contexts.local)  # (c, k, q, l)
        total = contexts.local.new_zeros(len(contexts.local), len(queries.local))
        memory, affinity = queries.local.flatten(0, 1).unsqueeze(0), first_affinity
        for step in range(self.num_steps):
            attention, cosines = attend_and_compare(
                affinity,
                first_affinity,
                queries.local,
                contexts.gram,
                query_mask=queries.mask,
                context_mask=contexts.mask,
                scale=self.attention_scale,
            )
            total = total + masked_mean(cosines, queries.mask, dim=-1)
            if step + 1 < self.num_steps:
                update = self.memory_of(modality)
                from_memory = queries.as_queries if step == 0 else update.from_memory(memory)
                memory = update(
                    memory, from_memory, attention.flatten(2), contexts.as_contexts
                )  # (c, q·l, d)
                affinity = (contexts.local @ memory.transpose(1, 2)).view_as(first_affinity)
        return total

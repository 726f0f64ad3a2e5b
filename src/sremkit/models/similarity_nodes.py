"""What SGR and SAF reason about: a vector of similarity for each word of a text, and one for the whole.

    s_l = ℓ2( P_loc (c_l - w_l)² + b ),   s_0 = ℓ2( P_glo (v_glo - w_glo)² + b )

The square is of each component; c_l is the unit vector that word l attends to, v_glo and w_glo are the global
vectors. The nodes of a pair are [s_0, s_1, ..., s_w], the global one first.

They come in two forms: in chunks of padded captions by plain PyTorch, and packed by the kernels of
`sremkit.kernels`, whose switch decides between the two.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import torch.nn.functional as F
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from sremkit import kernels
from sremkit.data.batch import Batch
from sremkit.kernels.packing import Packing, aligned, pack
from sremkit.models.attention import affinities, attend, gram_matrix, unit_attention
from sremkit.models.chunks import length_chunks
from sremkit.models.compiling import CompiledParts
from sremkit.models.encoders import RegionEncoder, WordEncoder, check_positive, xavier_linear
from sremkit.models.global_attention import RegionAttention, WordAttention
from sremkit.models.masking import known_widths
from sremkit.models.matcher import Encoded, Matcher
from sremkit.models.similarity import full_precision, unit, without_autocast
from sremkit.models.tiled_projection import can_tile, plain_nodes, tiled_nodes


class Nodes(NamedTuple):
    """The nodes of all images with some texts of like length."""

    values: Tensor  # (n, k, 1 + w, s)
    mask: Tensor  # (k, 1 + w) bool
    columns: Tensor  # (k,) int64: which texts these are


class PackedNodes(NamedTuple):
    """The nodes of all images with all texts, without padding."""

    values: Tensor  # (n, m + W + ..., s): the global nodes of the m texts, then the W words of all texts
    packing: Packing


class NodeMatcher(CompiledParts, Matcher):
    """What SGR and SAF share: encoders, global vectors, similarity nodes and the last linear layer.

    In training, differences of words and what they attend to are computed again when gradients need them:
    they are as wide as the embeddings, for every word of every pair, and would take gigabytes to keep.
    """

    recordable = True
    PARTS: tuple[str, ...] = ("encode_regions", "attend_words", "score_vectors")

    def __init__(
        self,
        *,
        vocab_size: int,
        image_dim: int,
        embed_size: int,
        word_dim: int,
        sim_dim: int,
        num_regions: int,
        attention_scale: float,
        dropout: float,
    ) -> None:
        super().__init__()
        check_positive(vocab_size=vocab_size, image_dim=image_dim, embed_size=embed_size)
        check_positive(word_dim=word_dim, sim_dim=sim_dim, num_regions=num_regions)
        self.attention_scale = attention_scale
        self.recompute = True
        self.regions = RegionEncoder(image_dim, embed_size)
        self.words = WordEncoder(vocab_size, word_dim, embed_size, dropout=dropout)
        self.region_attention = RegionAttention(embed_size, num_regions, dropout=dropout)
        self.word_attention = WordAttention(embed_size, dropout=dropout)
        self.local_similarity = xavier_linear(embed_size, sim_dim)
        self.global_similarity = xavier_linear(embed_size, sim_dim)
        self.score = xavier_linear(sim_dim, 1)

    def encode_images(self, batch: Batch) -> Encoded:
        return Encoded(*self.part("encode_regions")(batch))

    def encode_regions(self, batch: Batch) -> tuple[Tensor, Tensor, Tensor]:
        """Unit regions (b, r, d), their mask (b, r) and the global vector (b, d)."""
        regions, mask = self.regions(batch).parts()
        return regions, mask, self.region_attention(regions, mask)

    def encode_texts(self, batch: Batch) -> Encoded:
        states, mask = self.words.states(batch)
        words, pooled = self.part("attend_words")(states, mask)
        return Encoded(words, mask, pooled, most_parts=batch.most_words)

    def attend_words(self, states: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
        """Unit words (b, w, d) and the global vector (b, d), from the recurrent network's states."""
        words = self.words.finished(states, mask)
        return words, self.word_attention(words, mask)

    def kernels_hold(self, batch: Batch) -> bool:
        widths = known_widths(batch)
        return widths is not None and self._fit(num_regions=widths[0], longest=widths[1])

    def _fit(self, *, num_regions: int, longest: int) -> bool:
        dtype, sim_dim = kernels.compute_dtype(self.score.weight), self.score.in_features
        return kernels.fits(dtype, num_regions=num_regions, num_nodes=1 + longest, sim_dim=sim_dim)

    def floats_per_pair(self, images: Encoded, texts: Encoded) -> int:
        d, s = images.whole().shape[1], self.score.in_features
        nodes = 1 + texts.parts()[1].shape[1]
        if kernels.uses_triton(self.score.weight):
            return nodes * (2 * images.parts()[1].shape[1] + 4 * s)
        return nodes * (2 * d + 6 * s)

    @property
    def similarity_width(self) -> int:
        return self.score.in_features

    def compare(self, images: Encoded, texts: Encoded) -> Tensor:
        return self.part("score_vectors")(self.similarity_vectors(images, texts))

    def score_vectors(self, vectors: Tensor) -> Tensor:
        """Logits (n, m) of similarity vectors (n, m, s)."""
        with without_autocast(vectors):
            return self.score(full_precision(vectors)).squeeze(-1)

    def nodes(self, images: Encoded, texts: Encoded) -> Iterator[Nodes]:
        """The nodes of all images with all texts, a chunk of texts at a time."""
        images = images.trimmed()
        gram = gram_matrix(images.parts()[0])
        d, s = images.whole().shape[1], self.score.in_features
        if self.recompute and can_tile(images.whole(), self.score.weight):
            # The wide differences have tiles of their own; a chunk holds the nodes and their gradient.
            chunks = length_chunks(texts, floats_per_word=len(images) * 2 * s, least_filled=0.9)
        else:
            chunks = length_chunks(texts, floats_per_word=len(images) * (d + 4 * s))
        for chunk in chunks:
            difference = images.whole().unsqueeze(1) - chunk.texts.whole()  # (n, k, d)
            whole = unit(self.global_similarity(difference.square()))  # (n, k, s)
            _, word_mask = chunk.texts.parts()
            yield Nodes(
                self._with_words(whole, images, gram, chunk.texts),
                F.pad(word_mask, (1, 0), value=True),
                chunk.columns,
            )

    def packed_nodes(self, images: Encoded, texts: Encoded) -> PackedNodes | None:
        """The nodes by kernels, or None where the kernels are switched off or do not hold such sizes."""
        if not kernels.uses_triton(images.whole()):
            return None
        (regions, region_mask), (words, word_mask) = images.parts(), texts.parts()
        packing = pack(word_mask, most=texts.most_parts)
        if not self._fit(num_regions=regions.shape[1], longest=packing.longest):
            return None
        from sremkit.kernels.node_projection import Projected, node_projection  # imports Triton
        from sremkit.kernels.region_attention import region_attention

        dtype = kernels.compute_dtype(regions)
        regions = regions.to(dtype)  # once for all who read it
        gram = gram_matrix(regions)
        words = aligned(words.flatten(0, 1).index_select(0, packing.places))  # (W, d), and some more rows
        words = words.to(dtype)
        affinity = (regions.flatten(0, 1) @ words.T).unflatten(0, regions.shape[:2])  # (n, r, W)
        attention = region_attention(
            affinity, gram, region_mask, packing, scale=self.attention_scale, dtype=dtype
        )
        # A text's global vector is a word that attends to one region, the image's global vector.
        whole = images.whole().unsqueeze(1)  # (n, 1, d)
        all_of_it = whole.new_ones(len(whole), 1, len(texts))
        of_whole, of_words = self.global_similarity, self.local_similarity
        return PackedNodes(
            node_projection(
                Projected(all_of_it, whole, texts.whole(), of_whole.weight, of_whole.bias),
                Projected(attention, regions, words, of_words.weight, of_words.bias),
                dtype=dtype,
            ),
            packing,
        )

    def _with_words(self, whole: Tensor, images: Encoded, gram: Tensor, texts: Encoded) -> Tensor:
        """Nodes (n, k, 1 + w, s) from the global ones (n, k, s)."""
        (regions, region_mask), (words, word_mask) = images.parts(), texts.parts()
        affinity = affinities(words.flatten(0, 1), regions).unflatten(2, word_mask.shape)  # (n, r, k, w)
        attention = attend(affinity, word_mask, region_mask, scale=self.attention_scale)
        with without_autocast(words):
            attention = unit_attention(attention, gram).flatten(2)  # (n, r, k·w)
        layer = self.local_similarity
        inputs = (attention, regions, words, layer.weight, layer.bias, whole)
        if not self.recompute:
            return plain_nodes(*inputs)
        if can_tile(*inputs):
            return tiled_nodes(*inputs)
        return checkpoint(plain_nodes, *inputs, use_reentrant=False, preserve_rng_state=False)

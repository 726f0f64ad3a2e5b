"""What SGR and SAF share: encoders, global vectors, similarity nodes and the last linear layer.

The nodes of a pair are a similarity vector for each word, of it and what it attends to, and one for the whole text
and image (`sremkit.ops.node_projection`).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any, ClassVar

from torch import Tensor

from sremkit import ops
from sremkit.data.batch import Batch
from sremkit.models.encoding import length_chunks
from sremkit.models.layers.encoders import RegionEncoder, WordEncoder, check_positive, xavier_linear
from sremkit.models.layers.masking import known_widths
from sremkit.models.layers.pooling import RegionAttention, WordAttention
from sremkit.models.matcher import Encoded, Matcher
from sremkit.models.regional_compile import CompiledParts
from sremkit.ops.cross_attention import Queries, affinities, gram_matrix, packed_queries, padded_queries, unit_attention
from sremkit.ops.functional import full_precision, without_autocast
from sremkit.ops.node_projection import Nodes, can_tile, node_projection


class NodeMatcher(CompiledParts, Matcher):
    """Subclasses give `similarity_vectors`, (n, m, s) from the nodes; their logit is a linear function of that.

    Args:
        sim_dim: width of a similarity vector.
        num_regions: the maximum number of regions of an image; the region's index is a normalisation channel.
        attention_scale: inverse temperature of the words' attention to regions.
        dropout: on word embeddings and in the global attention.
    """

    supports_cuda_graphs: ClassVar[bool] = True
    compares_in_autocast: ClassVar[bool] = True
    small_options: ClassVar[dict[str, Any]] = {
        "embed_size": 8,
        "word_dim": 6,
        "sim_dim": 5,
        "num_regions": 7,
        "dropout": 0.0,
    }
    PARTS: tuple[str, ...] = ("encode_regions", "attend_words", "score_vectors")

    def __init__(
        self,
        *,
        vocab_size: int,
        image_dim: int = 2048,
        embed_size: int = 1024,
        word_dim: int = 300,
        sim_dim: int = 256,
        num_regions: int = 36,
        attention_scale: float = 9.0,
        dropout: float = 0.4,
    ) -> None:
        super().__init__()
        check_positive(vocab_size=vocab_size, image_dim=image_dim, embed_size=embed_size)
        check_positive(word_dim=word_dim, sim_dim=sim_dim, num_regions=num_regions)
        self.attention_scale = attention_scale
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
        return Encoded(words, mask, pooled, max_total_parts=batch.max_total_words)

    def attend_words(self, states: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
        """Unit words (b, w, d) and the global vector (b, d), from the GRU's states."""
        words = self.words.finish(states, mask)
        return words, self.word_attention(words, mask)

    def compare(self, images: Encoded, texts: Encoded) -> Tensor:
        return self.part("score_vectors")(self.similarity_vectors(images, texts))

    def score_vectors(self, vectors: Tensor) -> Tensor:
        """Logits (n, m) of similarity vectors (n, m, s)."""
        with without_autocast(vectors):
            return self.score(full_precision(vectors)).squeeze(-1)

    @property
    def similarity_width(self) -> int:
        return self.score.in_features

    def node_chunks(self, images: Encoded, texts: Encoded) -> Iterator[tuple[Nodes, Tensor | None]]:
        """The nodes of all images with the texts of a chunk, and the columns (k,) of these texts.

        With kernels the nodes of all texts are packed, in one chunk without columns.
        """
        packed = self._packed_words(images, texts)
        if packed is not None:
            images = replace(images, local=images.parts()[0].to(packed.rows.dtype))  # converted once for all its uses
            yield self._nodes(images, gram_matrix(images.parts()[0]), texts, packed), None
            return
        images = images.trimmed()
        gram = gram_matrix(images.parts()[0])
        d, s = images.whole().shape[1], self.similarity_width
        if can_tile(images.whole(), self.score.weight):
            # The wide differences have tiles of their own; a chunk holds the nodes and their gradient.
            chunks = length_chunks(texts, floats_per_word=len(images) * 2 * s, min_fill=0.9)
        else:
            chunks = length_chunks(texts, floats_per_word=len(images) * (d + 4 * s))
        for some_texts, columns in chunks:
            yield self._nodes(images, gram, some_texts, padded_queries(*some_texts.parts())), columns

    def _packed_words(self, images: Encoded, texts: Encoded) -> Queries | None:
        """The words for the kernels, or None where these are disabled or do not support such sizes."""
        if not ops.uses_triton(images.whole()):
            return None
        words = packed_queries(*texts.parts(), max_total=texts.max_total_parts)
        assert words.packing is not None
        if not self._supported(images.parts()[1].shape[1], words.packing.max_seqlen):
            return None
        return words._replace(rows=words.rows.to(ops.compute_dtype(words.rows)))

    def _nodes(self, images: Encoded, gram: Tensor, texts: Encoded, words: Queries) -> Nodes:
        regions, region_mask = images.parts()
        affinity, dtype = affinities(words.rows, regions), words.rows.dtype
        attention = unit_attention(affinity, gram, region_mask, words, scale=self.attention_scale, dtype=dtype)
        pooled = images.whole(), texts.whole()
        return node_projection(pooled, attention, regions, words, self.global_similarity, self.local_similarity)

    def kernels_support(self, batch: Batch) -> bool:
        widths = known_widths(batch)
        return widths is not None and self._supported(*widths)

    def _supported(self, num_regions: int, num_words: int) -> bool:
        return ops.kernels_support(
            ops.compute_dtype(self.score.weight),
            num_regions=num_regions,
            num_nodes=1 + num_words,
            sim_dim=self.similarity_width,
        )

    def floats_per_pair(self, images: Encoded, texts: Encoded) -> int:
        d, s = images.whole().shape[1], self.similarity_width
        nodes = 1 + texts.parts()[1].shape[1]
        if ops.uses_triton(self.score.weight):
            return nodes * (2 * images.parts()[1].shape[1] + 4 * s)
        return nodes * (2 * d + 6 * s)

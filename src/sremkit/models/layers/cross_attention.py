"""What SCAN and IMRAM share: encoders, and similarities by cross attention in either direction.

Words attend to regions (t2i), or regions attend to words (i2t). With kernels all queries are packed, and the
contexts are taken some items at a time; without, texts are taken in chunks of similar length.
"""

from __future__ import annotations

from typing import Any, ClassVar, Literal, NamedTuple

import torch
from torch import Tensor

from sremkit import ops
from sremkit.data.batch import Batch
from sremkit.models.encoding import in_text_order, item_slices, length_chunks
from sremkit.models.layers.encoders import RegionEncoder, WordEncoder, check_positive
from sremkit.models.layers.masking import known_widths
from sremkit.models.matcher import Encoded, Matcher
from sremkit.ops.cross_attention import Queries, packed_queries, padded_queries
from sremkit.ops.functional import full_precision

Direction = Literal["t2i", "i2t"]


class Contexts(NamedTuple):
    """The items that are attended to."""

    local: Tensor  # (c, k, d)
    mask: Tensor  # (c, k)
    projected: Tensor | None = None  # (c, k, ...), for a backbone that projects them once for all queries

    def some(self, items: slice) -> Contexts:
        return Contexts(*(None if t is None else t[items] for t in self))  # type: ignore[arg-type]


class CrossAttentionMatcher(Matcher):
    """Subclasses give `score`, and may override `prepare_queries` and `project_contexts`."""

    supports_cuda_graphs: ClassVar[bool] = True
    small_options: ClassVar[dict[str, Any]] = {"embed_size": 8, "word_dim": 6}

    def __init__(self, *, vocab_size: int, image_dim: int = 2048, embed_size: int = 1024, word_dim: int = 300) -> None:
        super().__init__()
        check_positive(vocab_size=vocab_size, image_dim=image_dim, embed_size=embed_size, word_dim=word_dim)
        self.regions = RegionEncoder(image_dim, embed_size)
        self.words = WordEncoder(vocab_size, word_dim, embed_size)

    def encode_images(self, batch: Batch) -> Encoded:
        return self.regions(batch)

    def encode_texts(self, batch: Batch) -> Encoded:
        return self.words(batch)

    def kernels_support(self, batch: Batch) -> bool:
        widths = known_widths(batch)
        return widths is not None and _supported(*widths) and _supported(*widths[::-1])

    def similarity(self, direction: Direction, images: Encoded, texts: Encoded, weights: Any = None) -> Tensor:
        """Similarities (n, m) by attention in one direction; `prepare_queries` and `project_contexts` get `weights`."""
        t2i = direction == "t2i"
        query_items, context_items = (texts, images) if t2i else (images, texts)
        (local, mask), num_contexts = query_items.parts(), context_items.parts()[1].shape[1]
        if ops.uses_triton(full_precision(local)) and _supported(mask.shape[1], num_contexts):
            rows = packed_queries(full_precision(local), mask, max_total=query_items.max_total_parts)
            queries = self.prepare_queries(rows, weights)
            contexts = self.prepare_contexts(context_items, weights)
            some = item_slices(contexts.local, floats_per_item=self.floats_per_context(rows, num_contexts))
            scores = torch.cat([self.score(direction, queries, contexts.some(items)) for items in some])
            return scores if t2i else scores.T
        images = images.trimmed()
        fixed = self._prepare(images, weights, are_queries=not t2i)  # once for all texts
        parts = []
        for some_texts, columns in length_chunks(texts, floats_per_word=self.floats_per_word(direction, images)):
            varying = self._prepare(some_texts, weights, are_queries=t2i)
            scores = self.score(direction, varying, fixed) if t2i else self.score(direction, fixed, varying).T
            parts.append((scores, columns))
        return in_text_order(*zip(*parts, strict=True))

    def _prepare(self, items: Encoded, weights: Any, *, are_queries: bool) -> Any:
        if not are_queries:
            return self.prepare_contexts(items, weights)
        local, mask = items.parts()
        return self.prepare_queries(padded_queries(full_precision(local), mask), weights)

    def prepare_queries(self, queries: Queries, weights: Any) -> Any:
        """What `score` needs of the queries."""
        return queries

    def prepare_contexts(self, items: Encoded, weights: Any) -> Contexts:
        local, mask = items.parts()
        local = full_precision(local)
        return Contexts(local, mask, self.project_contexts(local, weights))

    def project_contexts(self, local: Tensor, weights: Any) -> Tensor | None:
        """A projection of the contexts (c, k, d) that is the same for all queries."""
        return None

    def score(self, direction: Direction, queries: Any, contexts: Contexts) -> Tensor:
        """Similarities (c, q) of the items that are attended to with the items of the queries."""
        raise NotImplementedError

    def floats_per_word(self, direction: Direction, images: Encoded) -> int:
        """About how many floats `score` holds for one word position of all images."""
        raise NotImplementedError

    def floats_per_context(self, queries: Queries, num_contexts: int) -> int:
        """About how many floats `score` holds for packed queries with one item of so many contexts."""
        raise NotImplementedError


def _supported(num_queries: int, num_contexts: int) -> bool:
    """Whether the kernel holds so many queries and contexts of an item."""
    return ops.kernels_support(torch.float32, num_regions=num_contexts, num_nodes=num_queries)

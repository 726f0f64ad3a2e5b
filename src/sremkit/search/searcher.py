"""Search: the index finds candidates, the model scores them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from sremkit.data.pairs import Pairs
from sremkit.errors import DataError
from sremkit.models.matcher import Encoded
from sremkit.search.models import SearchModel
from sremkit.search.vector_index import VectorIndex

if TYPE_CHECKING:
    from PIL.Image import Image

CANDIDATES = 100  # that a model without vectors of its own scores for each query
CANDIDATES_OF_VECTORS = 20  # that a model with vectors scores again, at least
MAX_CAPTIONS = 5  # of a found image


@dataclass(frozen=True)
class Hit:
    """An image that fits a text, or a caption that fits an image."""

    rank: int  # from 1
    score: float  # the model's logit
    image: int  # number of the image
    image_id: str
    texts: tuple[str, ...]  # the caption found; of an image found, its captions in the collection
    pair_id: str | None = None  # of the caption found

    def as_dict(self) -> dict[str, Any]:
        found = {} if self.pair_id is None else {"pair_id": self.pair_id}
        return {
            "rank": self.rank,
            "score": round(self.score, 4),
            "image": self.image,
            "image_id": self.image_id,
            "texts": list(self.texts),
            **found,
        }


class Searcher:
    """Finds images for texts and captions for images.

    Args:
        candidates: that the model scores for each query, if it needs re-ranking; by default `CANDIDATES`.
    """

    def __init__(
        self,
        model: SearchModel,
        pairs: Pairs,
        images: VectorIndex,
        texts: VectorIndex,
        *,
        candidates: int | None = None,
        facts: dict[str, Any] | None = None,
    ) -> None:
        self.model = model
        self.pairs = pairs
        self.images = images
        self.texts = texts
        self.candidates = candidates or (CANDIDATES if model.needs_reranking else CANDIDATES_OF_VECTORS)
        self.facts = facts or {}  # of index.json

    def prepare_for_many_queries(self) -> None:
        """Spend about a second on making every search faster; the results are the same."""
        self.images, self.texts = self.images.with_bounds(), self.texts.with_bounds()

    def search_texts(self, texts: Sequence[str], k: int = 10) -> list[list[Hit]]:
        """For each text the `k` images that fit it best."""
        return self.find_images(self.model.encode_texts(texts), [k] * len(texts))

    def search_images(self, images: Sequence[Image], k: int = 10) -> list[list[Hit]]:
        """For each image the `k` captions that fit it best."""
        return self.find_texts(self.model.encode_images(images), [k] * len(images))

    def find_images(self, texts: Encoded, counts: Sequence[int]) -> list[list[Hit]]:
        """For each encoded text q the `counts[q]` images that fit it best."""
        found = self._candidates(self.images, self.model.text_vectors(texts).numpy(), max(counts))
        return [
            self._hits(numbers, self._score_images(numbers, texts[q : q + 1]), k, captions=False)
            for q, (numbers, k) in enumerate(zip(found, counts, strict=True))
        ]

    def find_texts(self, images: Encoded, counts: Sequence[int]) -> list[list[Hit]]:
        """For each encoded image q the `counts[q]` captions that fit it best."""
        found = self._candidates(self.texts, self.model.image_vectors(images).numpy(), max(counts))
        return [
            self._hits(numbers, self._score_texts(numbers, images[q : q + 1]), k, captions=True)
            for q, (numbers, k) in enumerate(zip(found, counts, strict=True))
        ]

    def score(self, texts: Sequence[str], images: Sequence[Image | int]) -> list[float]:
        """The score of text k with image k, which is an image or the number of one of the collection."""
        encoded_texts = self.model.encode_texts(texts)
        new = [k for k, image in enumerate(images) if not isinstance(image, int)]
        encoded_new = self.model.encode_images([images[k] for k in new]) if new else None  # type: ignore[misc]
        place = {k: number for number, k in enumerate(new)}
        scores = []
        for k, image in enumerate(images):
            if isinstance(image, int):
                encoded_image = self._encoded_images(np.array([image]))
            else:
                assert encoded_new is not None
                encoded_image = encoded_new[place[k] : place[k] + 1]
            scores.append(float(self.model.compare(encoded_image, encoded_texts[k : k + 1])))
        return scores

    def image_number(self, image_id: str) -> int:
        """The number of an image of the collection."""
        if image_id not in self._number_of_image:
            raise DataError(f"there is no image '{image_id[:200]}' in this collection; its ids look like "
                            f"'{self.pairs.image_ids[0]}'")  # fmt: skip
        return self._number_of_image[image_id]

    def _candidates(self, index: VectorIndex, vectors: np.ndarray, k: int) -> list[np.ndarray]:
        numbers, _ = index.search(vectors, max(k, self.candidates))
        return [row[row >= 0] for row in numbers]

    def _score_images(self, numbers: np.ndarray, text: Encoded) -> np.ndarray:
        return self.model.compare(self._encoded_images(numbers), text)[:, 0].numpy()

    def _score_texts(self, numbers: np.ndarray, image: Encoded) -> np.ndarray:
        if self.model.needs_reranking:
            texts = self.model.collection_texts(numbers)
        else:
            texts = Encoded(pooled=torch.from_numpy(self.texts.vectors[numbers]))
        return self.model.compare(image, texts)[0].numpy()

    def _encoded_images(self, numbers: np.ndarray) -> Encoded:
        if self.model.needs_reranking:
            return self.model.collection_images(numbers)
        return Encoded(pooled=torch.from_numpy(self.images.vectors[numbers]))

    def _hits(self, numbers: np.ndarray, scores: np.ndarray, k: int, *, captions: bool) -> list[Hit]:
        order = np.argsort(-scores, kind="stable")[:k]
        hits = []
        for rank, place in enumerate(order.tolist(), start=1):
            number, score = int(numbers[place]), float(scores[place])
            image = int(self.pairs.image_of_text[number]) if captions else number
            texts = [self.pairs.texts[number]] if captions else self._captions(image)
            pair_id = self.pairs.pair_ids[number] if captions else None
            hits.append(Hit(rank, score, image, self.pairs.image_ids[image], tuple(texts), pair_id))
        return hits

    def _captions(self, image: int) -> list[str]:
        order, starts = self._texts_by_image
        return [self.pairs.texts[k] for k in order[starts[image] : starts[image + 1]][:MAX_CAPTIONS]]

    @cached_property
    def _texts_by_image(self) -> tuple[np.ndarray, np.ndarray]:
        """Texts in the order of their images, and where those of each image start."""
        order = np.argsort(self.pairs.image_of_text, kind="stable")
        counts = np.bincount(self.pairs.image_of_text, minlength=self.pairs.num_images)
        return order, np.concatenate([[0], np.cumsum(counts)])

    @cached_property
    def _number_of_image(self) -> dict[str, int]:
        return {image_id: number for number, image_id in enumerate(self.pairs.image_ids)}

"""What search needs of a trained model, and the model of a run.

A model with one vector for each item (dual encoder, VSE∞, VSRN) is indexed by these vectors. A cross-attention model
compares words with regions and has none. Its candidates are found by ridge CCA between the mean of the regions and the
mean of the words, fitted on the collection's own pairs; the model scores the candidates. How many of the model's own
best are among the candidates is measured when the index is built.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
import torch
from safetensors.torch import save
from torch import Tensor

from sremkit.audit.scoring.ridge_cca import RidgeCCA, fit_ridge_cca
from sremkit.data.batches import Batches
from sremkit.data.generated.scenes.scene import DRAWN_AT, patch_features
from sremkit.data.pairs import Pairs
from sremkit.data.pixels import with_pixels
from sremkit.data.subwords import AnyTokenizer
from sremkit.errors import DataError
from sremkit.experiment import load_best
from sremkit.features.inference import encode_images, encode_texts
from sremkit.io import digest
from sremkit.models.matcher import ENCODE_BATCH, Encoded, Matcher
from sremkit.ops.functional import l2_normalize
from sremkit.training.checkpoint import read_checkpoint, write_checkpoint
from sremkit.training.run_folder import RunFolder

if TYPE_CHECKING:
    from PIL.Image import Image

RIDGE = 0.1  # of the projection


class SearchModel(Protocol):
    """Encodes queries and a collection, and scores images with texts."""

    name: str
    key: str  # changes with the weights
    needs_reranking: bool  # the index vectors only find candidates; their order is not the model's

    def encode_texts(self, texts: Sequence[str]) -> Encoded:
        """Encode new texts."""

    def encode_images(self, images: Sequence[Image]) -> Encoded:
        """Encode new images."""

    def collection_texts(self, rows: np.ndarray) -> Encoded:
        """Encode these texts of the collection."""

    def collection_images(self, rows: np.ndarray) -> Encoded:
        """Encode these images of the collection."""

    def text_vectors(self, texts: Encoded) -> Tensor:
        """Vectors (n, d) of the index."""

    def image_vectors(self, images: Encoded) -> Tensor:
        """Vectors (n, d) of the index; their product with text vectors is large where the score is."""

    def compare(self, images: Encoded, texts: Encoded) -> Tensor:
        """Scores (n, m) of every image with every text."""

    def fit(self, pairs: Pairs) -> None:
        """Fit what the index vectors need, if anything."""

    def save(self, folder: Path) -> None:
        """Write what `fit` fitted."""

    def load(self, folder: Path) -> None:
        """Read what `save` wrote."""


class RunModel:
    """The best model of a run, with the collection to search."""

    def __init__(self, matcher: Matcher, vocabulary: AnyTokenizer | None, pairs: Pairs, *, on_scenes: bool) -> None:
        self.matcher = matcher.eval().requires_grad_(False)
        self.vocabulary = vocabulary
        self.name = matcher.name
        self.key = digest(save({name: t.contiguous() for name, t in matcher.state_dict().items()}))
        self._batches = Batches(pairs, batch_size=ENCODE_BATCH, vocabulary=vocabulary, shuffle=False)
        self._on_scenes = on_scenes
        self._projection: RidgeCCA | None = None
        self.needs_reranking = self.collection_images(np.array([0])).local is not None

    @classmethod
    def open(cls, folder: RunFolder, pairs: Pairs) -> RunModel:
        """Load the best model of a run, for a collection with features that the model can read."""
        matcher, vocabulary = load_best(folder)
        if matcher.image_transform is not None:
            pairs = with_pixels(pairs, matcher.image_transform)
        else:
            _check_features(matcher, pairs)
        return cls(matcher, vocabulary, pairs, on_scenes=folder.recipe().data.source == "scenes")

    def encode_texts(self, texts: Sequence[str]) -> Encoded:
        return encode_texts(self.matcher, self.vocabulary, texts)

    def encode_images(self, images: Sequence[Image]) -> Encoded:
        reads_features = self._on_scenes and self.matcher.image_transform is None
        return encode_images(self.matcher, images, extract=_scene_features if reads_features else None)

    @torch.no_grad()
    def collection_texts(self, rows: np.ndarray) -> Encoded:
        return self.matcher.encode_texts(self._batches.take_texts(rows))

    @torch.no_grad()
    def collection_images(self, rows: np.ndarray) -> Encoded:
        return self.matcher.encode_images(self._batches.take_images(rows))

    def text_vectors(self, texts: Encoded) -> Tensor:
        if not self.needs_reranking:
            return texts.whole()
        means = mean_of_parts(texts)
        return means if self._projection is None else self._projection.encode_texts(means)

    def image_vectors(self, images: Encoded) -> Tensor:
        if not self.needs_reranking:
            return images.whole()
        means = mean_of_parts(images)
        return means if self._projection is None else self._projection.encode_images(means)

    @torch.no_grad()
    def compare(self, images: Encoded, texts: Encoded) -> Tensor:
        return self.matcher.compare(images, texts)

    @torch.no_grad()
    def fit(self, pairs: Pairs) -> None:
        """Fit the projection of a cross-attention model to the pairs of the collection."""
        if not self.needs_reranking:
            return
        self._projection = None
        images = [self.image_vectors(self.collection_images(rows)) for rows in batches_of(pairs.num_images)]
        texts = [self.text_vectors(self.collection_texts(rows)) for rows in batches_of(len(pairs))]
        # Mismatched pairs shrink the correlations, but turn no direction, so all pairs have the same weight.
        weights, image_of_text = torch.ones(len(pairs)), torch.from_numpy(pairs.image_of_text)
        self._projection = fit_ridge_cca(torch.cat(images), torch.cat(texts), image_of_text, weights, ridge=RIDGE)

    def save(self, folder: Path) -> None:
        if self._projection is not None:
            write_checkpoint(folder, vars(self._projection), {})

    def load(self, folder: Path) -> None:
        if self.needs_reranking:
            self._projection = RidgeCCA(**read_checkpoint(folder)[0])


def batches_of(count: int) -> list[np.ndarray]:
    """The numbers from 0 to `count`, in batches."""
    return [np.arange(k, min(k + ENCODE_BATCH, count)) for k in range(0, count, ENCODE_BATCH)]


def mean_of_parts(encoded: Encoded) -> Tensor:
    """The mean of the regions or words of each item, at unit length: (n, d)."""
    parts, mask = encoded.parts()
    present = mask.unsqueeze(-1).to(parts.dtype)
    return l2_normalize((parts * present).sum(dim=1) / present.sum(dim=1).clamp_min(1))


def _scene_features(image: Image) -> np.ndarray:
    return patch_features(image.convert("RGB").resize((DRAWN_AT, DRAWN_AT)))


def _check_features(matcher: Matcher, pairs: Pairs) -> None:
    """Refuse a collection whose features the model was not trained on."""
    wanted: dict[str, Any] = {"image": (pairs.image_features, "image_dim")}
    if matcher.text_input == "sentences":
        wanted["text"] = (pairs.text_features, "text_dim")
    options = matcher.options.get("member", {}).get("options", matcher.options)
    for noun, (source, option) in wanted.items():
        if source is None:
            raise DataError(
                f"{pairs.name} has no {noun} features, which the model reads; extract them with `srem features`, "
                "and give that folder with --source"
            )
        if source.dim != options.get(option, source.dim):
            raise DataError(
                f"the {noun} features of {pairs.name} have dimension {source.dim}, and the model was trained on "
                f"{options[option]}; give features of the same encoder with --source"
            )

"""Inference on new texts and images with a trained model: strings and images in, `Encoded` out."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import torch

from sremkit.data.batch import Batch
from sremkit.data.batches import Tokenizer, WordIds
from sremkit.data.pairs import MISSING
from sremkit.errors import DataError
from sremkit.features.encoders.efficientnet import EfficientNetEncoder
from sremkit.features.encoders.minilm import MiniLMEncoder
from sremkit.models.matcher import Encoded, Matcher, evaluating

if TYPE_CHECKING:
    from PIL.Image import Image

BATCH_SIZE = 128


@torch.no_grad()
def encode_texts(
    matcher: Matcher, vocabulary: Tokenizer | None, texts: Sequence[str], *, batch_size: int = BATCH_SIZE
) -> Encoded:
    """Encode texts.

    Args:
        vocabulary: of the model's training; models on sentence vectors need none.
    """
    if len(texts) == 0:
        raise DataError("there are no texts to encode; give at least one")
    for number, text in enumerate(texts):
        if not text.strip():
            raise DataError(f"text {number} is empty; remove empty texts")
    if matcher.text_input == "sentences":
        _check_dim(matcher, "text_dim", MiniLMEncoder.dim, MiniLMEncoder.description)
        batches = [
            _batch(len(texts[part]), sentences=torch.from_numpy(_text_encoder().encode(texts[part])))
            for part in _slices(len(texts), batch_size)
        ]
    else:
        if vocabulary is None:
            raise DataError(f"'{matcher.name}' reads words, so it needs the vocabulary it was trained with")
        words = WordIds(texts, vocabulary)
        padded = [words.padded(np.arange(p.start, p.stop)) for p in _slices(len(texts), batch_size)]
        batches = [_batch(len(ids), words=ids, word_mask=mask) for ids, mask in padded]
    device = next(matcher.parameters()).device
    with evaluating(matcher):
        return Encoded.concatenate([matcher.encode_texts(batch.to(device)) for batch in batches])


@torch.no_grad()
def encode_images(
    matcher: Matcher,
    images: Sequence[Image],
    *,
    features: Literal["pooled", "grid"] | None = None,
    extract: Callable[[Image], np.ndarray] | None = None,
    batch_size: int = BATCH_SIZE,
) -> Encoded:
    """Encode images with the model: its own pixels, or features of EfficientNet-lite2.

    Args:
        features: what the model was trained on; by default the grid for models on regions, else the pooled vector.
        extract: computes the features of an image, (d,) or (r, d), in place of EfficientNet-lite2.
    """
    if len(images) == 0:
        raise DataError("there are no images to encode; give at least one")
    if matcher.image_transform is not None:
        transform = matcher.image_transform

        def extract(image: Image) -> np.ndarray:
            return transform(image).numpy()

    elif extract is None:
        _check_dim(matcher, "image_dim", EfficientNetEncoder.dim, EfficientNetEncoder.description)
        kind = features or ("pooled" if matcher.image_input == "vectors" else "grid")
        encoder = _image_encoder()

        def extract(image: Image) -> np.ndarray:
            extracted: np.ndarray = getattr(encoder.encode(image), kind)
            return extracted

    device = next(matcher.parameters()).device
    encoded = []
    with evaluating(matcher):
        for part in _slices(len(images), batch_size):
            rows = np.stack([extract(image) for image in images[part]])
            values = torch.from_numpy(rows)  # (k, d), (k, r, d) or (k, 3, h, w)
            mask = torch.ones_like(values[..., 0], dtype=torch.bool) if values.ndim == 3 else None
            batch = _batch(len(rows), images=values, region_mask=mask)
            encoded.append(matcher.encode_images(batch.to(device)))
    return Encoded.concatenate(encoded)


@cache
def _image_encoder() -> EfficientNetEncoder:
    return EfficientNetEncoder(threads=torch.get_num_threads())


@cache
def _text_encoder() -> MiniLMEncoder:
    return MiniLMEncoder(packed=True)


def _batch(count: int, **parts: Any) -> Batch:
    none = torch.full((count,), MISSING)  # new items belong to no collection
    return Batch(pair_id=none, image_id=none, **parts)


def _slices(count: int, batch_size: int) -> list[slice]:
    return [slice(k, min(k + batch_size, count)) for k in range(0, count, batch_size)]


def _check_dim(matcher: Matcher, option: str, dim: int, encoder: str) -> None:
    expected = matcher.options.get(option, dim)
    if expected != dim:
        raise DataError(
            f"this model was trained on features of dimension {expected}, but {encoder}, has {dim}; "
            "use a model trained on what `srem features` extracts"
        )

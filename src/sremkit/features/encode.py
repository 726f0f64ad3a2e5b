"""New texts and new pictures through a trained model: strings and pictures in, `Encoded` out."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import torch

from sremkit.data.batch import Batch
from sremkit.data.batches import TextEncoder, WordNumbers
from sremkit.errors import DataError
from sremkit.features.pictures import PictureEncoder
from sremkit.features.sentences import SentenceEncoder
from sremkit.models.matcher import Encoded, Matcher, evaluating

if TYPE_CHECKING:
    from PIL.Image import Image

AT_ONCE = 128


@torch.no_grad()
def encode_texts(
    matcher: Matcher, vocabulary: TextEncoder | None, texts: Sequence[str], *, batch_size: int = AT_ONCE
) -> Encoded:
    """Encode texts as they are written.

    Args:
        vocabulary: the one the model was trained with; a model on sentence vectors needs none.
    """
    _refuse_none(texts, "texts")
    for number, text in enumerate(texts):
        if not text.strip():
            raise DataError(f"text {number} is empty; leave empty texts out")
    if matcher.text_input == "sentences":
        _refuse_other_width(matcher, "text_dim", SentenceEncoder.dim, SentenceEncoder.description)
        parts = [_sentence_batch(texts[part]) for part in _parts(len(texts), batch_size)]
    else:
        if vocabulary is None:
            raise DataError(f"'{matcher.name}' reads words, so it needs the vocabulary it was trained with")
        words = WordNumbers(texts, vocabulary)
        parts = [_word_batch(words, part) for part in _parts(len(texts), batch_size)]
    device = next(matcher.parameters()).device
    with evaluating(matcher):
        return Encoded.concatenate([matcher.encode_texts(part.to(device)) for part in parts])


@torch.no_grad()
def encode_pictures(
    matcher: Matcher,
    pictures: Sequence[Image],
    *,
    features: Literal["pooled", "grid"] | None = None,
    batch_size: int = AT_ONCE,
) -> Encoded:
    """Encode pictures through EfficientNet-lite2.

    Args:
        features: what the model was trained on; by default the grid for models that compare regions, and the
            pooled vector for the others.
    """
    _refuse_none(pictures, "pictures")
    if matcher.image_input == "pixels":
        raise DataError(
            f"'{matcher.name}' reads pixels as its own processor prepares them; give it those, not pictures"
        )
    _refuse_other_width(matcher, "image_dim", PictureEncoder.dim, PictureEncoder.description)
    kind = features or ("pooled" if matcher.image_input == "vectors" else "grid")
    device = next(matcher.parameters()).device
    encoder = _picture_encoder()
    parts = []
    with evaluating(matcher):
        for part in _parts(len(pictures), batch_size):
            rows = np.stack([getattr(encoder.encode(picture), kind) for picture in pictures[part]])
            parts.append(matcher.encode_images(_image_batch(rows).to(device)))
    return Encoded.concatenate(parts)


@cache
def _picture_encoder() -> PictureEncoder:
    return PictureEncoder(threads=torch.get_num_threads())


@cache
def _sentence_encoder() -> SentenceEncoder:
    return SentenceEncoder()


def _word_batch(words: WordNumbers, part: slice) -> Batch:
    numbers, mask = words.padded(np.arange(part.start, part.stop))
    return _batch(len(numbers), words=numbers, word_mask=mask)


def _sentence_batch(texts: Sequence[str]) -> Batch:
    return _batch(len(texts), sentences=torch.from_numpy(_sentence_encoder().encode(texts)))


def _image_batch(rows: np.ndarray) -> Batch:
    images = torch.from_numpy(rows)  # (k, d) or (k, r, d)
    mask = torch.ones(images.shape[:2], dtype=torch.bool) if images.ndim == 3 else None
    return _batch(len(rows), images=images, region_mask=mask)


def _batch(count: int, **parts: Any) -> Batch:
    nobody = torch.full((count,), -1)  # these items belong to no collection
    return Batch(pair_id=nobody, image_id=nobody, **parts)


def _parts(count: int, batch_size: int) -> list[slice]:
    return [slice(k, min(k + batch_size, count)) for k in range(0, count, batch_size)]


def _refuse_none(items: Sequence[object], what: str) -> None:
    if len(items) == 0:
        raise DataError(f"there are no {what} to encode; give at least one")


def _refuse_other_width(matcher: Matcher, option: str, width: int, encoder: str) -> None:
    trained_on = matcher.options.get(option, width)
    if trained_on != width:
        raise DataError(
            f"this model was trained on features {trained_on} wide, but {encoder}, gives {width}; "
            "use a model trained on what `srem features` extracts"
        )

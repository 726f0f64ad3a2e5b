"""Retrieval recall in both directions, from a matrix of scores.

    R@k = 100 · fraction of queries whose rank is below k, ranks counted from 0

For an image as query, the best-ranked of its texts counts; for a text, its image. A tie counts against the model: a
wrong candidate with the same score as the correct one ranks before it. So a model with constant scores has recall
0.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, TypeAlias

import numpy as np

from sremkit.errors import DataError

if TYPE_CHECKING:
    from torch import Tensor

Scores: TypeAlias = "np.ndarray | Tensor"
RECALLS = [f"{direction}/R@{k}" for direction in ("i2t", "t2i") for k in (1, 5, 10)]
CHUNK_ELEMENTS = 4 << 20  # scores compared per chunk: bounds the temporaries to about 40 MB


def retrieval_recall(
    scores: Scores, image_of_text: np.ndarray | Tensor, *, ks: Sequence[int] = (1, 5, 10)
) -> dict[str, float]:
    """Recalls in percent, their sum and the median ranks, with all images against all texts.

    This is the "1K" protocol of Flickr30K and the "5K" protocol of COCO.

    Args:
        scores: (n images, m texts), higher is a better match; numpy or torch, on any device.
        image_of_text: (m,) the image each text belongs to; any number of texts per image. An image without a text is a
            candidate, but no query.

    Returns:
        "i2t/R@1", "t2i/R@1" and so on for each k, "rsum" (the sum of all of them), "i2t/median_rank" and
        "t2i/median_rank" (the median rounded down, counted from 1).
    """
    _check_ks(ks)
    ranks_i2t, ranks_t2i = retrieval_ranks(scores, image_of_text)
    result: dict[str, float] = {}
    for direction, ranks in (("i2t", ranks_i2t), ("t2i", ranks_t2i)):
        for k in ks:
            result[f"{direction}/R@{k}"] = 100.0 * int(np.count_nonzero(ranks < k)) / len(ranks)
    result["rsum"] = recall_sum(result)
    for direction, ranks in (("i2t", ranks_i2t), ("t2i", ranks_t2i)):
        result[f"{direction}/median_rank"] = float(np.floor(np.median(ranks)) + 1)
    return result


def retrieval_recall_folds(
    scores: Scores, image_of_text: np.ndarray | Tensor, *, folds: int = 5, ks: Sequence[int] = (1, 5, 10)
) -> dict[str, float]:
    """As `retrieval_recall`, averaged over consecutive folds of images: the "1K" protocol of COCO.

    Each fold holds only the texts of its own images. "rsum" is the sum of the averaged recalls of both directions; much
    published code prints six times the mean of one direction instead.
    """
    scores, image_of_text = _check_inputs(scores, image_of_text)
    num_images = len(scores)
    if folds < 1 or num_images % folds:
        raise DataError(
            f"{num_images} images cannot be split into {folds} folds of equal size; "
            "choose a number of folds that divides the number of images"
        )
    for first_image, chunk in _row_chunks(scores):
        _check_no_nan(chunk, first_image)  # before folds are sliced, so that the message has the caller's indices
    fold_size = num_images // folds
    results = []
    for fold in range(folds):
        first_image = fold * fold_size
        texts = np.flatnonzero(image_of_text // fold_size == fold)
        if len(texts) == 0:
            raise DataError(
                f"images {first_image} to {first_image + fold_size - 1} (fold {fold}) have no texts; "
                "choose fewer folds, or check image_of_text"
            )
        fold_scores = scores[first_image : first_image + fold_size][:, texts]
        results.append(retrieval_recall(fold_scores, image_of_text[texts] - first_image, ks=ks))
    mean = {name: float(np.mean([result[name] for result in results])) for name in results[0]}
    return mean | {"rsum": recall_sum(mean)}


def recall_sum(result: Mapping[str, float]) -> float:
    """The sum of all recalls in a result: six of them with the default k."""
    return float(sum(value for name, value in result.items() if "/R@" in name))


def retrieval_ranks(scores: Scores, image_of_text: np.ndarray | Tensor) -> tuple[np.ndarray, np.ndarray]:
    """Ranks counted from 0: the number of wrong candidates that score at least as high as the correct one.

    Returns:
        The rank of each image's best text among the texts of other images, for the images that have a text,
        in order of their numbers; and the rank of each text's image among the other images, (m,).
    """
    scores, image_of_text = _check_inputs(scores, image_of_text)
    num_images, num_texts = scores.shape
    right = _as_numpy(scores[image_of_text, np.arange(num_texts)])  # (m,)
    best = np.full(num_images, right.min())  # (n,) of each image with its texts
    np.maximum.at(best, image_of_text, right)

    not_below_best = np.zeros(num_images, dtype=np.int64)
    not_below_right = np.zeros(num_texts, dtype=np.int64)
    for first_image, chunk in _row_chunks(scores):
        _check_no_nan(chunk, first_image)
        rows = slice(first_image, first_image + len(chunk))
        not_below_best[rows] = np.count_nonzero(chunk >= best[rows, None], axis=1)
        not_below_right += np.count_nonzero(chunk >= right, axis=0)

    # The counts include correct candidates: an image's own texts that reach its best score, a text's own image.
    own_at_best = np.bincount(image_of_text[right >= best[image_of_text]], minlength=num_images)
    has_text = own_at_best > 0
    return (not_below_best - own_at_best)[has_text], not_below_right - 1


def _row_chunks(scores: Scores) -> Iterator[tuple[int, np.ndarray]]:
    """Chunks of rows, with the index of the first: no copy is larger than a chunk."""
    rows = max(1, CHUNK_ELEMENTS // scores.shape[1])
    for first in range(0, len(scores), rows):
        yield first, _as_numpy(scores[first : first + rows])


def _as_numpy(values: Scores) -> np.ndarray:
    if isinstance(values, np.ndarray):
        # numpy does not vectorize comparisons in half precision
        return values.astype(np.float32) if values.dtype == np.float16 else values
    values = values.detach().cpu()
    if values.is_floating_point() and values.element_size() < 4:
        values = values.float()  # numpy has no bfloat16
    return values.numpy()


def _check_no_nan(chunk: np.ndarray, first_image: int) -> None:
    if not np.isnan(chunk).any():
        return
    row, column = np.argwhere(np.isnan(chunk))[0]
    raise DataError(
        f"the score of image {first_image + row} (row) with text {column} (column) is NaN and has no rank; "
        "check the model's output for overflow and the features for NaN"
    )


def _check_inputs(scores: Scores, image_of_text: np.ndarray | Tensor) -> tuple[Scores, np.ndarray]:
    """Both as arrays with matching shapes; raises if they do not match."""
    if not hasattr(scores, "shape"):
        scores = np.asarray(scores)
    image_of_text = _as_numpy(image_of_text if hasattr(image_of_text, "shape") else np.asarray(image_of_text))
    if isinstance(scores, np.ndarray) and scores.dtype.kind not in "fiub":
        raise DataError(f"scores must be real numbers, got an array of {scores.dtype}")
    if scores.ndim != 2:
        raise DataError(f"scores must have shape (images, texts), got {tuple(scores.shape)}")
    num_images, num_texts = scores.shape
    if image_of_text.shape != (num_texts,):
        hint = "; is the matrix transposed?" if image_of_text.shape == (num_images,) else ""
        raise DataError(
            f"scores has {num_images} images (rows) and {num_texts} texts (columns), but image_of_text has "
            f"shape {image_of_text.shape}; it must hold one image index for each text{hint}"
        )
    if num_texts == 0 or num_images == 0:
        raise DataError(f"there is nothing to rank: {num_images} images and {num_texts} texts")
    if image_of_text.dtype.kind not in "iu":
        raise DataError(f"image_of_text must hold integers, got {image_of_text.dtype}")
    if image_of_text.min() < 0 or image_of_text.max() >= num_images:
        raise DataError(
            f"image_of_text runs from {image_of_text.min()} to {image_of_text.max()}, but scores has "
            f"{num_images} rows (images); is the matrix transposed?"
        )
    return scores, image_of_text.astype(np.int64)


def _check_ks(ks: Sequence[int]) -> None:
    if not ks or any(k != int(k) or k < 1 for k in ks):
        raise DataError(f"ks must be positive integers, got {tuple(ks)}")

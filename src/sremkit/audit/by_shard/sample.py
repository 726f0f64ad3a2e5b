"""The pairs that are learnt from: drawn from all shards by a hash of their ids.

Whether a pair is drawn depends on its id and the seed alone, not on the order of the shards or on who works on them.
Each shard puts those of its pairs with the lowest hashes aside; the lowest of all are the sample. No shard is opened
twice for it, and no more than the sample is ever in memory.

A picture is known by its vector, so a copy under another name is the same picture; its fold is a hash of that, so
every process knows the fold of any picture without asking.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from safetensors import safe_open

from sremkit.audit.by_shard.plan import Plan
from sremkit.audit.preparation import vectors
from sremkit.audit.vectors import Vectors
from sremkit.data.pairs import Pairs
from sremkit.errors import DataError
from sremkit.training.checkpoint import TENSORS, read_checkpoint, write_checkpoint


@dataclass(frozen=True, eq=False)
class Contribution:
    """Some pairs with everything that learning and comparing need of them."""

    order: np.ndarray  # (k,) int64: a hash of the id; the lowest are taken
    image_key: np.ndarray  # (k,) int64: equal for equal pictures
    images: np.ndarray  # (k, d) float32
    texts: np.ndarray  # (k, e) float32
    pair_ids: list[str]
    captions: list[str]
    image_ids: list[str]

    @classmethod
    def empty(cls) -> Contribution:
        none, nothing = np.zeros(0, dtype=np.int64), np.zeros((0, 0), dtype=np.float32)
        return cls(none, none.copy(), nothing, nothing.copy(), [], [], [])

    def take(self, rows: np.ndarray) -> Contribution:
        words = ([names[k] for k in rows] for names in (self.pair_ids, self.captions, self.image_ids))
        return Contribution(
            self.order[rows], self.image_key[rows], self.images[rows], self.texts[rows], *words
        )


@dataclass(frozen=True, eq=False)
class Sample:
    """The pairs that are learnt from."""

    vectors: Vectors
    image_key: np.ndarray  # (n,) of each image of `vectors`
    pair_ids: list[str]
    captions: list[str]
    image_ids: list[str]  # (m,) of each pair, not of each image


def contribute(pairs: Pairs, most: int, *, seed: int) -> Contribution:
    """The pairs with the lowest hashes, at most so many."""
    assert pairs.image_features is not None
    assert pairs.text_features is not None
    order = hash_texts(pairs.pair_ids, seed=seed)
    rows = np.sort(np.argsort(order, kind="stable")[:most])
    image_numbers = pairs.image_of_text[rows]
    images = pairs.image_features.rows(image_numbers).values
    return Contribution(
        order[rows],
        hash_rows(images),
        images,
        pairs.text_features.rows(rows).values,
        [pairs.pair_ids[k] for k in rows],
        [pairs.texts[k] for k in rows],
        [pairs.image_ids[k] for k in image_numbers],
    )


def write_contribution(folder: Path, some: Contribution) -> None:
    arrays = {name: getattr(some, name) for name in ("order", "image_key", "images", "texts")}
    words = {name: getattr(some, name) for name in ("pair_ids", "captions", "image_ids")}
    write_checkpoint(folder, {name: torch.from_numpy(array) for name, array in arrays.items()}, words)


def _read_contribution(folder: Path) -> Contribution:
    tensors, facts = read_checkpoint(folder)
    arrays = {name: tensor.numpy() for name, tensor in tensors.items()}
    return Contribution(
        arrays["order"],
        arrays["image_key"],
        arrays["images"],
        arrays["texts"],
        facts["pair_ids"],
        facts["captions"],
        facts["image_ids"],
    )


def gather(plan: Plan) -> Sample:
    """Join what the shards have put aside into one sample, in an order that does not depend on theirs."""
    folders = [plan.folder(number) / "sample" for number in range(len(plan.shards))]
    highest = _highest_order(folders, plan.sample)
    found: list[Contribution] = []
    for number, folder in enumerate(folders):
        some = _read_contribution(folder)
        some = some.take(np.flatnonzero(some.order <= highest))
        if len(some.order):
            found.append(some)
            _check_widths(plan, number, found[0], some)
    if not found:
        raise DataError(_nothing_usable(plan))
    return _joined(found, plan.sample)


def picture_keys(pairs: Pairs) -> np.ndarray:
    """A hash of each picture's vector: (n,) int64."""
    assert pairs.image_features is not None
    return hash_rows(vectors(pairs.image_features))


def fold_of(image_key: np.ndarray, folds: int, *, seed: int) -> np.ndarray:
    """The fold of each picture: (n,) int64."""
    mixed = (image_key.astype(np.uint64) + np.uint64(seed)) * np.uint64(0x9E3779B97F4A7C15)  # wraps around
    return ((mixed >> np.uint64(32)) % np.uint64(folds)).astype(np.int64)


def hash_texts(texts: Sequence[str], *, seed: int) -> np.ndarray:
    """A number from 0 to 2^63 - 1 for each text: (k,) int64."""
    salt = str(seed).encode()
    digests = (
        hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=8, key=salt).digest()
        for text in texts
    )
    return _as_numbers(b"".join(digests))


def hash_rows(rows: np.ndarray) -> np.ndarray:
    """Likewise for each row of an array."""
    return _as_numbers(
        b"".join(hashlib.blake2b(row.tobytes(), digest_size=8).digest() for row in np.ascontiguousarray(rows))
    )


def _as_numbers(digests: bytes) -> np.ndarray:
    return (np.frombuffer(digests, dtype="<u8") >> np.uint64(1)).astype(np.int64)


def _highest_order(folders: list[Path], most: int) -> int:
    """The hash up to which pairs are taken. Only hashes are read, and only the lowest are kept."""
    lowest = np.zeros(0, dtype=np.int64)
    for folder in folders:
        with safe_open(folder / TENSORS, framework="np") as file:
            lowest = np.concatenate([lowest, file.get_tensor("order")])
        if len(lowest) > 2 * most:
            lowest = np.partition(lowest, most - 1)[:most]
    lowest = np.sort(lowest)[:most]
    return int(lowest[-1]) if len(lowest) else -1


def _joined(found: list[Contribution], most: int) -> Sample:
    order = np.concatenate([some.order for some in found])
    key_of_pair = np.concatenate([some.image_key for some in found])
    rows = np.lexsort((key_of_pair, order))[:most]  # ids that come twice have equal hashes
    image_key, first, image_of_text = np.unique(key_of_pair[rows], return_index=True, return_inverse=True)
    images = np.concatenate([some.images for some in found])[rows[first]]
    texts = np.concatenate([some.texts for some in found])[rows]

    def words(name: str) -> list[str]:
        joined = [word for some in found for word in getattr(some, name)]
        return [joined[k] for k in rows]

    return Sample(
        Vectors(
            torch.from_numpy(images),
            torch.from_numpy(texts),
            torch.from_numpy(image_of_text.reshape(-1)),
            np.ones(len(rows), dtype=bool),
        ),
        image_key,
        words("pair_ids"),
        words("captions"),
        words("image_ids"),
    )


def _check_widths(plan: Plan, number: int, first: Contribution, some: Contribution) -> None:
    for noun, expected, width in (
        ("image", first.images.shape[1], some.images.shape[1]),
        ("text", first.texts.shape[1], some.texts.shape[1]),
    ):
        if width != expected:
            raise DataError(
                f"the {noun} vectors of {plan.shards[number].path} have {width} numbers, those of the shards "
                f"before it {expected}; all shards must come from one encoder"
            )


def _nothing_usable(plan: Plan) -> str:
    facts = plan.prepared(0) or {}
    return f"none of the {len(plan.shards):,} shards can be used; the first because {facts.get('unusable')}"

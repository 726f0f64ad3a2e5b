"""The sample that the scorer of all shards is fitted on: drawn by a hash of the pairs' ids, and the fitted scorer.

Whether a pair is drawn depends on its id and the seed alone, not on the order of the shards. Each shard contributes its
pairs with the lowest hashes; the lowest of all are the sample. So each shard is opened once, and no more than the
sample is ever in memory. An image is identified by a hash of its vector, so a copy under another name is the same.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

import numpy as np
import torch
from safetensors import safe_open

from sremkit.audit.embed import read_vectors
from sremkit.audit.result_table import name_better
from sremkit.audit.scoring.cross_fit import CrossFitScorer, Progress
from sremkit.audit.scoring.near_duplicates import keys_of_digests, row_keys
from sremkit.audit.scoring.types import PairScores, PairVectors, ScoringSettings
from sremkit.audit.sharded.plan import ShardPlan
from sremkit.data.pairs import Pairs
from sremkit.errors import DataError
from sremkit.training.checkpoint import FACTS, TENSORS, read_checkpoint, write_checkpoint

ARRAYS = ("order", "image_key", "images", "texts")
NAMES = ("pair_ids", "captions", "image_ids")

# Of k pairs: order (k,) int64, a hash of the id, of which the lowest are taken; image_key (k,) int64, equal for equal
# images; images (k, d) and texts (k, e) float32; and three columns of names, (k,) str.
Contribution = dict[str, np.ndarray]


@dataclass(frozen=True, eq=False)
class Sample:
    """The pairs to fit on."""

    vectors: PairVectors
    pair_ids: list[str]  # (m,)
    captions: list[str]  # (m,)
    image_ids: list[str]  # (n,) of copies of an image the one that was drawn first


@dataclass(frozen=True, eq=False)
class SampleModel:
    """The scorer of all shards, and the names of those pairs and images of the sample that it can suggest."""

    scorer: CrossFitScorer
    sampled: int  # pairs that it was fitted on
    pair_ids: dict[int, str]
    captions: dict[int, str]
    image_ids: dict[int, str]

    @classmethod
    def fit(
        cls, sample: Sample, settings: ScoringSettings, *, num_images: int, progress: Progress | None = None
    ) -> SampleModel:
        """Fit on a sample of a collection with `num_images` images."""
        scorer = CrossFitScorer(settings, progress=progress)
        scorer.fit(sample.vectors, num_images=num_images)
        rows = sorted({int(row) for model in scorer.models for row in model.rows})
        images = sorted({int(image) for model in scorer.models for image in model.images})
        return cls(
            scorer,
            len(sample.pair_ids),
            {row: sample.pair_ids[row] for row in rows},
            {row: sample.captions[row] for row in rows},
            {image: sample.image_ids[image] for image in images},
        )

    def save(self, folder: Path, *, key: str) -> None:
        """Write the model with a key that distinguishes it from an older one."""
        names = {name: getattr(self, name) for name in NAMES}
        self.scorer.save(folder, {"key": key, "sampled": self.sampled, "names": names})

    @staticmethod
    def load(folder: Path, key: str) -> SampleModel:
        """The model, read once by a process that scores many shards."""
        return _load_model(folder.absolute(), key, (folder / FACTS).stat().st_mtime_ns)

    def score(self, pairs: Pairs) -> tuple[PairScores, dict[str, list[str | None]]]:
        """Score the pairs of a shard; and the columns of the table that name better fits."""
        scores = self.scorer.score(read_vectors(pairs))
        return scores, name_better(scores, self.captions, self.pair_ids, self.image_ids)


@lru_cache(maxsize=1)
def _load_model(folder: Path, key: str, changed: int) -> SampleModel:
    scorer, facts = CrossFitScorer.load(folder)
    assert facts.get("key", "") == key
    names = {name: {int(k): word for k, word in words.items()} for name, words in facts["names"].items()}
    return SampleModel(scorer, facts["sampled"], **names)


def write_contribution(folder: Path, pairs: Pairs | None, limit: int, *, seed: int) -> None:
    """Write the pairs with the lowest hashes, at most `limit`; none of a shard that cannot be used."""
    if pairs is None:
        write_checkpoint(folder, {"order": torch.zeros(0, dtype=torch.int64)}, {})
        return
    assert pairs.image_features is not None
    assert pairs.text_features is not None
    order = hash_texts(pairs.pair_ids, seed=seed)
    rows = np.sort(np.argsort(order, kind="stable")[:limit])
    image_numbers = pairs.image_of_text[rows]
    images = pairs.image_features.rows(image_numbers).values
    arrays = (order[rows], row_keys(images), images, pairs.text_features.rows(rows).values)
    names = (
        [pairs.pair_ids[k] for k in rows],
        [pairs.texts[k] for k in rows],
        [pairs.image_ids[k] for k in image_numbers],
    )
    tensors = {name: torch.from_numpy(array) for name, array in zip(ARRAYS, arrays, strict=True)}
    write_checkpoint(folder, tensors, dict(zip(NAMES, names, strict=True)))


def gather(plan: ShardPlan) -> Sample:
    """Join the contributions of all shards into one sample, in an order that does not depend on theirs."""
    folders = [plan.folder(number) / "sample" for number in range(len(plan.shards))]
    highest = _highest_order(folders, plan.max_train_pairs)
    found: list[Contribution] = []
    for number, folder in enumerate(folders):
        some = _read_contribution(folder, highest)
        if len(some["order"]):
            found.append(some)
            _check_widths(plan, number, found[0], some)
    if not found:
        unusable = (plan.prepared(0) or {}).get("unusable")
        raise DataError(f"none of the {len(folders):,} shards can be used; the first because {unusable}")
    joined = {name: np.concatenate([some[name] for some in found]) for name in (*ARRAYS, *NAMES)}
    # By image as well: ids that occur twice have equal hashes.
    rows = np.lexsort((joined["image_key"], joined["order"]))[: plan.max_train_pairs]
    joined = {name: values[rows] for name, values in joined.items()}
    _, first, image_of_text = np.unique(joined["image_key"], return_index=True, return_inverse=True)
    images, texts = (torch.from_numpy(vectors) for vectors in (joined["images"][first], joined["texts"]))
    readable = np.ones(len(rows), dtype=bool)
    return Sample(
        PairVectors(images, texts, torch.from_numpy(image_of_text.reshape(-1)), readable),
        joined["pair_ids"].tolist(),
        joined["captions"].tolist(),
        joined["image_ids"][first].tolist(),
    )


def hash_texts(texts: Sequence[str], *, seed: int) -> np.ndarray:
    """A number from 0 to 2^63 - 1 for each text: (k,) int64."""
    salt = str(seed).encode()
    return keys_of_digests(
        hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=8, key=salt).digest() for text in texts
    )


def _highest_order(folders: list[Path], limit: int) -> int:
    """The hash up to which pairs are taken. Only hashes are read, and only the lowest are kept."""
    lowest = np.zeros(0, dtype=np.int64)
    for folder in folders:
        with safe_open(folder / TENSORS, framework="np") as file:
            lowest = np.concatenate([lowest, file.get_tensor("order")])
        if len(lowest) > 2 * limit:
            lowest = np.partition(lowest, limit - 1)[:limit]
    lowest = np.sort(lowest)[:limit]
    return int(lowest[-1]) if len(lowest) else -1


def _read_contribution(folder: Path, highest: int) -> Contribution:
    """The pairs of a shard with hashes up to `highest`."""
    tensors, facts = read_checkpoint(folder)
    rows = np.flatnonzero(tensors["order"].numpy() <= highest)
    arrays = {name: tensor.numpy()[rows] for name, tensor in tensors.items()}
    return arrays | {name: np.array(facts[name], dtype=object)[rows] for name in NAMES if name in facts}


def _check_widths(plan: ShardPlan, number: int, first: Contribution, some: Contribution) -> None:
    for name in ("images", "texts"):
        expected, width = first[name].shape[1], some[name].shape[1]
        if width != expected:
            raise DataError(
                f"the {name[:-1]} vectors of {plan.shards[number].path} have {width} numbers, those of the shards "
                f"before it {expected}; all shards must come from one encoder"
            )

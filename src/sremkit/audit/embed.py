"""From input pairs to embedded pairs: one finite vector for each image and each text.

The key of the input, a hash of everything the features depend on, names the folder of the features. So an
interrupted audit continues, and a changed input gets a folder of its own.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from sremkit.audit.inputs import Problem, SourceRows
from sremkit.audit.scoring.cross_fit import CrossFitScorer, Progress
from sremkit.audit.scoring.labels import apply_labels
from sremkit.audit.scoring.types import PairScores, PairVectors, ScoringSettings
from sremkit.data.features import MappedFeatures
from sremkit.data.formats import WHOLE, Collection
from sremkit.data.formats.features import MANIFEST
from sremkit.data.images import IMAGE_ROOT_HINT, image_place, image_state, only_used_images
from sremkit.data.pairs import FeatureRows, FeatureSource, ImageSource, Pairs
from sremkit.errors import DataError
from sremkit.features.encoders import ImageEncoder, TextEncoder
from sremkit.features.encoders.efficientnet import EfficientNetEncoder
from sremkit.features.encoders.minilm import MiniLMEncoder
from sremkit.features.extract import Extraction, Work, extract_features
from sremkit.features.store import ContentHashes, content_hash
from sremkit.training.checkpoint import remove_checkpoint

# No encoder reads further, and tokenizing ten megabytes only to truncate them takes minutes.
MAX_CHARACTERS = 10_000
CHUNK_ROWS = 1024
SCORER = "scorer"  # folder with what `srem score` needs, next to the folds
NOUNS = {"images": "images", "texts": "captions"}


@dataclass(frozen=True)
class Encoders:
    """The encoders of images and texts that come without features."""

    images: ImageEncoder
    texts: TextEncoder
    folder: str | None = None  # of a model of transformers

    @classmethod
    def open(cls, folder: str | Path | None = None) -> Encoders:
        """Load a CLIP or SigLIP model: its folder, a run that fine-tuned one, or a name on the Hugging Face hub.

        Without a folder, the default encoders.
        """
        if folder is None:
            return cls.default()
        from sremkit.features.encoders.clip import open_encoders

        images, texts = open_encoders(folder)
        return cls(images, texts, str(images.model.folder.absolute()))

    @classmethod
    def default(cls) -> Encoders:
        return cls(EfficientNetEncoder(), MiniLMEncoder())

    def share_a_space(self, missing: Sequence[str]) -> bool:
        """Whether one pretrained model encodes images and texts, so that their cosine is a similarity."""
        return self.folder is not None and {"pooled", "sentences"} <= set(missing)

    def describe(self, missing: Sequence[str]) -> dict[str, str]:
        """The encoder of each modality; features that are not missing are used as given."""
        given = "features as given"
        return {
            "image_encoder": self.images.description if "pooled" in missing else given,
            "text_encoder": self.texts.description if "sentences" in missing else given,
        }


@dataclass(frozen=True, eq=False)
class InputPairs:
    """Pairs before embedding, with what was found in one pass over their features."""

    pairs: Pairs
    key: str  # equal for equal input and equal encoders
    missing: tuple[str, ...]  # features to extract: "pooled", "sentences"
    bad_images: dict[int, str]  # by image, why its features cannot be used
    bad_texts: dict[int, str]  # by pair


@dataclass(frozen=True, eq=False)
class EmbeddedPairs:
    """The pairs that can be scored, and why the others cannot."""

    pairs: Pairs  # with a vector for each image and each text
    pair_numbers: np.ndarray  # (n,) int64: the index of each among the input pairs
    problems: dict[int, Problem]  # by index among the input pairs
    work: dict[str, Work] = field(default_factory=dict)  # extracted in this call, by "images" and "captions"


def inspect_inputs(pairs: Pairs, encoders: Encoders, progress: Progress | None = None) -> InputPairs:
    """Compute the key of the input, and find missing and unusable features. Existing features are read once."""
    if any(len(text) > MAX_CHARACTERS for text in pairs.texts):
        pairs = replace(pairs, texts=[text[:MAX_CHARACTERS] for text in pairs.texts])
    digest = hashlib.sha256(fingerprint_pairs(pairs).encode())
    missing: list[str] = []
    bad: list[dict[int, str]] = []
    for kind, noun, source, encoder in (
        ("pooled", "image features", pairs.image_features, encoders.images.description),
        ("sentences", "text features", pairs.text_features, encoders.texts.description),
    ):
        if source is None:
            missing.append(kind)
            bad.append({})
            digest.update(encoder.encode())
        else:
            content, problems = check_features(source, progress and partial(progress, noun))
            bad.append(problems)
            digest.update(content.encode())
    if "pooled" in missing and pairs.images is None:
        raise DataError(
            f"{pairs.name} names images that are not on this machine; download them (img2dataset does it), "
            f"{IMAGE_ROOT_HINT}, or give embeddings"
        )
    return InputPairs(pairs, digest.hexdigest()[:16], tuple(missing), *bad)


def embed_pairs(
    inputs: InputPairs,
    folder: Path,
    encoders: Encoders,
    *,
    workers: int | None = None,
    progress: Progress | None = None,
    reuse: Sequence[Path] = (),
) -> EmbeddedPairs:
    """Extract missing features into `folder`, or continue there, and leave out pairs without features.

    Args:
        reuse: folders of other extractions; those next to `folder` are used anyway.
    """
    pairs, bad_images, bad_texts = inputs.pairs, dict(inputs.bad_images), inputs.bad_texts
    image_reason = "the image features cannot be used"
    work: dict[str, Work] = {}
    if inputs.missing:
        try:
            extraction = _extract(pairs, folder, inputs.missing, encoders, workers, progress, reuse)
        except DataError as cause:
            raise DataError(f"{cause}; or remove {folder}: the same command extracts its features again") from cause
        work = {NOUNS[group]: done for group, done in extraction.work.items()}
        bad_images.update(
            (number, extraction.problems[image_id])
            for number, image_id in enumerate(pairs.image_ids)
            if image_id in extraction.problems
        )
        if "pooled" in inputs.missing:
            image_reason = "the image cannot be read"
            pairs = replace(pairs, image_features=MappedFeatures(folder / "pooled.npy"))
        if "sentences" in inputs.missing:
            pairs = replace(pairs, text_features=MappedFeatures(folder / "sentences.npy"))
    problems: dict[int, Problem] = {}
    for k, image in enumerate(pairs.image_of_text.tolist()):
        if image in bad_images:
            problems[k] = Problem(image_reason, bad_images[image])
        elif k in bad_texts:
            problems[k] = Problem("the text features cannot be used", bad_texts[k])
    usable = np.array([k for k in range(len(pairs)) if k not in problems], dtype=np.int64)
    if len(usable) == 0:
        first = next(iter(problems.values())).message
        raise DataError(f"none of the {len(pairs):,} pairs can be scored; the first because {first}")
    embedded = only_used_images(pairs, usable)
    assert embedded.image_features is not None
    if embedded.image_features.rows(np.array([0])).values.ndim == 3:
        embedded = replace(embedded, image_features=MeanOfRegions(embedded.image_features))
    return EmbeddedPairs(embedded, usable, problems, work)


def read_vectors(pairs: Pairs) -> PairVectors:
    """Read every vector once; of images with regions the mean region is taken."""
    images, usable_images = _read_usable(pairs.image_features, f"{pairs.name} has no image features")
    texts, usable_texts = _read_usable(pairs.text_features, f"{pairs.name} has no text features")
    readable = usable_texts & usable_images[pairs.image_of_text]
    image_of_text = torch.from_numpy(np.asarray(pairs.image_of_text, dtype=np.int64).copy())
    return PairVectors(images, texts, image_of_text, readable)


def score_pairs(
    pairs: Pairs,
    settings: ScoringSettings | None = None,
    *,
    label: np.ndarray | None = None,
    folder: Path | None = None,
    progress: Progress | None = None,
) -> PairScores:
    """Held-out scores of all pairs by `CrossFitScorer`.

    Args:
        label: (m,) int64, 1 for pairs that are known to match, 0 for known mismatches, MISSING for all others.
        folder: keeps finished folds, and the models for pairs to come.
    """
    scorer = CrossFitScorer(settings, folder=folder, progress=progress)
    if folder is not None and (folder / SCORER).exists():  # its models may be replaced
        remove_checkpoint(folder / SCORER)
    scores = scorer.fit_score(replace(read_vectors(pairs), label=label))
    if folder is not None and scorer.models:
        scorer.save(folder / SCORER, {"sampled": len(pairs), "names": pool_names(scorer, pairs)}, with_models=False)
    return scores if label is None else apply_labels(scores, label, seed=scorer.settings.seed)


def pool_names(scorer: CrossFitScorer, pairs: Pairs) -> dict[str, dict[int, str]]:
    """Ids and captions of the pairs, and ids of the images, that the models can suggest for new pairs."""
    rows = sorted({int(row) for model in scorer.models for row in model.rows})
    images = sorted({int(image) for model in scorer.models for image in model.images})
    return {
        "pair_ids": {row: pairs.pair_ids[row] for row in rows},
        "captions": {row: pairs.texts[row] for row in rows},
        "image_ids": {image: pairs.image_ids[image] for image in images},
    }


def _read_usable(source: FeatureSource | None, missing: str) -> tuple[Tensor, np.ndarray]:
    """The vectors of a source, (n, d), zero where they cannot be used; and which can, (n,) bool."""
    if source is None:
        raise DataError(f"{missing}, and scoring compares vectors; extract them first with `srem features`")
    values = np.zeros((len(source), source.dim), dtype=np.float32)
    usable = np.ones(len(source), dtype=bool)
    for rows, found in _chunks(source):
        if isinstance(found, DataError):
            usable[rows] = False
        else:
            values[rows] = mean_of_regions(found)
    return torch.from_numpy(values), usable


def _chunks(source: FeatureSource) -> Iterator[tuple[np.ndarray, FeatureRows | DataError]]:
    """Read all rows in chunks; a chunk with unusable rows is read row by row, to find out which."""
    for start in range(0, len(source), CHUNK_ROWS):
        rows = np.arange(start, min(start + CHUNK_ROWS, len(source)))
        try:
            yield rows, source.rows(rows)
        except DataError:
            for row in rows[:, None]:
                try:
                    yield row, source.rows(row)
                except DataError as problem:
                    yield row, problem


class MeanOfRegions:
    """One vector for each image of a source with region features."""

    def __init__(self, source: FeatureSource) -> None:
        self.source = source

    @property
    def dim(self) -> int:
        return self.source.dim

    def __len__(self) -> int:
        return len(self.source)

    def rows(self, indices: np.ndarray) -> FeatureRows:
        return FeatureRows(mean_of_regions(self.source.rows(indices)), None)


def mean_of_regions(features: FeatureRows) -> np.ndarray:
    """From (k, d) or (k, r, d) to (k, d): the mean over the regions present."""
    values, mask = features
    if values.ndim == 2:
        return values
    present = np.ones(values.shape[:2], np.float32) if mask is None else mask.astype(np.float32)
    total = (values * present[:, :, None]).sum(axis=1)
    return total / np.maximum(present.sum(axis=1), 1)[:, None]


def _extract(
    pairs: Pairs,
    folder: Path,
    what: Sequence[str],
    encoders: Encoders,
    workers: int | None,
    progress: Progress | None,
    reuse: Sequence[Path],
) -> Extraction:
    def show(group: str, done: int, total: int, problems: int) -> None:
        if progress is not None:
            progress(NOUNS[group], done, total)

    contents = None
    if not (folder / MANIFEST).is_file():  # by content, features of earlier inputs are used again
        siblings = sorted(other for other in folder.parent.glob("*") if other != folder)
        contents = hash_contents([pairs], [*siblings, *reuse])
    return extract_features(
        Collection({WHOLE: replace(pairs, split=WHOLE)}, has_splits=False),
        folder,
        features=what,
        workers=workers,
        progress=show,
        image_encoder=encoders.images,
        text_encoder=encoders.texts,
        contents=contents,
    )


def hash_contents(splits: Sequence[Pairs], folders: Sequence[Path]) -> ContentHashes:
    """Hashes of the images and texts of these pairs, and folders in which their features are sought."""
    return ContentHashes(
        [
            None if pairs.images is None else image_content(pairs.images, number)
            for pairs in splits
            for number in range(pairs.num_images)
        ],
        [content_hash(text) for pairs in splits for text in pairs.texts],
        folders,
    )


def feature_folders(path: str | Path) -> list[Path]:
    """The finished extractions of an audit, or of `srem features`."""
    path = Path(path)
    folders = [path] if (path / MANIFEST).is_file() else sorted(file.parent for file in path.glob(f"*/*/{MANIFEST}"))
    if not folders:
        raise DataError(
            f"{path} holds no finished features; --reuse takes the folder of an audit or of `srem features`"
        )
    return folders


def fingerprint_pairs(pairs: Pairs) -> str:
    """Hash ids, texts and pairing, and the size and date of each image."""
    digest = hashlib.sha256()
    for number, image_id in enumerate(pairs.image_ids):
        state = None if pairs.images is None else image_state(pairs.images, number)
        digest.update(json.dumps([image_id, state]).encode())
    for pair_id, text, image in zip(pairs.pair_ids, pairs.texts, pairs.image_of_text, strict=True):
        digest.update(json.dumps([pair_id, text, int(image)]).encode())
    return digest.hexdigest()


def fingerprint_rows(rows: SourceRows) -> str:
    """Hash everything else that enters the table: the user's columns, and the problems of rows."""
    digest = hashlib.sha256(rows.pair_of_row.tobytes())
    digest.update(json.dumps([[row, *problem] for row, problem in rows.problems.items()]).encode())
    for name, values in rows.columns.items():
        plain = values if isinstance(values, list) else values.to_pylist()
        digest.update(json.dumps([name, plain], default=repr).encode())
    return digest.hexdigest()[:16]


def check_features(
    features: FeatureSource, progress: Callable[[int, int], None] | None = None
) -> tuple[str, dict[int, str]]:
    """Hash all rows of a source in one pass, and return what is wrong with rows that cannot be used."""
    digest = hashlib.sha256()
    problems: dict[int, str] = {}
    if progress is not None:
        progress(0, len(features))
    for rows, found in _chunks(features):
        if isinstance(found, DataError):
            problems[int(rows[0])] = str(found)
        digest.update(b"bad" if isinstance(found, DataError) else found.values.tobytes())
        done = int(rows[-1]) + 1
        if progress is not None and (done % CHUNK_ROWS == 0 or done == len(features)):
            progress(done, len(features))
    return digest.hexdigest(), problems


def image_content(images: ImageSource, number: int) -> str | None:
    """Hash path, size and date of an image, whatever its id; None where they are unknown."""
    place, state = image_place(images, number), image_state(images, number)
    if place is None or state is None or state == ["missing"]:
        return None
    return content_hash(os.path.abspath(place[0]), *state)

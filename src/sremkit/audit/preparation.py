"""From pairs as they were given to pairs that can be judged: one finite vector for each image and each text."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np

from sremkit.audit.fingerprint import fingerprint_pairs, picture_content, read_features_once
from sremkit.audit.joined import MeanOfRegions, compact
from sremkit.audit.own_rows import Problem
from sremkit.data.all_splits import WHOLE, Collection
from sremkit.data.feature_folder import MANIFEST
from sremkit.data.features import MappedFeatures
from sremkit.data.formats import ELSEWHERE
from sremkit.data.pairs import FeatureSource, Pairs
from sremkit.errors import DataError
from sremkit.features.earlier import Contents, content_hash
from sremkit.features.extract import Extraction, Work, extract_features
from sremkit.features.jobs import EncodesPictures, EncodesTexts
from sremkit.features.pictures import PictureEncoder
from sremkit.features.sentences import SentenceEncoder

# No encoder reads further, and taking ten megabytes apart into tokens only to drop them takes minutes.
MAX_CHARACTERS = 10_000
NOUNS = {"images": "pictures", "texts": "captions"}

Progress = Callable[[str, int, int], None]  # stage, how much is done, how much there is


@dataclass(frozen=True)
class Encoders:
    """What turns pictures and texts into vectors where the user has none."""

    pictures: EncodesPictures
    texts: EncodesTexts

    @classmethod
    def default(cls) -> Encoders:
        return cls(PictureEncoder(), SentenceEncoder())


@dataclass(frozen=True, eq=False)
class Given:
    """Pairs as they were given, after one look at everything that matters for them."""

    pairs: Pairs
    key: str  # equal for equal input and equal encoders
    missing: tuple[str, ...]  # features to be extracted: "pooled", "sentences"
    bad_images: dict[int, str]  # by image, why its features cannot be used
    bad_texts: dict[int, str]  # by pair


@dataclass(frozen=True, eq=False)
class Judgeable:
    """The pairs that can be judged, and why the others cannot."""

    pairs: Pairs  # with a vector for each image and each text
    pair_numbers: np.ndarray  # (judged,) int64: the number that each had among all pairs
    problems: dict[int, Problem]  # by the number among all pairs
    work: dict[str, Work] = field(
        default_factory=dict
    )  # what was extracted now, by "pictures" and "captions"


def look_at(pairs: Pairs, encoders: Encoders, progress: Progress | None = None) -> Given:
    """Find out what there is and what is missing; features that were given are read once."""
    if any(len(text) > MAX_CHARACTERS for text in pairs.texts):
        pairs = replace(pairs, texts=[text[:MAX_CHARACTERS] for text in pairs.texts])
    digest = hashlib.sha256(fingerprint_pairs(pairs).encode())
    missing: list[str] = []
    bad: list[dict[int, str]] = []
    for kind, noun, source, encoder in (
        ("pooled", "image features", pairs.image_features, encoders.pictures.description),
        ("sentences", "text features", pairs.text_features, encoders.texts.description),
    ):
        if source is None:
            missing.append(kind)
            bad.append({})
            digest.update(encoder.encode())
        else:
            content, problems = read_features_once(source, _told(progress, noun))
            bad.append(problems)
            digest.update(content.encode())
    if "pooled" in missing and pairs.images is None:
        raise DataError(
            f"{pairs.name} names pictures that are not on this machine; download them (img2dataset does it), "
            f"{ELSEWHERE}, or give embeddings"
        )
    return Given(pairs, digest.hexdigest()[:16], tuple(missing), *bad)


def make_judgeable(
    given: Given,
    folder: Path,
    encoders: Encoders,
    *,
    workers: int | None = None,
    progress: Progress | None = None,
) -> Judgeable:
    """Extract what is missing into `folder`, or go on with it, and leave out what has no features."""
    pairs, bad_images = given.pairs, dict(given.bad_images)
    work: dict[str, Work] = {}
    if given.missing:
        extraction = _extract(pairs, folder, given.missing, encoders, workers, progress)
        work = {NOUNS[group]: done for group, done in extraction.work.items()}
        bad_images.update(
            (number, extraction.problems[image_id])
            for number, image_id in enumerate(pairs.image_ids)
            if image_id in extraction.problems
        )
        if "pooled" in given.missing:
            pairs = replace(pairs, image_features=MappedFeatures(folder / "pooled.npy"))
        if "sentences" in given.missing:
            pairs = replace(pairs, text_features=MappedFeatures(folder / "sentences.npy"))
    problems = _problems(pairs, bad_images, given.bad_texts, read_pictures="pooled" in given.missing)
    usable = np.array([k for k in range(len(pairs)) if k not in problems], dtype=np.int64)
    if len(usable) == 0:
        first = next(iter(problems.values())).sentence
        raise DataError(f"none of the {len(pairs):,} pairs can be judged; the first because {first}")
    judged = compact(pairs, usable)
    assert judged.image_features is not None
    if judged.image_features.rows(np.array([0])).values.ndim == 3:
        judged = replace(judged, image_features=MeanOfRegions(judged.image_features))
    return Judgeable(judged, usable, problems, work)


def vectors(source: FeatureSource) -> np.ndarray:
    """All rows of a source in memory: (k, d) float32."""
    return source.rows(np.arange(len(source))).values


def _extract(
    pairs: Pairs,
    folder: Path,
    what: Sequence[str],
    encoders: Encoders,
    workers: int | None,
    progress: Progress | None,
) -> Extraction:
    def show(group: str, done: int, total: int, problems: int) -> None:
        if progress is not None:
            progress(NOUNS[group], done, total)

    return extract_features(
        Collection({WHOLE: replace(pairs, split=WHOLE)}, has_splits=False),
        folder,
        what=what,
        workers=workers,
        progress=show,
        picture_encoder=encoders.pictures,
        sentence_encoder=encoders.texts,
        contents=None if (folder / MANIFEST).is_file() else _contents(pairs, folder),
    )


def _contents(pairs: Pairs, folder: Path) -> Contents:
    """What the rows hold, so that of a changed input only what is new is extracted."""
    images = pairs.images
    others = sorted(other for other in folder.parent.glob("*") if other != folder)
    return Contents(
        [None if images is None else picture_content(images, number) for number in range(pairs.num_images)],
        [content_hash(text) for text in pairs.texts],
        others,
    )


def _problems(
    pairs: Pairs, bad_images: dict[int, str], bad_texts: dict[int, str], *, read_pictures: bool
) -> dict[int, Problem]:
    image_reason = "the picture cannot be read" if read_pictures else "the image features cannot be used"
    found: dict[int, Problem] = {}
    for k, image in enumerate(pairs.image_of_text.tolist()):
        if image in bad_images:
            found[k] = Problem(image_reason, bad_images[image])
        elif k in bad_texts:
            found[k] = Problem("the text features cannot be used", bad_texts[k])
    return found


def _told(progress: Progress | None, stage: str) -> Callable[[int, int], None] | None:
    return None if progress is None else lambda done, total: progress(stage, done, total)

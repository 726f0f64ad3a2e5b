"""Features of a whole collection, extracted into a folder that training reads."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from sremkit.data.all_splits import Collection
from sremkit.data.feature_folder import IMAGE_ARRAYS, IMAGES, TEXT_ARRAYS
from sremkit.errors import DataError, UserError
from sremkit.features.earlier import Contents, EarlierRows, find_earlier
from sremkit.features.jobs import (
    EncodesPictures,
    EncodesTexts,
    PictureJob,
    TextJob,
    chunks,
    num_new,
    usable_cores,
)
from sremkit.features.pictures import PictureEncoder
from sremkit.features.rows import Rows
from sremkit.features.sentences import SentenceEncoder
from sremkit.features.store import ArrayPlan, FeatureStore, Plan

KINDS = (*IMAGE_ARRAYS, *TEXT_ARRAYS)

Progress = Callable[[str, int, int, int], None]  # "images" or "texts", rows done, rows in all, problems


@dataclass(frozen=True)
class Extraction:
    """What an extraction left in its folder."""

    folder: Path
    num_images: int
    num_texts: int
    problems: dict[str, str]  # by image id, why its picture could not be read
    was_complete: bool  # before this call
    work: dict[str, Work] = field(default_factory=dict)  # of this call, by "images" and "texts"


@dataclass(frozen=True)
class Work:
    """What one call did for one group of rows."""

    encoded: int
    taken_over: int  # from an earlier extraction
    seconds: float


def extract_features(
    collection: Collection,
    out: str | Path,
    *,
    what: Sequence[str] = ("pooled", "sentences"),
    workers: int | None = None,
    batch_size: int = 32,
    progress: Progress | None = None,
    picture_encoder: EncodesPictures | None = None,
    sentence_encoder: EncodesTexts | None = None,
    contents: Contents | None = None,
    save_seconds: float = 5.0,
) -> Extraction:
    """Extract features into the folder `out`, or go on with an extraction that was stopped.

    The result does not depend on `workers`, `batch_size` or how often it was stopped. Pictures that cannot be
    read get rows of NaN, and `read_pairs(out)` leaves their pairs out.

    Args:
        what: which of pooled, grid and sentences.
        workers: processes that decode and encode, each on one core; by default one for every core. With 0 this
            process does it.
        batch_size: pictures that a worker takes at a time.
        picture_encoder, sentence_encoder: in the place of EfficientNet-lite2 and all-MiniLM-L6-v2.
        contents: what the rows hold, and where features of the same contents may lie already. A text's vector then
            comes from another batch, which can change its last bit.
        save_seconds: how much work may be lost when the extraction is killed.
    """
    out, rows = Path(out), Rows(collection)
    pictures, sentences = picture_encoder or PictureEncoder(), sentence_encoder or SentenceEncoder()
    kinds = _ordered(what)
    image_kinds = [kind for kind in kinds if kind in IMAGE_ARRAYS]
    plan = Plan(rows.fingerprint(), _array_plans(kinds, rows, pictures, sentences))
    jobs: list[PictureJob | TextJob] = []
    if image_kinds:
        earlier = _earlier("images", plan, contents)
        jobs.append(PictureJob(rows.pictures(), pictures, image_kinds, per_chunk=batch_size, earlier=earlier))
    if "sentences" in kinds:
        jobs.append(TextJob(rows.texts, sentences, earlier=_earlier("texts", plan, contents)))
    work: dict[str, Work] = {}
    with FeatureStore(out, plan, save_seconds=save_seconds) as store:
        was_complete = store.complete
        if not was_complete:
            for job in jobs:
                work[job.group] = _run(job, store, usable_cores() if workers is None else workers, progress)
                _refuse_unless_something_was_readable(store, rows.num_images)
            tables = {**rows.tables(store.problems), **(contents.tables() if contents else {})}
            store.finish(tables, rows.facts())
    return Extraction(out, rows.num_images, len(rows.texts), _problems(out), was_complete, work)


def _earlier(group: str, plan: Plan, contents: Contents | None) -> EarlierRows:
    """Where earlier extractions have the rows of this group."""
    if contents is None:
        return EarlierRows()
    kinds = IMAGE_ARRAYS if group == "images" else TEXT_ARRAYS
    plans = {kind: array for kind, array in plan.arrays.items() if kind in kinds}
    return find_earlier(getattr(contents, group), group, plans, contents.folders)


def _ordered(what: Sequence[str]) -> list[str]:
    unknown = [kind for kind in what if kind not in KINDS]
    if unknown or not what:
        asked = f"there are no features called '{unknown[0]}'" if unknown else "no features were asked for"
        raise UserError(f"{asked}; choose from: {', '.join(KINDS)}")
    return [kind for kind in KINDS if kind in what]


def _array_plans(
    kinds: Sequence[str], rows: Rows, pictures: EncodesPictures, sentences: EncodesTexts
) -> dict[str, ArrayPlan]:
    images, texts = rows.num_images, len(rows.texts)
    plans = {
        "pooled": ArrayPlan((images, pictures.dim), pictures.description),
        "grid": ArrayPlan((images, pictures.num_places, pictures.dim), pictures.description),
        "sentences": ArrayPlan((texts, sentences.dim), sentences.description),
    }
    return {kind: plans[kind] for kind in kinds}


def _run(job: PictureJob | TextJob, store: FeatureStore, workers: int, progress: Progress | None) -> Work:
    started, start = time.monotonic(), store.done[job.group]
    new = num_new(job, start)
    num_problems = len(store.problems)
    if progress is not None:
        progress(job.group, store.done[job.group], len(job), num_problems)
    for chunk in chunks(job, start=store.done[job.group], workers=workers):
        store.write(job.group, chunk.first, chunk.arrays, chunk.problems)
        num_problems += len(chunk.problems)
        if progress is not None:
            done = chunk.first + len(next(iter(chunk.arrays.values())))
            progress(job.group, done, len(job), num_problems)
    return Work(new, max(len(job) - start, 0) - new, time.monotonic() - started)


def _refuse_unless_something_was_readable(store: FeatureStore, num_images: int) -> None:
    store.save()
    if len(store.problems) == num_images:
        raise DataError(
            f"none of the {num_images} pictures could be read, the first because: {store.problems[0]}. "
            f"Put that right, remove {store.folder} and extract again"
        )


def _problems(folder: Path) -> dict[str, str]:
    with (folder / IMAGES).open(encoding="ascii") as lines:
        images = (json.loads(line) for line in lines)
        return {image["id"]: image["problem"] for image in images if "problem" in image}

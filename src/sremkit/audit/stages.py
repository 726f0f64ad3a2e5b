"""The stages of an audit, each of which goes on where an earlier call was stopped.

DIR/audit.json       what is audited; written first
DIR/features/KEY     extracted features, by a hash of the input: a changed input gets a folder of its own
DIR/judging/KEY      finished folds of the judging
DIR/pairs.parquet    every row of the user's with its verdict
DIR/summary.json     the figures; written last, so with it all is there
"""

from __future__ import annotations

import json
import platform
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from sremkit.audit.choice import mismatches_at
from sremkit.audit.fingerprint import fingerprint_rows
from sremkit.audit.judging import JudgingSettings, judge
from sremkit.audit.judging_settings import WORD_EPOCHS
from sremkit.audit.near_duplicates import ALONE, caption_groups, picture_groups
from sremkit.audit.preparation import Encoders, Given, Judgeable, Progress, look_at, make_judgeable, vectors
from sremkit.audit.sources import Source
from sremkit.audit.table import PAIRS, Duplicates, arrow, build_table, read_table, was_judged, write_table
from sremkit.audit.verdicts import Verdicts
from sremkit.data.pairs import Pairs
from sremkit.errors import DataError, UserError
from sremkit.training.checkpoint import replace_file
from sremkit.version import __version__

if TYPE_CHECKING:
    import pyarrow as pa

BEGUN, SUMMARY = "audit.json", "summary.json"
JUDGING, SHARDS = "judging", "shards"  # folders that tell a plain audit from one by shard
MOST_PICTURES_COMPARED = 100_000  # comparing grows with the square: a minute or so here
DEFAULT_PRECISION = 0.95


@dataclass(frozen=True)
class Choice:
    """Which pairs are called mismatches: so many, those below a score, or so that few of them are right."""

    precision: float | None = None
    fraction: float | None = None
    threshold: float | None = None

    def __post_init__(self) -> None:
        given = self.as_dict()
        if len(given) != 1:
            raise UserError(
                f"choose by one of precision, fraction and threshold, not by {' and '.join(given) or 'none'}"
            )
        for name, value in given.items():
            if not 0 <= value <= 1:
                raise UserError(f"{name} must lie between 0 and 1, got {value}")

    @classmethod
    def of(cls, precision: float | None, fraction: float | None, threshold: float | None) -> Choice:
        """The one that is given, or a precision of 0.95 where none is."""
        if precision is None and fraction is None and threshold is None:
            precision = DEFAULT_PRECISION
        return cls(precision, fraction, threshold)

    def as_dict(self) -> dict[str, float]:
        return {name: value for name, value in asdict(self).items() if value is not None}

    def calls_any(self, noise_rate: object | None) -> bool:
        """Whether pairs can be called: for a precision one must know how likely each is right."""
        return noise_rate is not None or self.precision is None

    def mismatches(self, score: np.ndarray) -> np.ndarray:
        """Which of these scores are called mismatches: (m,) bool; a pair without a score is never one."""
        called, known = np.zeros(len(score), dtype=bool), np.isfinite(score)
        if known.any():
            called[known] = mismatches_at(score[known], **asdict(self))
        return called


@dataclass(frozen=True)
class Task:
    """How to audit."""

    out: Path
    choice: Choice
    encoders: Encoders
    judge: Callable[..., Verdicts]
    seed: int = 0
    words: bool = False  # whether single words are judged too
    workers: int | None = None  # processes that extract features; by default one for every core
    progress: Progress | None = None
    say: Callable[[str], None] = lambda sentence: None


@dataclass(frozen=True, eq=False)
class Finished:
    """What an audit found."""

    table: pa.Table
    summary: dict[str, Any]
    was_complete: bool  # before this call


def run_stages(source: Source, task: Task) -> Finished:
    """Read, extract, judge, and write what was found."""
    arrow()  # a missing package should show before hours of work, not after
    seconds: dict[str, float] = {}
    with _timed(seconds, "reading"):
        given = look_at(source.pairs, task.encoders, task.progress)
        rows_key = fingerprint_rows(source.rows)
    wanted = {
        "key": given.key,
        "rows_key": rows_key,
        "seed": task.seed,
        "words": task.words,
        "choice": task.choice.as_dict(),
    }
    if task.words and not source.has_texts:
        raise UserError("single words can only be judged where there are captions; leave --words away")
    if (complete := _complete(task.out, wanted)) is not None:
        return complete
    _begin(task, source, given)
    with _timed(seconds, "features"):
        folder = task.out / "features" / given.key
        judgeable = make_judgeable(given, folder, task.encoders, workers=task.workers, progress=task.progress)
    with _timed(seconds, "judging"):
        verdicts = _judge(judgeable.pairs, task, task.out / JUDGING / given.key)
    with _timed(seconds, "table"):
        is_mismatch = _mismatches(verdicts, task.choice)
        duplicates = find_duplicates(judgeable.pairs, source.has_texts)
        table = build_table(source, judgeable, verdicts, is_mismatch, duplicates)
        write_table(table, task.out / PAIRS)
    summary = {
        **_figures(source, judgeable, verdicts, is_mismatch, table),
        **wanted,
        "settings": _settings(task, given),
        "source": source.facts,
        "extracted": {
            what: {**asdict(work), "seconds": round(work.seconds, 2)} for what, work in judgeable.work.items()
        },
        "seconds": {stage: round(time_taken, 2) for stage, time_taken in seconds.items()},
        "versions": {"sremkit": __version__, "python": platform.python_version(), "torch": torch.__version__},
    }
    replace_file(task.out / SUMMARY, json.dumps(summary, indent=2, ensure_ascii=False) + "\n")
    return Finished(table, summary, was_complete=False)


def facts_in(path: Path) -> dict[str, Any]:
    """What a JSON file says; nothing where it is missing or damaged, so that it is made again."""
    try:
        facts = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return facts if isinstance(facts, dict) else {}


def _complete(out: Path, wanted: dict[str, Any]) -> Finished | None:
    """An audit that has been finished with the same input and settings, if all of it is there and readable."""
    summary = facts_in(out / SUMMARY)
    if any(name not in summary or summary[name] != value for name, value in wanted.items()):
        return None
    try:
        return Finished(read_table(out), summary, was_complete=True)
    except DataError:
        return None


def _begin(task: Task, source: Source, given: Given) -> None:
    """Mark the folder as this audit's; say so when an earlier one was of another input."""
    out = task.out
    if out.is_file():
        raise UserError(f"{out} is a file; name a folder for the audit")
    out.mkdir(parents=True, exist_ok=True)
    begun = out / BEGUN
    before = facts_in(begun)  # nothing where the file is damaged
    if not begun.is_file():
        others = [entry.name for entry in out.iterdir() if not entry.name.startswith(".")]
        if others:
            raise UserError(
                f"{out} holds other files, such as {min(others)}; name a new folder for the audit"
            )
    elif before.get("by_shard") or (not before and (out / SHARDS).is_dir()):
        raise UserError(f"{out} holds an audit that was made with --by-shard; name a new folder for this one")
    elif before.get("key", given.key) != given.key:
        task.say(
            f"the input or its encoders have changed since the audit in {out} began "
            f"({before['rows']:,} rows then, {len(source.rows):,} now), so it is made anew; "
            f"features of pictures and texts that are the same as before are taken over from {out / 'features'}"
        )
    facts = {"key": given.key, "rows": len(source.rows), "source": source.facts}
    replace_file(begun, json.dumps(facts, indent=2) + "\n")


def _judge(pairs: Pairs, task: Task, folder: Path) -> Verdicts:
    folder.mkdir(parents=True, exist_ok=True)
    progress = None if task.progress is None else from_nothing(task.progress)
    words = {"words": True} if task.words else {}
    return task.judge(pairs, seed=task.seed, folder=folder, progress=progress, **words)


def from_nothing(progress: Progress) -> Progress:
    """Shows each stage at nothing first: the judge speaks up only after the first piece of work."""
    seen: set[str] = set()

    def show(stage: str, done: int, total: int) -> None:
        if stage not in seen:
            seen.add(stage)
            progress(stage, 0, total)
        progress(stage, done, total)

    return show


def judge_by_cross_fitting(
    pairs: Pairs, *, seed: int, folder: Path, progress: Progress | None, words: bool = False
) -> Verdicts:
    """The verdict on each pair by models that have not seen it."""
    settings = JudgingSettings(seed=seed, word_epochs=WORD_EPOCHS if words else 0)
    return judge(pairs, settings, folder=folder, progress=progress)


def _mismatches(verdicts: Verdicts, choice: Choice) -> np.ndarray:
    if not choice.calls_any(verdicts.noise_rate):  # the data say too little: nothing is called wrong
        return np.zeros(len(verdicts), dtype=bool)
    return choice.mismatches(np.where(was_judged(verdicts), verdicts.mismatch_score, np.nan))


def find_duplicates(pairs: Pairs, has_texts: bool) -> Duplicates:
    """Near-duplicate captions and pictures among these pairs."""
    assert pairs.image_features is not None
    texts = caption_groups(pairs.texts) if has_texts else np.full(len(pairs), ALONE)
    images = np.full(pairs.num_images, ALONE)
    if pairs.num_images <= MOST_PICTURES_COMPARED:
        images = picture_groups(vectors(pairs.image_features))
    return Duplicates(texts, images[pairs.image_of_text])


def _figures(
    source: Source, judgeable: Judgeable, verdicts: Verdicts, is_mismatch: np.ndarray, table: pa.Table
) -> dict[str, Any]:
    reasons = Counter(problem.reason for problem in source.rows.problems.values())
    reasons.update(problem.reason for problem in judgeable.problems.values())
    called = verdicts.mismatch_score[is_mismatch]
    # Without a noise rate scores are ranks, and their mean says nothing of how many are wrong.
    says_how_many = verdicts.noise_rate is not None and len(called) > 0
    return {
        "pairs": len(source.rows),
        "images": source.pairs.num_images,
        "judged": int(was_judged(verdicts).sum()),
        "mismatches": int(is_mismatch.sum()),
        "expected_precision": float((1 - called).mean()) if says_how_many else None,
        "noise_rate": None if verdicts.noise_rate is None else asdict(verdicts.noise_rate),
        "note": verdicts.note,
        "problems": dict(reasons.most_common()),
        "duplicates": {kind: len(table[f"duplicate_{kind}_group"].drop_null()) for kind in ("text", "image")},
        "candidates": verdicts.candidates,
    }


def _settings(task: Task, given: Given) -> dict[str, Any]:
    extracted = {"pooled": task.encoders.pictures.description, "sentences": task.encoders.texts.description}
    return {
        "seed": task.seed,
        "picture_encoder": extracted["pooled"] if "pooled" in given.missing else "features as given",
        "text_encoder": extracted["sentences"] if "sentences" in given.missing else "features as given",
    }


@contextmanager
def _timed(seconds: dict[str, float], stage: str) -> Iterator[None]:
    started = time.monotonic()
    yield
    seconds[stage] = time.monotonic() - started

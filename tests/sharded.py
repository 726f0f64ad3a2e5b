"""Collections in shards, and plans to audit them in seconds."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from fake_encoders import FakePictures, FakeSentences
from layouts import picture_bytes, write_tar
from made_pairs import SMALL, make_pairs, vectors_of
from sremkit.audit.by_shard.engines import Work, plain
from sremkit.audit.by_shard.plan import Plan
from sremkit.audit.by_shard.shards import Shard, list_embeddings
from sremkit.audit.preparation import Encoders
from sremkit.audit.stages import Choice

SEED = 1


def write_embeddings(
    root: Path, *, num_images: int, shards: int, rate: float = 0.3, captions: int = 3, fuzz: float = 0.5
) -> tuple[tuple[Shard, ...], np.ndarray]:
    """Numbered parts of image and text vectors, and which pairs are wrong."""
    pairs, is_wrong = make_pairs(rate, num_images=num_images, captions=captions, fuzz=fuzz)
    images, texts = vectors_of(pairs)
    for name, rows in (("images", images[pairs.image_of_text]), ("texts", texts)):
        (root / name).mkdir(parents=True, exist_ok=True)
        for number, part in enumerate(np.array_split(rows, shards)):
            np.save(root / name / f"{number:03d}.npy", part)
    return list_embeddings(root / "images", root / "texts"), is_wrong


def write_picture_shard(path: Path, keys: Sequence[int]) -> Path:
    """A tar shard whose captions are as long as their pictures are bright, every seventh excepted."""
    members = []
    for k in keys:
        level = 37 * k % 200
        length = (level + 100) % 200 if k % 7 == 0 else level
        members.append((f"{k:05d}.png", picture_bytes((level, 200 - level, 90))))  # type: ignore[arg-type]
        members.append((f"{k:05d}.txt", (f"{k} " + "x" * (length + 1)).encode()))
    return write_tar(path, members)


def small_plan(out: Path, shards: Sequence[Shard], **options: Any) -> Plan:
    return Plan(
        out,
        tuple(shards),
        Encoders(FakePictures(), FakeSentences()),
        options.pop("settings", replace(SMALL, seed=SEED)),
        options.pop("choice", Choice(precision=0.95)),
        **{"workers": 0, **options},
    )


class Watched:
    """The plain engine, which writes down what it does, and breaks off after so many shards."""

    def __init__(self, breaks_after: int | None = None) -> None:
        self.done: list[tuple[str, int]] = []
        self.breaks_after = breaks_after

    def __call__(self, work: Work, plan: Plan, numbers: Sequence[int]) -> Iterator[int]:
        for number in plain(work, plan, numbers):
            self.done.append((work.__name__, number))
            yield number
            if len(self.done) == self.breaks_after:
                raise KeyboardInterrupt

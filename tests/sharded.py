"""Collections in shards, and plans to audit them in seconds."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from fake_encoders import FakeImages, FakeSentences
from layouts import image_bytes, write_tar
from made_pairs import SMALL, make_pairs, vectors_of
from sremkit.audit.embed import Encoders
from sremkit.audit.scoring.cutoff import CutoffRule
from sremkit.audit.sharded.plan import Shard, ShardPlan, list_embeddings
from sremkit.audit.sharded.run import Work, run_locally
from sremkit.audit.sharded.sample import Sample, gather, write_contribution
from sremkit.data.pairs import Pairs

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


def write_image_shard(path: Path, keys: Sequence[int]) -> Path:
    """A tar shard whose captions are as long as their images are bright, every seventh excepted."""
    members = []
    for k in keys:
        level = 37 * k % 200
        length = (level + 100) % 200 if k % 7 == 0 else level
        members.append((f"{k:05d}.png", image_bytes((level, 200 - level, 90))))  # type: ignore[arg-type]
        members.append((f"{k:05d}.txt", (f"{k} " + "x" * (length + 1)).encode()))
    return write_tar(path, members)


def small_plan(out: Path, shards: Sequence[Shard], **options: Any) -> ShardPlan:
    return ShardPlan(
        out,
        tuple(shards),
        Encoders(FakeImages(), FakeSentences()),
        options.pop("settings", replace(SMALL, seed=SEED)),
        options.pop("cutoff", CutoffRule(precision=0.95)),
        **{"workers": 0, **options},
    )


class Watched:
    """The plain engine, which writes down what it does, and breaks off after so many shards."""

    def __init__(self, breaks_after: int | None = None) -> None:
        self.done: list[tuple[str, int]] = []
        self.breaks_after = breaks_after

    def __call__(self, work: Work, plan: ShardPlan, numbers: Sequence[int]) -> Iterator[int]:
        for number in run_locally(work, plan, numbers):
            self.done.append((work.__name__, number))
            yield number
            if len(self.done) == self.breaks_after:
                raise KeyboardInterrupt


def draw_sample(folder: Path, pairs: Pairs, *, shards: int, sample: int, seed: int = 0) -> Sample:
    """The sample of pairs that are spread over so many shards."""
    some = [Shard(str(k), Path(__file__)) for k in range(shards)]  # any file that exists
    settings = replace(SMALL, seed=seed)
    plan = small_plan(folder / f"{shards}-{sample}-{seed}", some, max_train_pairs=sample, settings=settings)
    for number, rows in enumerate(np.array_split(np.arange(len(pairs)), shards)):
        write_contribution(plan.folder(number) / "sample", pairs.select(rows), plan.shard_sample, seed=seed)
    return gather(plan)

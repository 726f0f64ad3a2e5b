"""Prefetching changes nothing but the time at which batches are read."""

from __future__ import annotations

import threading
import time
from dataclasses import fields
from pathlib import Path

import numpy as np
import pytest
import torch

from data.test_batches import Letters, make_pairs
from sremkit.data.batch import Batch
from sremkit.data.batches import Batches
from sremkit.data.features import ArrayFeatures, MappedFeatures
from sremkit.data.pairs import FeatureSource, Pairs
from sremkit.data.prefetch import StagingBuffer, prefetch
from sremkit.errors import DataError


def make_batches(source: FeatureSource | None = None, **options) -> Batches:
    pairs = make_pairs()
    if source is not None:
        pairs = Pairs(**{**vars(pairs), "image_features": source})
    return Batches(pairs, **{"batch_size": 8, "vocabulary": Letters(), "seed": 1, **options})


def reading_threads() -> list[str]:
    return [thread.name for thread in threading.enumerate() if thread.name.startswith("prefetch")]


def assert_equal(one: Batch, other: Batch) -> None:
    for field in fields(one):
        x, y = getattr(one, field.name), getattr(other, field.name)
        if isinstance(x, torch.Tensor):
            assert x.dtype == y.dtype, field.name
            assert torch.equal(x, y), field.name
        else:
            assert x == y, field.name


def stored(kind: str, folder: Path) -> FeatureSource:
    """The same kind of numbers in each way that they are kept."""
    values = np.random.default_rng(2).normal(size=(12, 3, 4))
    if kind == "another source":
        return Counting(ArrayFeatures(values.astype(np.float32)))
    if kind.startswith("int8"):
        scale = np.linspace(0.1, 0.7, 4).astype(np.float64 if "exact" in kind else np.float32)
        return ArrayFeatures((30 * values).astype(np.int8), scale=scale)
    if kind == "scaled float32":
        return ArrayFeatures(values.astype(np.float32), scale=np.linspace(0.1, 0.7, 4, dtype=np.float32))
    np.save(folder / "features.npy", values.astype(kind))
    return MappedFeatures(folder / "features.npy", row_of_item=np.arange(12)[::-1].copy())


KINDS = [
    "float32",
    "float16",
    "float64",
    "int8",
    "int8 of an exact scale",
    "scaled float32",
    "another source",
]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("threads", [1, 3])
@pytest.mark.parametrize("staged", [True, False], ids=["staged", "fresh memory"])
def test_prefetching_yields_the_same_batches_in_the_same_order(
    kind: str, threads: int, staged: bool, tmp_path: Path
) -> None:
    batches = make_batches(stored(kind, tmp_path), unique_images=True)
    expected = list(batches.epoch(3))
    stream = prefetch(batches, batches.own_order(3), "cpu", threads=threads, staged=staged)
    found = list(stream)  # all are held at a time, so no two may share memory
    assert len(found) == len(expected) > 6
    for one, other in zip(found, expected, strict=True):
        assert one.images.dtype == torch.float32
        assert_equal(one, other)


def test_resuming_in_the_middle_gives_the_same_batches() -> None:
    batches = make_batches(shard=(1, 2))
    whole = list(batches.epoch(4))
    for one, other in zip(prefetch(batches, batches.own_order(4, start=3), "cpu", threads=2), whole[3:], strict=True):
        assert_equal(one, other)


@pytest.mark.parametrize("threads", [0, None, 2])
def test_batches_are_equal_with_and_without_threads(threads: int | None) -> None:
    batches = make_batches()
    expected = list(batches.epoch(0))
    for one, other in zip(prefetch(batches, batches.own_order(0), "cpu", threads=threads), expected, strict=True):
        assert_equal(one, other)
        if threads is None:
            assert reading_threads() == []  # workers=0: nothing is read ahead on a CPU


def test_an_error_is_raised_in_the_place_of_its_batch() -> None:
    options = {"batch_size": 5, "vocabulary": Letters(), "shuffle": False}
    batches = Batches(make_pairs(bad_image=3), **options)  # five captions an image: batch 3 is the bad one
    seen = []
    stream = prefetch(batches, batches.own_order(0), "cpu", threads=4)
    with pytest.raises(DataError, match="row 3"):
        seen.extend(batch.image_id[0].item() for batch in stream)
    assert seen == [0, 1, 2]
    assert reading_threads() == []


def test_closing_early_leaves_no_thread() -> None:
    stream = prefetch(make_batches(), make_batches().own_order(0), "cpu", threads=3)
    assert reading_threads() == []  # none before the first batch is asked for
    next(stream)
    assert reading_threads()
    stream.close()
    assert reading_threads() == []
    for _ in prefetch(make_batches(), make_batches().own_order(0), "cpu", threads=3):
        break
    assert reading_threads() == []


def test_an_error_of_the_consumer_leaves_no_thread() -> None:
    def train() -> None:
        for _ in prefetch(make_batches(), make_batches().own_order(0), "cpu", threads=3):
            assert reading_threads()
            raise RuntimeError("diverged")

    with pytest.raises(RuntimeError, match="diverged") as caught:
        train()
    assert caught.value.__traceback__ is not None  # which holds the frame that was left
    assert reading_threads() == []


class Counting:
    """Notes how many rows were asked for at a time."""

    def __init__(self, source: ArrayFeatures) -> None:
        self.source, self.asked = source, 0

    @property
    def dim(self) -> int:
        return self.source.dim

    def __len__(self) -> int:
        return len(self.source)

    def rows(self, indices: np.ndarray):
        self.asked += 1
        return self.source.rows(indices)


def test_no_more_batches_than_threads_and_one_are_in_flight() -> None:
    counting = Counting(make_pairs().image_features)
    batches = make_batches(counting, batch_size=2)
    stream = prefetch(batches, batches.own_order(0), "cpu", threads=2)
    next(stream)
    stream.close()
    # Three at a time, and one more in whose slot the first, already handed out, had been.
    assert 1 <= counting.asked <= 4


def test_reading_releases_the_gil(tmp_path: Path) -> None:
    """Or else threads that read would stop the one that trains."""
    np.save(tmp_path / "features.npy", np.ones((64, 1 << 18), dtype=np.float32))
    mapped, memory = MappedFeatures(tmp_path / "features.npy"), np.empty((256, 1 << 18), dtype=np.float32)
    reader = threading.Thread(target=lambda: mapped.raw_rows(np.arange(256) % 64, lambda *_: memory))
    reader.start()
    turns = 0
    while reader.is_alive():
        turns += 1
        time.sleep(0)
    # 256 MB take tens of milliseconds; a reader that held the lock all the time would let nobody turn.
    assert turns > 50


def test_a_buffer_is_reused_and_grows() -> None:
    buffer = StagingBuffer(pinned=False)
    first = buffer.allocate((4, 3), np.dtype("float32"))
    first[:] = 1.0
    assert buffer.allocate((2, 3), np.dtype("float16")).ctypes.data == first.ctypes.data
    assert buffer.allocate((9, 3), np.dtype("float32")).shape == (9, 3)
    assert first.sum() == 12  # what was handed out before stays alive


def test_rows_beyond_the_file_are_refused(tmp_path: Path) -> None:
    np.save(tmp_path / "features.npy", np.zeros((3, 2), dtype=np.float32))
    mapped = MappedFeatures(tmp_path / "features.npy")
    for rows in ([0, 3], [-1, 1]):
        with pytest.raises(IndexError, match="of 3"):
            mapped.raw_rows(np.array(rows), np.empty)
    assert mapped.raw_rows(np.array([2, 0]), np.empty).values.tolist() == [[0, 0], [0, 0]]


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("dtype", ["float16", "float32"])
def test_non_finite_features_are_reported_before_the_copy(bad: float, dtype: str, tmp_path: Path) -> None:
    values = np.full((3, 2, 5), -60000 if dtype == "float16" else 3e38, dtype=dtype)  # whose sum overflows
    np.save(tmp_path / "features.npy", values)
    mapped = MappedFeatures(tmp_path / "features.npy")
    assert mapped.raw_rows(np.array([0, 1, 2]), np.empty).values.dtype == dtype
    values[1, 0, 3] = bad
    np.save(tmp_path / "features.npy", values)
    with pytest.raises(DataError, match="row 1: the features hold NaN or infinite values"):
        MappedFeatures(tmp_path / "features.npy").raw_rows(np.array([2, 1]), np.empty)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no CUDA device")
@pytest.mark.parametrize("kind", KINDS)
def test_batches_on_a_device_are_equal(kind: str, tmp_path: Path) -> None:
    batches = make_batches(stored(kind, tmp_path))
    for _ in range(3):  # memory is used again and again
        for one, other in zip(prefetch(batches, batches.own_order(0), "cuda"), batches.epoch(0), strict=True):
            assert one.images.is_cuda
            assert_equal(one.to("cpu"), other)

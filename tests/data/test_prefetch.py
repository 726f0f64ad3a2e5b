"""Reading ahead changes nothing but the time at which something is read."""

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
from sremkit.data.features import ArrayFeatures, MappedFeatures, RaggedFeatures
from sremkit.data.pairs import FeatureSource, Pairs
from sremkit.data.prefetch import Slot, prefetched
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
    if kind == "ragged":
        starts = np.arange(13) * 3
        return RaggedFeatures(values.reshape(36, 4).astype(np.float32), starts)
    if kind.startswith("int8"):
        scale = np.linspace(0.1, 0.7, 4).astype(np.float64 if "exact" in kind else np.float32)
        return ArrayFeatures((30 * values).astype(np.int8), scale=scale)
    if kind == "scaled float32":
        return ArrayFeatures(values.astype(np.float32), scale=np.linspace(0.1, 0.7, 4, dtype=np.float32))
    np.save(folder / "features.npy", values.astype(kind))
    return MappedFeatures(folder / "features.npy", row_of_item=np.arange(12)[::-1].copy())


KINDS = ["float32", "float16", "float64", "int8", "int8 of an exact scale", "scaled float32", "ragged"]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("threads", [1, 3])
@pytest.mark.parametrize("keep_memory", [True, False], ids=["memory kept", "fresh memory"])
def test_the_same_batches_come_in_the_same_order(
    kind: str, threads: int, keep_memory: bool, tmp_path: Path
) -> None:
    batches = make_batches(stored(kind, tmp_path), unique_images=True)
    expected = list(batches.epoch(3))
    stream = prefetched(batches, 3, "cpu", threads=threads, keep_memory=keep_memory)
    found = list(stream)  # all are held at a time, so no two may share memory
    assert len(found) == len(expected) > 6
    for one, other in zip(found, expected, strict=True):
        assert one.images.dtype == torch.float32
        assert_equal(one, other)


def test_going_on_in_the_middle_gives_the_same_batches() -> None:
    batches = make_batches(shard=(1, 2))
    whole = list(batches.epoch(4))
    for one, other in zip(prefetched(batches, 4, "cpu", start=3, threads=2), whole[3:], strict=True):
        assert_equal(one, other)


@pytest.mark.parametrize("threads", [0, None, 2])
def test_with_and_without_threads_and_in_memory_of_its_own(threads: int | None) -> None:
    batches = make_batches()
    expected = list(batches.epoch(0))
    for one, other in zip(prefetched(batches, 0, "cpu", threads=threads), expected, strict=True):
        assert_equal(one, other)
        if threads is None:
            assert reading_threads() == []  # workers=0: nothing is read ahead on a CPU


def test_an_error_comes_where_its_batch_would_have_come() -> None:
    options = {"batch_size": 5, "vocabulary": Letters(), "shuffle": False}
    batches = Batches(make_pairs(bad_image=3), **options)  # five captions an image: batch 3 is the bad one
    seen = []
    stream = prefetched(batches, 0, "cpu", threads=4, ahead=7)
    with pytest.raises(DataError, match="row 3"):
        seen.extend(batch.image_id[0].item() for batch in stream)
    assert seen == [0, 1, 2]
    assert reading_threads() == []


def test_pairs_that_cannot_be_read_are_skipped_and_named_as_ever() -> None:
    batches = Batches(make_pairs(bad_image=2), batch_size=16, vocabulary=Letters(), on_error="skip")
    stream = prefetched(batches, 0, "cpu", threads=2, keep_memory=True)
    found, expected = list(stream), list(batches.epoch(0))
    assert sum(len(batch.skipped) for batch in found) == 5
    for one, other in zip(found, expected, strict=True):
        assert_equal(one, other)


def test_leaving_early_leaves_no_thread_behind() -> None:
    stream = prefetched(make_batches(), 0, "cpu", threads=3)
    assert reading_threads() == []  # none before the first batch is asked for
    next(stream)
    assert reading_threads()
    stream.close()
    assert reading_threads() == []
    for _ in prefetched(make_batches(), 0, "cpu", threads=3):
        break
    assert reading_threads() == []


def test_an_error_of_the_one_who_uses_the_batches_leaves_no_thread_behind_either() -> None:
    def train() -> None:
        for _ in prefetched(make_batches(), 0, "cpu", threads=3):
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


def test_no_more_is_read_ahead_than_was_said() -> None:
    counting = Counting(make_pairs().image_features)
    stream = prefetched(make_batches(counting, batch_size=2), 0, "cpu", threads=2, ahead=3)
    next(stream)
    stream.close()
    # Three at a time, and one more in whose slot the first, already handed out, had been.
    assert 1 <= counting.asked <= 4


def test_reading_does_not_hold_the_interpreter(tmp_path: Path) -> None:
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


def test_memory_is_used_again_and_grows_when_it_must() -> None:
    slot = Slot(pinned=False)
    first = slot.place((4, 3), np.dtype("float32"))
    first[:] = 1.0
    assert slot.place((2, 3), np.dtype("float16")).ctypes.data == first.ctypes.data
    assert slot.place((9, 3), np.dtype("float32")).shape == (9, 3)
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
def test_what_is_not_finite_is_named_before_it_travels(bad: float, dtype: str, tmp_path: Path) -> None:
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
def test_on_a_device_the_same_numbers_arrive(kind: str, tmp_path: Path) -> None:
    batches = make_batches(stored(kind, tmp_path))
    for _ in range(3):  # memory is used again and again
        for one, other in zip(prefetched(batches, 0, "cuda"), batches.epoch(0), strict=True):
            assert one.images.is_cuda
            assert_equal(one.to("cpu"), other)

"""The order of pairs: complete, seeded, resumable, and without repeated images on request."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sremkit.data.batches import batch_order


def test_every_pair_is_visited_once() -> None:
    batches = batch_order(1003, 64, seed=1, epoch=0)
    assert [len(batch) for batch in batches] == [64] * 15 + [43]
    assert sorted(np.concatenate(batches)) == list(range(1003))


def test_the_order_depends_on_seed_and_epoch_alone() -> None:
    def visits(seed: int, epoch: int) -> list[int]:
        return np.concatenate(batch_order(500, 64, seed=seed, epoch=epoch)).tolist()

    assert visits(3, 7) == visits(3, 7)
    assert visits(3, 7) != visits(3, 8)
    assert visits(3, 7) != visits(4, 7)
    assert visits(0, 1) != visits(1, 0)  # seed and epoch are not simply added


def test_without_shuffling_the_order_is_the_files() -> None:
    assert np.concatenate(batch_order(10, 4, seed=0, epoch=5, shuffle=False)).tolist() == list(range(10))


def test_drop_last_leaves_only_full_batches() -> None:
    assert {len(batch) for batch in batch_order(100, 32, seed=0, epoch=0, drop_last=True)} == {32}


def test_buckets_group_similar_lengths_and_keep_every_pair() -> None:
    lengths = np.random.default_rng(0).integers(5, 60, size=6400)
    plain = batch_order(6400, 64, seed=0, epoch=0)
    bucketed = batch_order(6400, 64, seed=0, epoch=0, lengths=lengths)

    def padding(batches: list[np.ndarray]) -> int:
        return sum(int(lengths[b].max() * len(b) - lengths[b].sum()) for b in batches)

    assert sorted(np.concatenate(bucketed)) == list(range(6400))
    assert padding(bucketed) < 0.2 * padding(plain)
    longest = [int(lengths[batch].max()) for batch in bucketed]
    assert longest != sorted(longest)  # the batches themselves come in random order


@given(
    captions=st.lists(st.integers(1, 12), min_size=1, max_size=40),
    batch_size=st.integers(1, 20),
    seed=st.integers(0, 5),
)
def test_no_image_appears_twice_in_a_batch_and_every_pair_once(captions, batch_size, seed) -> None:
    image_of_text = np.repeat(np.arange(len(captions)), captions)
    batches = batch_order(len(image_of_text), batch_size, seed=seed, epoch=0, image_of_text=image_of_text)
    assert sorted(np.concatenate(batches)) == list(range(len(image_of_text)))
    for batch in batches:
        assert len(set(image_of_text[batch])) == len(batch) <= batch_size


def test_unique_images_hardly_change_the_number_of_batches() -> None:
    image_of_text = np.repeat(np.arange(600), 5)
    batches = batch_order(3000, 128, seed=0, epoch=0, image_of_text=image_of_text)
    assert len(batches) <= 24 + 1  # 3000 / 128 = 23.4


def test_one_image_with_very_many_captions_takes_no_quadratic_time() -> None:
    image_of_text = np.zeros(20_000, dtype=np.int64)
    assert len(batch_order(20_000, 128, seed=0, epoch=0, image_of_text=image_of_text)) == 20_000


def test_a_batch_size_of_zero_is_refused() -> None:
    with pytest.raises(ValueError, match="batch_size must be at least 1, got 0"):
        batch_order(10, 0, seed=0, epoch=0)

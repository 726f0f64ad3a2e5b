"""Batches: correct rows and masks, the same after any interruption and in any process."""

from __future__ import annotations

import pickle

import numpy as np
import pytest
import torch

from sremkit.data.batches import Batches, WordIds
from sremkit.data.features import ArrayFeatures
from sremkit.data.pairs import Pairs
from sremkit.errors import DataError


class Letters:
    """A vocabulary in which every letter is a word."""

    def encode(self, text: str) -> list[int]:
        return [ord(letter) - ord("a") + 1 for letter in text]


def make_pairs(num_images: int = 12, captions: int = 5, *, bad_image: int | None = None) -> Pairs:
    rng = np.random.default_rng(0)
    num_texts = num_images * captions
    features = rng.normal(size=(num_images, 3, 4)).astype(np.float32)
    if bad_image is not None:
        features[bad_image, 0, 0] = np.nan
    return Pairs(
        name="letters",
        split="train",
        pair_ids=[f"p{k}" for k in range(num_texts)],
        texts=["".join(rng.choice(list("abcdef"), size=rng.integers(1, 9))) for _ in range(num_texts)],
        image_of_text=np.repeat(np.arange(num_images), captions),
        image_ids=[f"i{k}" for k in range(num_images)],
        image_features=ArrayFeatures(features),
        text_features=ArrayFeatures(rng.normal(size=(num_texts, 2)).astype(np.float32)),
    )


def test_a_batch_holds_the_rows_of_its_pair_ids() -> None:
    pairs = make_pairs()
    for batch in Batches(pairs, batch_size=7, vocabulary=Letters(), seed=3).epoch(2):
        for k, pair in enumerate(batch.pair_id.tolist()):
            image = pairs.image_of_text[pair]
            assert batch.image_id[k] == image
            assert torch.equal(batch.images[k], torch.from_numpy(pairs.image_features.array[image]))
            assert batch.words[k][batch.word_mask[k]].tolist() == Letters().encode(pairs.texts[pair])
            assert torch.equal(batch.sentences[k], torch.from_numpy(pairs.text_features.array[pair]))
        assert (batch.words[~batch.word_mask] == 0).all()
        assert batch.word_mask.any(0)[-1]  # padded to the longest and no further


def test_resuming_in_the_middle_gives_the_same_batches() -> None:
    batches = Batches(make_pairs(), batch_size=8, vocabulary=Letters(), seed=1)
    whole = [batch.pair_id.tolist() for batch in batches.epoch(4)]
    assert [batch.pair_id.tolist() for batch in batches.epoch(4, start=3)] == whole[3:]


def test_batches_are_the_same_in_another_process() -> None:
    options = dict(batch_size=8, vocabulary=Letters(), seed=1, bucket_by_length=True, unique_images=True)
    batches = Batches(make_pairs(), **options)
    expected, found = list(batches.epoch(0)), list(pickle.loads(pickle.dumps(batches)).epoch(0))
    assert len(expected) == len(found) > 3
    for one, other in zip(expected, found, strict=True):
        assert torch.equal(one.pair_id, other.pair_id)
        assert torch.equal(one.images, other.images)
        assert torch.equal(one.words, other.words)


def test_iterating_leaves_the_global_generator_alone() -> None:
    batches = Batches(make_pairs(), batch_size=8, vocabulary=Letters())
    before = torch.get_rng_state()
    list(batches.epoch(0))
    assert torch.equal(before, torch.get_rng_state())


def test_unreadable_pairs_are_an_error() -> None:
    with pytest.raises(DataError, match="row 2"):
        list(Batches(make_pairs(bad_image=2), batch_size=16, vocabulary=Letters()).epoch(0))


def test_images_can_be_taken_alone() -> None:
    pairs = make_pairs()
    batch = Batches(pairs, batch_size=4, vocabulary=Letters()).take_images(np.array([3, 1]))
    assert batch.image_id.tolist() == [3, 1]
    assert torch.equal(batch.images, torch.from_numpy(pairs.image_features.array[[3, 1]]))
    assert batch.words is None


def test_a_batch_moves_slices_and_counts_as_one() -> None:
    batch = Batches(make_pairs(), batch_size=6, vocabulary=Letters()).take(np.arange(6))
    part = batch.to("cpu")[2:4]
    assert len(part) == 2
    assert part.pair_id.tolist() == [2, 3]
    assert part.images.shape == (2, 3, 4)


def test_no_field_of_a_batch_reveals_the_truth() -> None:
    batch = Batches(make_pairs(), batch_size=6, vocabulary=Letters()).take(np.arange(6))
    assert set(vars(batch)) == {
        "pair_id", "image_id", "images", "region_mask", "words", "word_mask", "sentences", "max_total_words",
    }  # fmt: skip


def test_a_batch_bounds_its_number_of_words() -> None:
    pairs = make_pairs()
    rows = np.array([3, 0, 7])
    batch = Batches(pairs, batch_size=4, vocabulary=Letters()).take(rows)
    assert batch.max_total_words == sum(len(pairs.texts[row]) for row in rows)
    # The captions of right and of wrong pairs are the same ones, and so is their number of words.
    wrong = pairs.paired_as(np.roll(pairs.image_of_text, 5))
    assert Batches(wrong, batch_size=4, vocabulary=Letters()).take(rows).max_total_words == batch.max_total_words
    assert batch[:1].max_total_words >= int(batch[:1].word_mask.sum())  # of a part it is a bound
    assert Batches(pairs, batch_size=4).take(rows).max_total_words is None  # vectors in the place of words


def test_texts_need_words_or_vectors() -> None:
    pairs = make_pairs()
    wordless = Pairs(**{**vars(pairs), "text_features": None})
    with pytest.raises(DataError, match="need a vocabulary"):
        Batches(wordless, batch_size=4)
    with pytest.raises(ValueError, match="counts words"):
        Batches(pairs, batch_size=4, bucket_by_length=True)


def test_a_text_without_words_is_named() -> None:
    with pytest.raises(DataError, match="text 1 has no words"):
        WordIds(["ab", "", "c"], Letters())

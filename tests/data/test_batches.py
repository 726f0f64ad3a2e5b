"""Batches: the right rows with the right masks, the same after any interruption, in any process."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from sremkit.data.batches import Batches, WordNumbers
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


def test_a_batch_holds_what_its_pair_ids_say() -> None:
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


def test_going_on_in_the_middle_gives_the_same_batches() -> None:
    batches = Batches(make_pairs(), batch_size=8, vocabulary=Letters(), seed=1)
    whole = [batch.pair_id.tolist() for batch in batches.epoch(4)]
    assert [batch.pair_id.tolist() for batch in batches.epoch(4, start=3)] == whole[3:]


def test_worker_processes_change_nothing() -> None:
    options = dict(batch_size=8, vocabulary=Letters(), seed=1, bucket_by_length=True, unique_images=True)
    alone = list(Batches(make_pairs(), **options).epoch(0))
    helped = list(Batches(make_pairs(), workers=2, **options).epoch(0))
    assert len(alone) == len(helped) > 3
    for one, other in zip(alone, helped, strict=True):
        assert torch.equal(one.pair_id, other.pair_id)
        assert torch.equal(one.images, other.images)
        assert torch.equal(one.words, other.words)


def test_iterating_leaves_the_global_generator_alone() -> None:
    batches = Batches(make_pairs(), batch_size=8, vocabulary=Letters(), workers=1)
    before = torch.get_rng_state()
    list(batches.epoch(0))
    assert torch.equal(before, torch.get_rng_state())


def test_unreadable_pairs_are_skipped_and_named_on_request() -> None:
    pairs = make_pairs(bad_image=2)
    batches = list(Batches(pairs, batch_size=16, vocabulary=Letters(), on_error="skip").epoch(0))
    assert sum(len(batch) for batch in batches) == len(pairs) - 5
    skipped = [sentence for batch in batches for sentence in batch.skipped]
    assert len(skipped) == 5
    assert all("row 2" in sentence and sentence.startswith("pair p1") for sentence in skipped)


def test_unreadable_pairs_are_an_error_by_default() -> None:
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


def test_no_field_of_a_batch_tells_the_truth() -> None:
    batch = Batches(make_pairs(), batch_size=6, vocabulary=Letters()).take(np.arange(6))
    assert set(vars(batch)) == {
        "pair_id", "image_id", "images", "region_mask", "words", "word_mask", "sentences", "most_words", "skipped",
    }  # fmt: skip


def test_a_batch_says_how_many_words_it_holds() -> None:
    pairs = make_pairs()
    rows = np.array([3, 0, 7])
    batch = Batches(pairs, batch_size=4, vocabulary=Letters()).take(rows)
    assert batch.most_words == sum(len(pairs.texts[row]) for row in rows)
    # The captions of right and of wrong pairs are the same ones, and so is their number of words.
    wrong = pairs.paired_as(np.roll(pairs.image_of_text, 5))
    assert Batches(wrong, batch_size=4, vocabulary=Letters()).take(rows).most_words == batch.most_words
    assert batch[:1].most_words >= int(batch[:1].word_mask.sum())  # of a part it is a bound
    assert Batches(pairs, batch_size=4).take(rows).most_words is None  # vectors in the place of words


def test_texts_need_words_or_vectors() -> None:
    pairs = make_pairs()
    wordless = Pairs(**{**vars(pairs), "text_features": None})
    with pytest.raises(DataError, match="need a vocabulary"):
        Batches(wordless, batch_size=4)
    with pytest.raises(ValueError, match="counts words"):
        Batches(pairs, batch_size=4, bucket_by_length=True)


def test_a_text_without_words_is_named() -> None:
    with pytest.raises(DataError, match="text 1 gives no words"):
        WordNumbers(["ab", "", "c"], Letters())

"""Injected noise: both protocols, both published file formats, and the truth."""

from __future__ import annotations

import hashlib
import os
import re
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sremkit.data.noise import inspect_noise, load_noise, make_noise, save_noise
from sremkit.data.pairs import Pairs
from sremkit.errors import DataError

DATA = Path(os.environ.get("SREMKIT_DATA", Path(__file__).parents[3] / "shared" / "data"))
PUBLISHED = DATA / "published"
published = [
    pytest.mark.data,
    pytest.mark.skipif(not PUBLISHED.is_dir(), reason=f"no published index files in {PUBLISHED}"),
]
FIVE_EACH = np.repeat(np.arange(200), 5)
UNEVEN = np.array([4, 0, 0, 7, 4, 4, 2, 2, 9, 9, 9, 9, 5])  # any order, gaps, one to four captions an image

thorough = settings(max_examples=100, deadline=None, derandomize=True)
mappings = st.lists(st.integers(0, 12), min_size=1, max_size=40).map(np.array)
rates = st.floats(0, 1)
protocols = st.sampled_from(["caption", "image"])


@thorough
@given(mappings, rates, protocols, st.integers(0, 1000))
def test_noise_holds_the_truth_and_does_not_change_its_input(mapping, rate, protocol, seed) -> None:
    before = mapping.copy()
    noise = make_noise(mapping, rate, protocol, seed)
    np.testing.assert_array_equal(mapping, before)
    np.testing.assert_array_equal(noise.is_noisy, noise.image_of_text != before)
    assert noise.rate == noise.is_noisy.mean()
    assert (noise.protocol, noise.seed) == (protocol, seed)
    assert noise.image_of_text.dtype == np.int64


@thorough
@given(mappings, rates, st.integers(0, 1000))
def test_noise_per_caption_keeps_the_multiset_and_never_exceeds_the_rate(mapping, rate, seed) -> None:
    noise = make_noise(mapping, rate, "caption", seed)
    np.testing.assert_array_equal(np.sort(noise.image_of_text), np.sort(mapping))
    assert noise.is_noisy.sum() <= rate * len(mapping) + 1e-6


@thorough
@given(mappings, rates, st.integers(0, 1000))
def test_noise_per_image_moves_the_captions_of_an_image_together(mapping, rate, seed) -> None:
    noise = make_noise(mapping, rate, "image", seed)
    images = np.unique(mapping)
    went_to = [np.unique(noise.image_of_text[mapping == image]) for image in images]
    assert [len(target) for target in went_to] == [1] * len(images)
    assert sorted(int(target[0]) for target in went_to) == images.tolist()
    moved = sum(int(target[0]) != image for target, image in zip(went_to, images, strict=True))
    assert moved <= rate * len(images) + 1e-6


@pytest.mark.parametrize("protocol", ["caption", "image"])
def test_the_seed_decides_the_noise(protocol) -> None:
    first = make_noise(FIVE_EACH, 0.4, protocol, seed=3)
    again = make_noise(FIVE_EACH, 0.4, protocol, seed=3)
    other = make_noise(FIVE_EACH, 0.4, protocol, seed=4)
    np.testing.assert_array_equal(first.image_of_text, again.image_of_text)
    assert first.hash == again.hash != other.hash


def test_the_global_generator_plays_no_part() -> None:
    np.random.seed(1)
    first = make_noise(FIVE_EACH, seed=0)
    np.random.seed(2)
    assert make_noise(FIVE_EACH, seed=0).hash == first.hash


@pytest.mark.parametrize("protocol", ["caption", "image"])
def test_rate_zero_moves_nothing_and_rate_one_nearly_everything(protocol) -> None:
    np.testing.assert_array_equal(make_noise(FIVE_EACH, 0.0, protocol).image_of_text, FIVE_EACH)
    assert make_noise(FIVE_EACH, 1.0, protocol).rate > 0.95


def test_the_number_of_chosen_captions_does_not_suffer_from_rounding() -> None:
    # 0.29 * 100 is 28.999999999999996: rounding that down would choose 28. With distinct images the number of
    # chosen captions shows up as the largest number of moved ones over many seeds.
    assert int(0.29 * 100) == 28
    moved = [make_noise(np.arange(100), 0.29, seed=seed).is_noisy.sum() for seed in range(30)]
    assert max(moved) == 29


def test_the_protocols_differ_in_how_many_images_lose_all_captions() -> None:
    # Per caption an image of five loses all with 0.4^5 = 1 %, per image with 40 %.
    def share_all_wrong(protocol) -> float:
        return make_noise(np.repeat(np.arange(4000), 5), 0.4, protocol).is_noisy.reshape(-1, 5).all(1).mean()

    assert 0.005 < share_all_wrong("caption") < 0.02
    assert 0.39 < share_all_wrong("image") <= 0.40


def test_a_small_permutation_realises_less_than_was_requested() -> None:
    # Two chosen captions are exchanged or not, each half of the time: "two are wrong" would be a false claim.
    moved = {int(make_noise(np.arange(4), 0.5, seed=seed).is_noisy.sum()) for seed in range(20)}
    assert moved == {0, 2}


def test_the_hash_is_the_beginning_of_the_sha256_of_little_endian_int64() -> None:
    noise = make_noise(UNEVEN, 0.5)
    raw = b"".join(int(image).to_bytes(8, "little") for image in noise.image_of_text)
    assert noise.hash == hashlib.sha256(raw).hexdigest()[:16]


def test_training_is_given_the_pairing_and_not_the_truth() -> None:
    texts = [f"text {k}" for k in range(len(UNEVEN))]
    pairs = Pairs("toy", "train", texts, texts, UNEVEN, [str(k) for k in range(10)])
    noise = make_noise(UNEVEN, 0.8)
    noisy = pairs.paired_as(noise.image_of_text)
    np.testing.assert_array_equal(noisy.image_of_text, noise.image_of_text)
    assert not any("nois" in name for name in vars(noisy))


@pytest.mark.parametrize("mapping", [FIVE_EACH, UNEVEN], ids=["five each", "uneven"])
@pytest.mark.parametrize("protocol", ["caption", "image"])
def test_saved_noise_is_loaded_unchanged(tmp_path, protocol, mapping) -> None:
    noise = make_noise(mapping, 0.8, protocol, seed=5)
    save_noise(noise, tmp_path / "index")  # the name stays as given, without .npy
    stored = np.load(tmp_path / "index")
    assert (stored.dtype, len(stored)) == (
        np.int64,
        len(mapping) if protocol == "caption" else mapping.max() + 1,
    )
    loaded = load_noise(tmp_path / "index", mapping)
    np.testing.assert_array_equal(loaded.image_of_text, noise.image_of_text)
    np.testing.assert_array_equal(loaded.is_noisy, noise.is_noisy)
    assert (loaded.protocol, loaded.rate, loaded.hash) == (protocol, noise.rate, noise.hash)
    assert loaded.seed is None


def test_a_file_per_image_gives_caption_j_the_image_at_j_over_five(tmp_path) -> None:
    index = np.random.default_rng(0).permutation(200)
    np.save(tmp_path / "index.npy", index)
    loaded = load_noise(tmp_path / "index.npy", FIVE_EACH)
    assert loaded.image_of_text.tolist() == [index[j // 5] for j in range(1000)]
    assert loaded.protocol == "image"


def test_per_image_noise_in_a_file_per_caption_is_recognised_and_keeps_its_hash(tmp_path) -> None:
    noise = make_noise(FIVE_EACH, 0.4, "image")
    save_noise(noise, tmp_path / "per_image.npy")
    save_noise(noise, tmp_path / "per_caption.npy", format="caption")
    assert len(np.load(tmp_path / "per_caption.npy")) == 1000
    loaded = load_noise(tmp_path / "per_caption.npy", FIVE_EACH)
    assert (loaded.protocol, loaded.hash) == ("image", noise.hash)
    assert load_noise(tmp_path / "per_image.npy", FIVE_EACH).hash == noise.hash
    save_noise(loaded, tmp_path / "again.npy")
    assert (tmp_path / "again.npy").read_bytes() == (tmp_path / "per_image.npy").read_bytes()


def test_captions_that_move_together_onto_one_image_are_not_per_image_noise(tmp_path) -> None:
    np.save(tmp_path / "index.npy", np.array([1, 1, 1, 1]))  # both images' captions are given with image 1
    assert load_noise(tmp_path / "index.npy", np.array([0, 0, 1, 1])).protocol == "caption"


def test_a_file_that_moves_nothing_keeps_the_protocol_of_its_format(tmp_path) -> None:
    np.save(tmp_path / "caption.npy", FIVE_EACH)
    np.save(tmp_path / "image.npy", np.arange(200))
    assert load_noise(tmp_path / "caption.npy", FIVE_EACH).protocol == "caption"
    assert load_noise(tmp_path / "image.npy", FIVE_EACH).protocol == "image"


def test_with_one_caption_an_image_both_formats_are_one(tmp_path) -> None:
    noise = make_noise(np.arange(50), 0.6, "caption")
    save_noise(noise, tmp_path / "index.npy")
    loaded = load_noise(tmp_path / "index.npy", np.arange(50))
    assert (loaded.protocol, loaded.hash) == ("caption", noise.hash)


def test_a_length_that_fits_both_formats_must_be_explained(tmp_path) -> None:
    truth = np.array([2, 0, 1])
    np.save(tmp_path / "index.npy", np.array([2, 0, 1]))
    with pytest.raises(DataError, match="as many images as captions"):
        load_noise(tmp_path / "index.npy", truth)
    assert load_noise(tmp_path / "index.npy", truth, format="caption").image_of_text.tolist() == [2, 0, 1]
    assert load_noise(tmp_path / "index.npy", truth, format="image").image_of_text.tolist() == [1, 2, 0]
    assert inspect_noise(tmp_path / "index.npy", image_of_text=truth, format="caption").captions_moved == 0
    assert inspect_noise(tmp_path / "index.npy", image_of_text=truth, format="image").captions_moved == 3


@pytest.mark.parametrize("protocol", ["caption", "image"])
def test_with_as_many_captions_as_images_the_numbers_determine_the_format_if_possible(tmp_path, protocol) -> None:
    truth = np.array([4, 0, 4, 2, 2])  # five captions, and image numbers up to 4 with gaps
    noise = make_noise(truth, 1.0, protocol, seed=1)
    assert noise.is_noisy.any()
    save_noise(noise, tmp_path / "index.npy")
    assert len(np.load(tmp_path / "index.npy")) == 5
    loaded = load_noise(tmp_path / "index.npy", truth)
    assert (loaded.protocol, loaded.hash) == (protocol, noise.hash)


@pytest.mark.parametrize(("format", "expected"), [("caption", "4 captions"), ("image", "2 images")])
def test_a_named_format_must_fit_the_length(tmp_path, format, expected) -> None:
    np.save(tmp_path / "index.npy", np.array([0, 1, 0]))
    with pytest.raises(DataError, match=f"holds 3 numbers, but the data has {expected}"):
        load_noise(tmp_path / "index.npy", np.array([0, 0, 1, 1]), format=format)


def test_images_without_captions_at_the_end_are_counted_by_num_images(tmp_path) -> None:
    np.save(tmp_path / "index.npy", np.array([1, 0, 2]))
    with pytest.raises(DataError, match="holds 3 numbers"):
        load_noise(tmp_path / "index.npy", np.array([0, 0, 1, 1]))
    loaded = load_noise(tmp_path / "index.npy", np.array([0, 0, 1, 1]), num_images=3)
    assert loaded.image_of_text.tolist() == [1, 1, 0, 0]


@pytest.mark.parametrize(
    ("index", "sentence"),
    [
        (np.arange(7), r"holds 7 numbers; expected 4 \(per caption\) or 2 \(per image\)"),
        (np.array([0, 1, 2, 0]), "names image 2 at position 2, but the data has 2 images"),
        (np.array([0, -1, 1, 0]), "image number -1"),
        (np.array([1, 1]), "image 1 is there 2 times"),
        (np.array([0.0, 1.0]), "whole numbers"),
        (np.array([[0, 1]]), r"shape \(1, 2\)"),
        (np.array([], dtype=int), "empty"),
        (np.array([0, None]), "not a readable .npy file"),  # pickled objects are not loaded
    ],
)
def test_an_index_of_other_data_is_a_clear_error(tmp_path, index, sentence) -> None:
    np.save(tmp_path / "index.npy", index)
    with pytest.raises(DataError, match=sentence) as caught:
        load_noise(tmp_path / "index.npy", np.array([0, 0, 1, 1]))
    assert str(tmp_path / "index.npy") in str(caught.value)


@pytest.mark.parametrize("content", [b"", b"not numpy", b"\x93NUMPY\x01\x00v\x00{'descr"])
def test_a_damaged_or_missing_file_is_a_clear_error(tmp_path, content) -> None:
    with pytest.raises(DataError, match="does not exist"):
        load_noise(tmp_path / "index.npy", FIVE_EACH)
    (tmp_path / "index.npy").write_bytes(content)
    with pytest.raises(DataError, match="not a readable"):
        load_noise(tmp_path / "index.npy", FIVE_EACH)


def test_an_archive_of_arrays_is_a_clear_error(tmp_path) -> None:
    np.savez(tmp_path / "index.npz", a=np.arange(3))
    with pytest.raises(DataError, match="archive of arrays"):
        load_noise(tmp_path / "index.npz", FIVE_EACH)


def test_noise_per_caption_cannot_be_written_per_image(tmp_path) -> None:
    with pytest.raises(DataError, match="save it with format='caption'"):
        save_noise(make_noise(FIVE_EACH), tmp_path / "index.npy", format="image")
    with pytest.raises(DataError, match="got 'text'"):
        save_noise(make_noise(FIVE_EACH), tmp_path / "index.npy", format="text")
    assert not (tmp_path / "index.npy").exists()


@pytest.mark.parametrize(
    ("mapping", "options", "sentence"),
    [
        (FIVE_EACH, {"rate": 40}, "fraction between 0 and 1, got 40"),
        (FIVE_EACH, {"rate": -0.1}, "got -0.1"),
        (FIVE_EACH, {"rate": float("nan")}, "got nan"),
        (FIVE_EACH, {"protocol": "pair"}, "'caption' or 'image', got 'pair'"),
        (np.zeros(3), {}, "whole numbers"),
        (np.array([], dtype=int), {}, "empty"),
        (np.array([0, -1]), {}, "counted from 0"),
    ],
)
def test_invalid_noise_settings_are_clear_errors(mapping, options, sentence) -> None:
    with pytest.raises(DataError, match=re.escape(sentence)):
        make_noise(mapping, **options)


def test_inspection_by_hand(tmp_path) -> None:
    # Three images of two captions. Image 0 keeps one, image 1 keeps none, image 2 keeps both.
    np.save(tmp_path / "index.npy", np.array([0, 1, 0, 0, 2, 2]))
    alone = inspect_noise(tmp_path / "index.npy")
    assert (alone.protocol, alone.format, alone.num_images, alone.num_captions) == (
        "caption",
        "caption",
        3,
        6,
    )
    assert (alone.captions_moved, alone.images_moved, alone.rate) == (3, 2, 0.5)
    assert (alone.images_all_wrong, alone.images_none_wrong) == (1, 1)
    assert alone.hash == alone.file_hash
    assert inspect_noise(tmp_path / "index.npy", captions_per_image=2) == alone
    assert inspect_noise(tmp_path / "index.npy", image_of_text=np.array([0, 0, 1, 1, 2, 2])) == alone


def test_inspection_of_a_file_per_image_counts_captions_only_if_their_number_is_given(tmp_path) -> None:
    noise = make_noise(FIVE_EACH, 0.4, "image")
    save_noise(noise, tmp_path / "index.npy")
    alone = inspect_noise(tmp_path / "index.npy")
    assert (alone.protocol, alone.format, alone.num_images) == ("image", "image", 200)
    assert (alone.num_captions, alone.captions_moved, alone.hash) == (None, None, None)
    assert alone.rate == noise.rate
    told = inspect_noise(tmp_path / "index.npy", captions_per_image=5)
    assert (told.num_captions, told.captions_moved, told.hash) == (1000, noise.is_noisy.sum(), noise.hash)
    assert told.images_moved == told.images_all_wrong == alone.images_moved == 200 - alone.images_none_wrong
    assert inspect_noise(tmp_path / "index.npy", image_of_text=FIVE_EACH) == told


def test_inspection_of_a_permutation_with_one_caption_per_image_is_complete(tmp_path) -> None:
    noise = make_noise(np.arange(50), 0.6)
    save_noise(noise, tmp_path / "index.npy")
    summary = inspect_noise(tmp_path / "index.npy", captions_per_image=1)
    assert (summary.protocol, summary.format, summary.num_captions) == ("caption", "caption", 50)
    assert summary.hash == noise.hash


def test_inspection_sees_per_image_noise_in_a_file_per_caption(tmp_path) -> None:
    save_noise(make_noise(FIVE_EACH, 0.4, "image"), tmp_path / "index.npy", format="caption")
    summary = inspect_noise(tmp_path / "index.npy")
    assert (summary.protocol, summary.format) == ("image", "caption")


def test_inspection_with_data_counts_only_images_that_have_captions(tmp_path) -> None:
    save_noise(make_noise(UNEVEN, 0.0), tmp_path / "index.npy")
    summary = inspect_noise(tmp_path / "index.npy", image_of_text=UNEVEN)
    assert (summary.num_images, summary.num_captions) == (6, len(UNEVEN))  # images 0 2 4 5 7 9
    assert (summary.images_none_wrong, summary.images_all_wrong) == (6, 0)


@pytest.mark.parametrize(("captions_per_image", "given"), [(None, "equally many"), (2, "2 captions")])
def test_inspection_of_an_uneven_file_needs_the_data(tmp_path, captions_per_image, given) -> None:
    np.save(tmp_path / "index.npy", np.array([0, 0, 1, 1, 1]))
    with pytest.raises(DataError, match=f"5 numbers from 0 to 1.*{given}.*image_of_text"):
        inspect_noise(tmp_path / "index.npy", captions_per_image)
    with pytest.raises(DataError, match="at least 1, got 0"):
        inspect_noise(tmp_path / "index.npy", 0)


def test_inspection_with_the_wrong_number_of_captions_names_the_image_out_of_range(tmp_path) -> None:
    np.save(tmp_path / "index.npy", FIVE_EACH)
    with pytest.raises(DataError, match="but the data has 100 images"):
        inspect_noise(tmp_path / "index.npy", captions_per_image=10)


@pytest.mark.parametrize(
    ("rate", "realised", "all_wrong_percent", "none_wrong_percent"),
    [
        pytest.param("0.2", 0.19999, 0.02, 32.3, marks=published),
        pytest.param("0.4", 0.40000, 0.97, 7.8, marks=published),
        pytest.param("0.6", 0.59997, 7.7, 1.0, marks=published),
    ],
)
def test_published_files_per_caption_are_as_described(rate, realised, all_wrong_percent, none_wrong_percent) -> None:
    path = PUBLISHED / f"f30k_per_caption_{rate}.npy"
    summary = inspect_noise(path)
    assert (summary.protocol, summary.format) == ("caption", "caption")
    assert (summary.num_images, summary.num_captions) == (29_000, 145_000)
    assert summary.rate == pytest.approx(realised, abs=5e-6)  # the description has five decimals
    assert 100 * summary.images_all_wrong / summary.num_images == pytest.approx(all_wrong_percent, abs=0.05)
    assert 100 * summary.images_none_wrong / summary.num_images == pytest.approx(none_wrong_percent, abs=0.05)
    truth = np.arange(145_000) // 5
    noise = load_noise(path, truth)
    assert (noise.protocol, noise.rate, noise.hash) == ("caption", summary.rate, summary.hash)
    np.testing.assert_array_equal(np.sort(noise.image_of_text), truth)


@pytest.mark.parametrize(
    ("name", "num_images", "moved"),
    [
        pytest.param("f30k_per_image_0.2", 29_000, 5_799, marks=published),
        pytest.param("coco_per_image_0.2", 113_287, 22_656, marks=published),
    ],
)
def test_published_files_per_image_are_as_described(name, num_images, moved) -> None:
    summary = inspect_noise(PUBLISHED / f"{name}.npy", captions_per_image=5)
    assert (summary.protocol, summary.format, summary.num_images) == ("image", "image", num_images)
    assert (summary.images_moved, summary.images_all_wrong, summary.captions_moved) == (
        moved,
        moved,
        5 * moved,
    )
    noise = load_noise(PUBLISHED / f"{name}.npy", np.arange(5 * num_images) // 5)
    assert (noise.protocol, noise.is_noisy.sum(), noise.hash) == ("image", 5 * moved, summary.hash)


@pytest.mark.data
@pytest.mark.skipif(not PUBLISHED.is_dir(), reason=f"no published index files in {PUBLISHED}")
@pytest.mark.parametrize("name", ["f30k_per_caption_0.4", "f30k_per_image_0.4"])
def test_a_published_file_saved_again_is_the_same_numbers(tmp_path, name) -> None:
    save_noise(load_noise(PUBLISHED / f"{name}.npy", np.arange(145_000) // 5), tmp_path / "again.npy")
    again, original = np.load(tmp_path / "again.npy"), np.load(PUBLISHED / f"{name}.npy")
    assert again.dtype == original.dtype
    np.testing.assert_array_equal(again, original)


@pytest.mark.data
@pytest.mark.skipif(not PUBLISHED.is_dir(), reason=f"no published index files in {PUBLISHED}")
def test_our_noise_resembles_the_published_noise() -> None:
    ours = make_noise(np.arange(145_000) // 5, 0.4).is_noisy.reshape(-1, 5)
    theirs = inspect_noise(PUBLISHED / "f30k_per_caption_0.4.npy")
    # 281 of 29,000 images lost all captions: two standard deviations of such a count are 0.12 %.
    assert ours.all(1).mean() == pytest.approx(theirs.images_all_wrong / 29_000, abs=0.0024)
    assert (~ours).all(1).mean() == pytest.approx(theirs.images_none_wrong / 29_000, abs=0.0065)
    assert ours.mean() == pytest.approx(theirs.rate, abs=1e-4)

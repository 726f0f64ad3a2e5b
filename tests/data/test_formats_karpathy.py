"""Karpathy split files: images with any number of sentences each."""

from __future__ import annotations

import pytest

from layouts import karpathy_content, write_image, write_json
from sremkit.data import read_pairs
from sremkit.errors import DataError

CAPTIONS = {"a.png": ["a dog", "one dog", "the dog"], "b.png": ["a cat"], "c.png": [" two birds ", "birds"]}


def write(folder, content=None):
    return write_json(folder / "dataset_small.json", content or karpathy_content(CAPTIONS))


def test_images_may_have_different_numbers_of_sentences(tmp_path):
    pairs = read_pairs(write(tmp_path))
    assert pairs.texts == ["a dog", "one dog", "the dog", "a cat", "two birds", "birds"]
    assert pairs.image_of_text.tolist() == [0, 0, 0, 1, 2, 2]
    assert pairs.pair_ids == ["0", "1", "2", "3", "4", "5"]
    assert pairs.image_ids == ["a.png", "b.png", "c.png"]
    assert pairs.images is None


def test_tokens_replace_a_missing_raw_sentence(tmp_path):
    content = karpathy_content({"a.png": ["a small dog"]})
    del content["images"][0]["sentences"][0]["raw"]
    assert read_pairs(write(tmp_path, content)).texts == ["a small dog"]


def content_with_restval():
    content = karpathy_content(CAPTIONS)
    content["images"][1]["split"] = "restval"
    content["images"][2]["split"] = "val"
    return content


def test_restval_counts_as_training_data(tmp_path):
    path = write(tmp_path, content_with_restval())
    assert read_pairs(path).image_ids == ["a.png", "b.png"]
    assert read_pairs(path, split="dev").image_ids == ["c.png"]


def test_restval_can_be_a_split_of_its_own(tmp_path):
    path = write(tmp_path, content_with_restval())
    assert read_pairs(path, restval_is_train=False).image_ids == ["a.png"]
    assert read_pairs(path, split="restval", restval_is_train=False).image_ids == ["b.png"]


def test_a_missing_split_is_answered_with_those_there_are(tmp_path):
    with pytest.raises(DataError, match=r"dataset_small\.json has no split 'test'; it has: train, val"):
        read_pairs(write(tmp_path, content_with_restval()), split="test")


@pytest.mark.parametrize("subfolder", ["", "images"])
def test_images_next_to_the_file_are_found(tmp_path, subfolder):
    for name, color in zip(CAPTIONS, ("red", "green", "blue"), strict=True):
        write_image(tmp_path / subfolder / name, color)
    pairs = read_pairs(write(tmp_path))
    assert pairs.images.open(2).getpixel((8, 6)) == (0, 0, 255)
    assert pairs.images.name(0).endswith("a.png")


def test_images_are_found_below_a_root_by_their_filepath(tmp_path):
    content = karpathy_content({"a.png": ["a dog"]})
    content["images"][0]["filepath"] = "val2014"
    write_image(tmp_path / "elsewhere" / "val2014" / "a.png")
    pairs = read_pairs(write(tmp_path, content), image_root=tmp_path / "elsewhere")
    assert pairs.images.open(0).size == (12, 8)


def test_a_missing_image_is_named_or_its_image_skipped(tmp_path):
    write_image(tmp_path / "a.png")
    write_image(tmp_path / "c.png", "blue")
    path = write(tmp_path)
    with pytest.raises(
        DataError,
        match=r"images\[1\]: the image is missing; put it at .*b\.png, or give the folder .* with --image-root",
    ):
        read_pairs(path)
    pairs = read_pairs(path, on_error="skip")
    assert pairs.image_ids == ["a.png", "c.png"]
    assert pairs.images.open(1).getpixel((8, 6)) == (0, 0, 255)
    assert dict(pairs.skipped.reasons) == {"the image is missing": 1}


def test_bad_sentences_are_named_or_skipped_and_counted(tmp_path):
    content = karpathy_content({"a.png": ["a dog", " ", "one dog"], "b.png": ["a cat"], "c.png": []})
    content["images"][1]["sentences"][0]["sentid"] = 0
    content["images"][0]["sentences"].append({"raw": 7})
    content["images"].append(dict(content["images"][0]))
    content["images"][0]["sentences"][1]["tokens"] = []
    path = write(tmp_path, content)
    with pytest.raises(DataError, match=r"dataset_small\.json, images\[0\]\.sentences\[1\]: the caption is empty"):
        read_pairs(path)
    pairs = read_pairs(path, on_error="skip")
    assert pairs.texts == ["a dog", "one dog"]
    assert dict(pairs.skipped.reasons) == {
        "the caption is empty": 1,
        "the caption is not text": 1,
        "the id has appeared before": 1,
        "no sentences": 1,
        "the image has appeared before": 1,
    }


def test_broken_json_is_named_with_its_line(tmp_path):
    path = tmp_path / "dataset_small.json"
    path.write_text('{"images": [\n{"sentences": [}\n')
    with pytest.raises(DataError, match=r"dataset_small\.json, line 2: not valid JSON"):
        read_pairs(path)


def test_json_that_is_not_utf8_is_named_with_its_line(tmp_path):
    path = tmp_path / "dataset_small.json"
    path.write_bytes(b'{"images": [\n\n{"sentences": [{"raw": "caf\xe9"}]}]}')
    with pytest.raises(DataError, match=r"dataset_small\.json, line 3: not UTF-8; save"):
        read_pairs(path)


def test_other_json_is_refused_with_what_was_expected(tmp_path):
    path = write_json(tmp_path / "other.json", ["sentences"])
    with pytest.raises(DataError, match=r"other\.json has no list 'images'"):
        read_pairs(path, format="karpathy")

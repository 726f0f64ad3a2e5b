"""COCO caption annotations."""

from __future__ import annotations

import pytest

from layouts import coco_content, write_image, write_json
from sremkit.data import read_pairs
from sremkit.errors import DataError

CAPTIONS = {"a.png": ["a dog", "one dog"], "b.png": ["a cat"], "c.png": []}


def test_annotations_are_joined_with_their_images(tmp_path):
    pairs = read_pairs(write_json(tmp_path / "captions.json", coco_content(CAPTIONS)), split="anything")
    assert pairs.texts == ["a dog", "one dog", "a cat"]
    assert pairs.pair_ids == ["0", "1", "10"]
    assert pairs.image_ids == ["100", "101"]
    assert pairs.image_of_text.tolist() == [0, 0, 1]
    assert (pairs.split, pairs.images) == ("anything", None)


def test_captions_need_not_be_grouped_by_image(tmp_path):
    content = coco_content(CAPTIONS)
    content["annotations"].reverse()
    pairs = read_pairs(write_json(tmp_path / "captions.json", content))
    assert [(pairs.texts[k], pairs.image_ids[pairs.image_of_text[k]]) for k in range(3)] == [
        ("a cat", "101"),
        ("one dog", "100"),
        ("a dog", "100"),
    ]


def test_the_split_is_taken_from_the_file_name(tmp_path):
    path = write_json(tmp_path / "captions_val2017.json", coco_content(CAPTIONS))
    assert read_pairs(path, split="dev").split == "val"
    with pytest.raises(DataError, match=r"captions_val2017\.json has no split 'train'; it has: val"):
        read_pairs(path, split="train")


def test_a_folder_of_annotations_is_read_by_split(tmp_path):
    write_json(tmp_path / "captions_train2017.json", coco_content({"a.png": ["train"]}))
    write_json(tmp_path / "captions_val2017.json", coco_content({"a.png": ["val"]}))
    assert read_pairs(tmp_path, split="train").texts == ["train"]
    assert read_pairs(tmp_path, split="val").texts == ["val"]
    with pytest.raises(DataError, match="no split 'test'; it has: train, val"):
        read_pairs(tmp_path, split="test")
    write_json(tmp_path / "captions_val2014.json", coco_content({"a.png": ["val"]}))
    with pytest.raises(DataError, match=r"several files .*captions_val2014\.json, captions_val2017\.json"):
        read_pairs(tmp_path, split="val")


@pytest.mark.parametrize("folder", [".", "images", "annotations", "train2017", "images/train2017"])
def test_images_around_the_file_are_found(tmp_path, folder):
    write_image(tmp_path / folder / "a.png")
    write_image(tmp_path / folder / "b.png", "blue")
    path = write_json(tmp_path / "annotations" / "captions_train2017.json", coco_content(CAPTIONS))
    assert read_pairs(path).images.open(1).getpixel((8, 6)) == (0, 0, 255)


def test_a_missing_image_is_named_or_its_captions_skipped(tmp_path):
    path = write_json(tmp_path / "captions.json", coco_content(CAPTIONS))
    write_image(tmp_path / "root" / "b.png", "blue")
    with pytest.raises(DataError, match=r"annotations\[0\]: the image is missing; put it at .*a\.png"):
        read_pairs(path, image_root=tmp_path / "root")
    pairs = read_pairs(path, image_root=tmp_path / "root", on_error="skip")
    assert pairs.texts == ["a cat"]
    assert pairs.images.open(0).getpixel((8, 6)) == (0, 0, 255)
    assert pairs.skipped.count == 2


def test_bad_annotations_are_named_or_skipped_and_counted(tmp_path):
    content = coco_content({"a.png": ["a dog", "", "one dog", "two dogs"]})
    content["annotations"][2]["image_id"] = 555
    content["annotations"][3]["id"] = 0
    content["annotations"].append({"id": 9, "image_id": 100})
    path = write_json(tmp_path / "captions.json", content)
    with pytest.raises(DataError, match=r"captions\.json, annotations\[1\]: the caption is empty"):
        read_pairs(path)
    pairs = read_pairs(path, on_error="skip")
    assert pairs.texts == ["a dog"]
    assert dict(pairs.skipped.reasons) == {
        "the caption is empty": 2,
        "its image is not in 'images'": 1,
        "the id has appeared before": 1,
    }


def test_annotations_without_captions_are_refused(tmp_path):
    content = {
        "images": [{"id": 1, "file_name": "a.png"}],
        "annotations": [{"id": 1, "image_id": 1, "bbox": [0]}],
    }
    with pytest.raises(DataError, match="no captions in its annotations; give a captions_"):
        read_pairs(write_json(tmp_path / "instances.json", content))


@pytest.mark.parametrize("part", ["images", "annotations"])
def test_a_missing_part_is_named(tmp_path, part):
    content = coco_content(CAPTIONS)
    del content[part]
    with pytest.raises(DataError, match=f"has no list '{part}'"):
        read_pairs(write_json(tmp_path / "captions.json", content), format="coco")

"""Folders of images with text files next to them."""

from __future__ import annotations

import pytest

from layouts import write_image
from sremkit.data import read_pairs
from sremkit.errors import DataError


def add(folder, name, text, color="red"):
    image = write_image(folder / name, color)
    image.with_suffix(".txt").write_text(text, encoding="utf-8")


def test_each_line_of_the_text_is_a_caption_of_the_image(tmp_path):
    add(tmp_path, "b.jpg", "a cat")
    add(tmp_path, "sub/c.png", "a bird\n\n  two birds \n", "blue")
    add(tmp_path, "a.webp", "a dog\none dog\n")
    pairs = read_pairs(tmp_path)
    assert pairs.texts == ["a dog", "one dog", "a cat", "a bird", "two birds"]
    assert pairs.image_ids == ["a.webp", "b.jpg", "sub/c.png"]
    assert pairs.pair_ids == ["a.webp#0", "a.webp#1", "b.jpg#0", "sub/c.png#0", "sub/c.png#1"]
    assert pairs.image_of_text.tolist() == [0, 0, 1, 2, 2]
    assert pairs.images.open(2).getpixel((8, 6)) == (0, 0, 255)


def test_hidden_files_are_passed_over(tmp_path):
    add(tmp_path, "a.png", "a dog")
    (tmp_path / "._a.png").write_bytes(b"shadow")
    (tmp_path / ".cache").mkdir()
    (tmp_path / ".cache" / "b.png").write_bytes(b"shadow")
    assert read_pairs(tmp_path).image_ids == ["a.png"]


def test_subfolders_named_like_splits_are_splits(tmp_path):
    add(tmp_path, "train/a.png", "a dog")
    add(tmp_path, "val/b.png", "a cat")
    assert read_pairs(tmp_path).image_ids == ["train/a.png"]
    assert read_pairs(tmp_path, split="dev").texts == ["a cat"]
    with pytest.raises(DataError, match="no split 'test'; it has: train, val"):
        read_pairs(tmp_path, split="test")


def test_bad_files_are_named(tmp_path):
    add(tmp_path, "a.png", "a dog")
    write_image(tmp_path / "b.png")
    with pytest.raises(DataError, match=r"b\.png: no captions; write them to b\.txt next to it"):
        read_pairs(tmp_path)
    (tmp_path / "b.txt").write_text(" \n\n")
    with pytest.raises(DataError, match=r"b\.txt: the caption is empty"):
        read_pairs(tmp_path)
    (tmp_path / "b.txt").write_bytes(b"a cat\ncaf\xe9\n")
    with pytest.raises(DataError, match=r"b\.txt, line 2: not UTF-8"):
        read_pairs(tmp_path)
    (tmp_path / "b.txt").rename(tmp_path / "c.txt")
    (tmp_path / "b.png").unlink()
    with pytest.raises(DataError, match=r"c\.txt: no image of the same name"):
        read_pairs(tmp_path)


def test_bad_files_can_be_skipped_and_are_counted(tmp_path):
    add(tmp_path, "a.png", "a dog")
    write_image(tmp_path / "b.png")
    add(tmp_path, "c.png", "")
    add(tmp_path, "d.png", "")
    (tmp_path / "d.txt").write_bytes(b"caf\xe9\na cat\n")
    add(tmp_path, "f.png", "")
    (tmp_path / "f.txt").write_bytes(b"caf\xe9")  # one fault, and counted as one
    (tmp_path / "e.txt").write_text("no image")
    pairs = read_pairs(tmp_path, on_error="skip")
    assert pairs.texts == ["a dog", "a cat"]
    assert dict(pairs.skipped.reasons) == {
        "no captions": 1,
        "the caption is empty": 1,
        "not UTF-8": 2,
        "no image of the same name": 1,
    }


def test_a_file_instead_of_the_folder_is_refused(tmp_path):
    add(tmp_path, "a.png", "a dog")
    with pytest.raises(DataError, match=r"a\.png is not a folder"):
        read_pairs(tmp_path / "a.png", format="folder")

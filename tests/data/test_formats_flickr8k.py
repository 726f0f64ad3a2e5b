"""The Flickr8k folder: a small copy made here, and the real one if it is available."""

from __future__ import annotations

import os
import pickle
from pathlib import Path

import numpy as np
import pytest

from layouts import image_bytes, write_flickr8k, write_tar
from sremkit.data import read_pairs
from sremkit.errors import DataError

REAL = Path(os.environ.get("SREMKIT_DATA", Path(__file__).parents[3] / "shared" / "data")) / "flickr8k"
needs_real_folder = pytest.mark.skipif(
    not (REAL / "pairs.tsv").exists(), reason=f"no Flickr8k at {REAL}; point SREMKIT_DATA at its parent"
)
SPLITS = {"train": 3, "val": 2, "test": 2, "rest": 1}


def edit(path, old, new):
    text = path.read_bytes()
    assert old in text
    path.write_bytes(text.replace(old, new, 1))


def test_a_split_is_read_with_its_own_feature_rows(tmp_path):
    pairs = read_pairs(write_flickr8k(tmp_path, SPLITS), split="dev")
    assert (pairs.split, len(pairs), pairs.num_images) == ("val", 4, 2)
    assert pairs.pair_ids[1] == "val000_x.jpg#1"
    assert pairs.texts[1] == 'The "caption 1 of val000_x.jpg'  # a quotation mark is text
    # Rows 0 to 2 of the image features are train; captions 0 to 5 as well.
    assert pairs.image_features.rows(np.arange(2)).values[:, 0].tolist() == [3, 4]
    assert pairs.text_features.rows(np.arange(4)).values[:, 0].tolist() == [6, 7, 8, 9]


def test_region_features_are_scaled_by_column(tmp_path):
    pairs = read_pairs(write_flickr8k(tmp_path, SPLITS), split="val", features="regions36")
    rows = pairs.image_features.rows(np.array([1]))
    # Row 4 of the file holds the integer 4; the scales are 0.5 and 2.
    np.testing.assert_array_equal(rows.values, np.tile(np.array([2.0, 8.0], dtype=np.float32), (1, 4, 1)))
    assert rows.mask.all()


def test_features_and_images_are_optional(tmp_path):
    folder = write_flickr8k(tmp_path, SPLITS)
    assert read_pairs(folder, features=None).image_features is None
    for file in (*folder.glob("*.tar"), *folder.glob("*.np?")):
        file.unlink()
    pairs = read_pairs(folder, features=None)
    assert (pairs.images, pairs.text_features, len(pairs)) == (None, None, 6)
    with pytest.raises(DataError, match=r"pooled\.npy does not exist"):
        read_pairs(folder)
    with pytest.raises(DataError, match=r"regions36\.npz cannot be read"):
        read_pairs(folder, features="regions36")


def test_images_come_from_the_archives(tmp_path):
    pairs = read_pairs(write_flickr8k(tmp_path, SPLITS), split="rest")
    assert pairs.images.name(0).endswith("images-001.tar, member rest000_x.avif")
    assert pairs.images.open(0).size == (12, 8)


def test_the_error_for_unknown_features_and_splits_lists_the_known_ones(tmp_path):
    folder = write_flickr8k(tmp_path, SPLITS)
    with pytest.raises(DataError, match="'pooled', 'regions36' or None, got 'grid'"):
        read_pairs(folder, features="grid")
    with pytest.raises(DataError, match="no split 'testall'; it has: rest, test, train, val"):
        read_pairs(folder, split="testall")


def test_feature_files_of_another_length_are_refused(tmp_path):
    folder = write_flickr8k(tmp_path, SPLITS)
    (folder / "images.txt").write_text((folder / "images.txt").read_text() + "more.jpg\n")
    with pytest.raises(DataError, match=r"pooled\.npy has 8 rows, but .*images\.txt has 9"):
        read_pairs(folder)
    with pytest.raises(DataError, match=r"regions36\.npz has 8 rows, but .*images\.txt has 9"):
        read_pairs(folder, features="regions36")
    np.save(folder / "sentences.npy", np.ones((3, 3)))
    with pytest.raises(DataError, match=r"sentences\.npy has 3 rows, but .*pairs\.tsv has 16"):
        read_pairs(folder, features=None)


def test_bad_rows_are_named_or_skipped_with_features_still_in_step(tmp_path):
    folder = write_flickr8k(tmp_path, SPLITS)
    table = folder / "pairs.tsv"
    edit(table, b'\tThe "caption 1 of train000_x.jpg', b"\t ")
    edit(table, b'train001_x.jpg\ttrain\t0\tThe "caption', b"train001_x.jpg\ttrain\t0\tThe\tcaption")
    edit(table, b"train002_x.jpg\ttrain\t0", b"unknown.jpg\ttrain\t0")
    with pytest.raises(DataError, match=r"pairs\.tsv, line 4: 5 fields where the header has 4"):
        read_pairs(folder)
    pairs = read_pairs(folder, on_error="skip")
    assert pairs.pair_ids == ["train000_x.jpg#0", "train001_x.jpg#1", "train002_x.jpg#1"]
    assert pairs.text_features.rows(np.arange(3)).values[:, 0].tolist() == [0, 3, 5]
    assert dict(pairs.skipped.reasons) == {
        "the caption is empty": 1,
        "5 fields where the header has 4": 1,
        "its image is not in images.txt": 1,
    }


def test_an_image_in_no_archive_is_named(tmp_path):
    folder = write_flickr8k(tmp_path, SPLITS)
    write_tar(folder / "images-000.tar", [("train000_x.avif", image_bytes(format="AVIF"))])
    with pytest.raises(DataError, match=r"pairs\.tsv, line 4: its image is in no archive; add train001_x\.jpg"):
        read_pairs(folder)
    assert read_pairs(folder, on_error="skip").image_ids == ["train000_x.jpg"]


def test_a_name_twice_in_the_image_list_is_refused(tmp_path):
    folder = write_flickr8k(tmp_path, SPLITS)
    edit(folder / "images.txt", b"val000_x", b"train001_x")
    with pytest.raises(DataError, match=r"images\.txt, line 4: 'train001_x\.jpg' is already on line 2"):
        read_pairs(folder)


def test_windows_line_ends_are_understood(tmp_path):
    folder = write_flickr8k(tmp_path, SPLITS)
    for name in ("pairs.tsv", "images.txt"):
        (folder / name).write_bytes((folder / name).read_bytes().replace(b"\n", b"\r\n"))
    assert read_pairs(folder).texts[0] == 'The "caption 0 of train000_x.jpg'


def test_another_header_is_refused(tmp_path):
    folder = write_flickr8k(tmp_path, SPLITS)
    edit(folder / "pairs.tsv", b"cap_id", b"number")
    with pytest.raises(DataError, match=r"pairs\.tsv, line 1: expected the columns image, split, cap_id, caption"):
        read_pairs(folder)


@pytest.mark.data
@needs_real_folder
@pytest.mark.parametrize(("split", "num_images"), [("train", 6000), ("val", 1000), ("test", 1000), ("rest", 91)])
def test_the_real_folder_has_its_official_sizes(split, num_images):
    pairs = read_pairs(REAL, split=split)
    assert (pairs.num_images, len(pairs)) == (num_images, 5 * num_images)
    assert np.bincount(pairs.image_of_text).tolist() == [5] * num_images
    assert pairs.skipped.count == 0


@pytest.mark.data
@needs_real_folder
@pytest.mark.parametrize("split", ["train", "test"])
def test_the_real_features_belong_to_their_images_and_captions(split):
    names = (REAL / "images.txt").read_text().split()
    pooled = np.load(REAL / "pooled.npy", mmap_mode="r")
    sentences = np.load(REAL / "sentences.npy", mmap_mode="r")
    table = [line.split("\t") for line in (REAL / "pairs.tsv").read_text().split("\n")[1:] if line]
    caption_rows = {f"{image}#{number}": k for k, (image, _, number, _) in enumerate(table)}
    pairs = read_pairs(REAL, split=split)
    regions = read_pairs(REAL, split=split, features="regions36").image_features
    with np.load(REAL / "regions36.npz") as content:
        all_regions, scale = content["features"], content["scale"]
    for k in (0, 1, 499, pairs.num_images - 1):
        row = names.index(pairs.image_ids[k])
        np.testing.assert_array_equal(pairs.image_features.rows(np.array([k])).values[0], pooled[row])
        np.testing.assert_array_equal(regions.rows(np.array([k])).values[0], all_regions[row] * scale)
        stem = pairs.image_ids[k].removesuffix(".jpg")
        assert pairs.images.name(k).endswith(f", member {stem}.avif")
    for k in (0, 7, len(pairs) - 1):
        row = caption_rows[pairs.pair_ids[k]]
        assert pairs.texts[k] == table[row][3].strip()
        np.testing.assert_array_equal(pairs.text_features.rows(np.array([k])).values[0], sentences[row])


@pytest.mark.data
@needs_real_folder
def test_real_images_open_also_in_a_worker():
    pairs = read_pairs(REAL, split="test", features=None)
    image = pickle.loads(pickle.dumps(pairs.images)).open(999)
    assert (image.mode, min(image.size)) == ("RGB", 224)

"""Sources of an audit, and their rows."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from audit.small_tables import make_pairs
from layouts import write_features, write_flickr8k, write_image
from sremkit.audit.inputs import JoinedFeatures, join_splits, open_source, rows_of_pairs
from sremkit.data.features import ArrayFeatures
from sremkit.data.formats import read_collection
from sremkit.data.pairs import MISSING, Skipped

pytest.importorskip("pyarrow")


def test_joined_splits_keep_their_images_and_features(tmp_path: Path) -> None:
    folder = write_flickr8k(tmp_path / "flickr8k", {"train": 3, "dev": 2, "test": 1})
    collection = read_collection(folder, format="flickr8k", features="pooled")
    pairs, split_of_pair, _ = join_splits(collection)
    assert len(pairs) == 12
    assert split_of_pair == [part.split for part in collection.pairs.values() for _ in range(len(part))]
    # In this layout the feature row of image k is full of k, and two texts follow one another for each image.
    row = 0
    for part in collection.pairs.values():
        for k in range(len(part)):
            image = pairs.image_of_text[row]
            assert pairs.image_ids[image] == part.image_ids[part.image_of_text[k]]
            assert pairs.images.name(int(image)) == part.images.name(int(part.image_of_text[k]))
            for features, own, index, own_index in (
                (pairs.image_features, part.image_features, image, part.image_of_text[k]),
                (pairs.text_features, part.text_features, row, k),
            ):
                joined_row, own_row = features.rows(np.array([index])), own.rows(np.array([own_index]))
                np.testing.assert_array_equal(joined_row.values, own_row.values)
            row += 1
    assert row == 12


def test_joined_features_keep_the_order_of_the_indices() -> None:
    sources = [ArrayFeatures(np.array([[0.0], [1.0]])), ArrayFeatures(np.array([[2.0], [3.0], [4.0]]))]
    joined = JoinedFeatures(sources)
    assert len(joined) == 5
    assert joined.rows(np.array([4, 0, 2, 1, 3])).values[:, 0].tolist() == [4, 0, 2, 1, 3]


def test_skipped_rows_follow_the_pairs() -> None:
    pairs = make_pairs(skipped=Skipped(places=(("a.txt", "no image"),)))
    rows = rows_of_pairs(pairs, {"split": ["x", "y", "z"]})
    assert rows.pair_of_row.tolist() == [0, 1, 2, MISSING]
    assert rows.columns == {"split": ["x", "y", "z", None]}
    assert rows.problems[3].message == "a.txt: no image"


def test_two_columns_of_one_name_are_kept(tmp_path: Path) -> None:
    write_image(tmp_path / "a.png")
    (tmp_path / "pairs.csv").write_text(",image,text,note,note\n0,a.png,one,first,second\n")
    columns = open_source(tmp_path / "pairs.csv").rows.columns
    assert columns == {
        "": ["0"],
        "image": ["a.png"],
        "text": ["one"],
        "note": ["first"],
        "note.4": ["second"],
    }


def test_extracted_features_are_audited_without_extraction(tmp_path: Path) -> None:
    source = open_source(write_features(tmp_path / "features", {"train": 3, "val": 2}))
    assert len(source.pairs) == 10
    assert source.rows.columns["split"] == ["train"] * 6 + ["val"] * 4
    assert source.pairs.image_features.rows(np.array([4])).values.tolist() == [[4.0, 4.0, 4.0]]

"""The small parts of an audit, each by itself."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from layouts import write_features, write_flickr8k, write_picture, write_shard
from sremkit.audit.fingerprint import fingerprint_pairs, fingerprint_rows, picture_state, read_features_once
from sremkit.audit.joined import JoinedFeatures, MeanOfRegions, compact, join
from sremkit.audit.own_rows import NO_PAIR, rows_of_pairs
from sremkit.audit.sources import open_source
from sremkit.audit.table import Duplicates, build_table
from sremkit.data.all_splits import read_collection
from sremkit.data.features import ArrayFeatures, RaggedFeatures
from sremkit.data.pairs import Pairs, Skipped

pytest.importorskip("pyarrow")


def make_pairs(**changes) -> Pairs:
    pairs = Pairs(
        name="small",
        split="train",
        pair_ids=["p", "q", "r"],
        texts=["one", "two", "three"],
        image_of_text=np.array([1, 0, 1]),
        image_ids=["x", "y"],
        image_features=ArrayFeatures(np.array([[1.0, 2.0], [3.0, 4.0]])),
        text_features=ArrayFeatures(np.array([[5.0], [6.0], [7.0]])),
    )
    return replace(pairs, **changes)


def test_splits_are_joined_with_their_own_images_and_features(tmp_path: Path) -> None:
    folder = write_flickr8k(tmp_path / "flickr8k", {"train": 3, "dev": 2, "test": 1})
    collection = read_collection(folder, format="flickr8k", features="pooled")
    joined = join(collection)
    pairs = joined.pairs
    assert len(pairs) == 12
    assert joined.split_of_pair == [
        part.split for part in collection.pairs.values() for _ in range(len(part))
    ]
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


def test_joined_features_answer_in_the_order_asked() -> None:
    sources = [ArrayFeatures(np.array([[0.0], [1.0]])), ArrayFeatures(np.array([[2.0], [3.0], [4.0]]))]
    joined = JoinedFeatures(sources)
    assert len(joined) == 5
    assert joined.rows(np.array([4, 0, 2, 1, 3])).values[:, 0].tolist() == [4, 0, 2, 1, 3]


def test_the_mean_of_regions_leaves_padding_out() -> None:
    # image 0 has the regions 1 and 3, image 1 only 5: means 2 and 5; with the padding it would be 2.5
    ragged = RaggedFeatures(np.array([[1.0], [3.0], [5.0]]), np.array([0, 2, 3]))
    assert MeanOfRegions(ragged).rows(np.array([0, 1])).values[:, 0].tolist() == [2.0, 5.0]


def test_compact_pairs_have_no_images_to_spare() -> None:
    chosen = compact(make_pairs(), np.array([2, 0]))
    assert list(chosen.pair_ids) == ["r", "p"]
    assert list(chosen.image_ids) == ["y"]
    assert chosen.image_of_text.tolist() == [0, 0]
    assert chosen.image_features.rows(np.array([0])).values.tolist() == [[3.0, 4.0]]
    assert chosen.text_features.rows(np.array([0, 1])).values.tolist() == [[7.0], [5.0]]


def test_rows_of_pairs_come_before_what_was_left_out() -> None:
    pairs = make_pairs(skipped=Skipped(places=(("a.txt", "no picture"),)))
    rows = rows_of_pairs(pairs, {"split": ["x", "y", "z"]})
    assert rows.pair_of_row.tolist() == [0, 1, 2, NO_PAIR]
    assert rows.columns == {"split": ["x", "y", "z", None]}
    assert rows.problems[3].sentence == "a.txt: no picture"


def test_two_columns_of_one_name_are_both_kept(tmp_path: Path) -> None:
    write_picture(tmp_path / "a.png")
    (tmp_path / "pairs.csv").write_text(",image,text,note,note\n0,a.png,one,first,second\n")
    columns = open_source(tmp_path / "pairs.csv").rows.columns
    assert columns == {
        "": ["0"],
        "image": ["a.png"],
        "text": ["one"],
        "note": ["first"],
        "note.4": ["second"],
    }


@pytest.mark.parametrize(
    "change",
    [
        {"texts": ["one", "two", "tree"]},
        {"pair_ids": ["p", "q", "s"]},
        {"image_of_text": np.array([1, 1, 1])},
        {"image_ids": ["x", "z"]},
    ],
    ids=["texts", "pair ids", "pairing", "image ids"],
)
def test_another_input_has_another_fingerprint(change: dict) -> None:
    assert fingerprint_pairs(make_pairs()) == fingerprint_pairs(make_pairs())
    assert fingerprint_pairs(make_pairs(**change)) != fingerprint_pairs(make_pairs())


def test_another_picture_under_the_same_name_has_another_state(tmp_path: Path) -> None:
    path = write_picture(tmp_path / "a.png")
    path.with_suffix(".txt").write_text("one\n")
    images = open_source(tmp_path).pairs.images
    os.utime(path, ns=(5, 5))
    before = picture_state(images, 0)
    os.utime(path, ns=(6, 6))
    assert picture_state(images, 0) != before
    path.unlink()
    assert picture_state(images, 0) == ["missing"]


def test_pictures_in_one_archive_differ_by_their_place(tmp_path: Path) -> None:
    shard = write_shard(tmp_path / "0.tar", {"a": "one", "b": "two"})
    images = open_source(shard).pairs.images
    assert picture_state(images, 0) != picture_state(images, 1)
    chosen = compact(open_source(shard).pairs, np.array([1]))
    assert picture_state(chosen.images, 0) == picture_state(images, 1)


def test_the_fingerprint_of_rows_knows_columns_and_problems() -> None:
    rows = rows_of_pairs(make_pairs(), {"note": ["a", "b", "c"]})
    assert fingerprint_rows(rows) != fingerprint_rows(rows_of_pairs(make_pairs(), {"note": ["a", "b", "d"]}))
    broken = make_pairs(skipped=Skipped(places=(("a.txt", "no picture"),)))
    assert fingerprint_rows(rows_of_pairs(broken)) != fingerprint_rows(rows_of_pairs(make_pairs()))


def test_one_pass_names_every_bad_row_and_goes_on(monkeypatch) -> None:
    monkeypatch.setattr("sremkit.audit.fingerprint.ROWS_AT_ONCE", 4)
    values = np.random.default_rng(0).standard_normal((11, 3))
    values[[2, 3, 9], 1] = np.nan
    told: list[tuple[int, int]] = []
    digest, problems = read_features_once(ArrayFeatures(values), lambda *numbers: told.append(numbers))
    assert sorted(problems) == [2, 3, 9]
    assert "row 9" in problems[9]
    assert told == [(0, 11), (4, 11), (8, 11), (11, 11)]
    values[0, 0] += 1
    assert read_features_once(ArrayFeatures(values))[0] != digest


def test_better_texts_and_images_are_named_by_their_own_numbers(tmp_path: Path) -> None:
    from sremkit.audit.preparation import Judgeable
    from sremkit.audit.sources import source_of_pairs
    from sremkit.audit.verdicts import Verdicts

    pairs = make_pairs()
    numbers = dict.fromkeys(("rank_i2t", "rank_t2i", "fold"), np.array([1, 1, 1]))
    energies = dict.fromkeys(("energy_i2t", "energy_t2i"), np.zeros(3, dtype=np.float32))
    verdicts = Verdicts(
        mismatch_score=np.array([0.1, 0.9, 0.1]),
        is_mismatch=np.array([True, False, True]),
        better_text=np.array([1, -1, -1]),
        better_image=np.array([0, -1, 1]),
        candidates=3,
        noise_rate=None,
        note="",
        **numbers,
        **energies,
    )
    alone = np.full(3, -1)
    judgeable = Judgeable(pairs, np.arange(3), {})
    table = build_table(
        source_of_pairs(pairs), judgeable, verdicts, verdicts.is_mismatch, Duplicates(alone, alone)
    )
    assert table["better_text"].to_pylist() == ["two", None, None]
    assert table["better_text_id"].to_pylist() == ["q", None, None]
    assert table["better_image"].to_pylist() == ["x", None, "y"]


def test_features_that_were_extracted_before_are_audited_as_they_are(tmp_path: Path) -> None:
    source = open_source(write_features(tmp_path / "features", {"train": 3, "val": 2}))
    assert len(source.pairs) == 10
    assert source.rows.columns["split"] == ["train"] * 6 + ["val"] * 4
    assert source.pairs.image_features.rows(np.array([4])).values.tolist() == [[4.0, 4.0, 4.0]]

"""Fingerprints of inputs, checks of features, and selections of pairs."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest

from audit.small_tables import make_pairs
from layouts import write_image, write_shard
from sremkit.audit.embed import (
    MeanOfRegions,
    check_features,
    fingerprint_pairs,
    fingerprint_rows,
)
from sremkit.audit.inputs import open_source, rows_of_pairs
from sremkit.data.features import ArrayFeatures
from sremkit.data.images import image_state, only_used_images
from sremkit.data.pairs import FeatureRows, Skipped

pytest.importorskip("pyarrow")


def test_the_mean_of_regions_leaves_padding_out() -> None:
    # image 0 has the regions 1 and 3, image 1 only 5: means 2 and 5; with the padding it would be 2.5
    class Padded(ArrayFeatures):
        def rows(self, indices: np.ndarray) -> FeatureRows:
            return FeatureRows(super().rows(indices).values, np.array([[True, True], [True, False]])[indices])

    padded = Padded(np.array([[[1.0], [3.0]], [[5.0], [0.0]]]))
    assert MeanOfRegions(padded).rows(np.array([0, 1])).values[:, 0].tolist() == [2.0, 5.0]


def test_selected_pairs_have_no_unused_images() -> None:
    chosen = only_used_images(make_pairs(), np.array([2, 0]))
    assert list(chosen.pair_ids) == ["r", "p"]
    assert list(chosen.image_ids) == ["y"]
    assert chosen.image_of_text.tolist() == [0, 0]
    assert chosen.image_features.rows(np.array([0])).values.tolist() == [[3.0, 4.0]]
    assert chosen.text_features.rows(np.array([0, 1])).values.tolist() == [[7.0], [5.0]]


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


def test_another_image_under_the_same_name_has_another_state(tmp_path: Path) -> None:
    path = write_image(tmp_path / "a.png")
    path.with_suffix(".txt").write_text("one\n")
    images = open_source(tmp_path).pairs.images
    os.utime(path, ns=(5, 5))
    before = image_state(images, 0)
    os.utime(path, ns=(6, 6))
    assert image_state(images, 0) != before
    path.unlink()
    assert image_state(images, 0) == ["missing"]


def test_images_in_one_archive_differ_by_their_place(tmp_path: Path) -> None:
    shard = write_shard(tmp_path / "0.tar", {"a": "one", "b": "two"})
    images = open_source(shard).pairs.images
    assert image_state(images, 0) != image_state(images, 1)
    chosen = only_used_images(open_source(shard).pairs, np.array([1]))
    assert image_state(chosen.images, 0) == image_state(images, 1)


def test_selected_images_keep_their_state(tmp_path: Path) -> None:
    """`Pairs.select_images` once had a class of its own, in which no date was found: caches took new images for old."""
    shard = write_shard(tmp_path / "0.tar", {"a": "one", "b": "two"})
    pairs = open_source(shard).pairs
    chosen = pairs.select(np.array([1])).select_images(np.array([1]))
    assert image_state(chosen.images, 0) == image_state(pairs.images, 1) is not None


def test_the_fingerprint_of_rows_depends_on_columns_and_problems() -> None:
    rows = rows_of_pairs(make_pairs(), {"note": ["a", "b", "c"]})
    assert fingerprint_rows(rows) != fingerprint_rows(rows_of_pairs(make_pairs(), {"note": ["a", "b", "d"]}))
    broken = make_pairs(skipped=Skipped(places=(("a.txt", "no image"),)))
    assert fingerprint_rows(rows_of_pairs(broken)) != fingerprint_rows(rows_of_pairs(make_pairs()))


def test_one_pass_finds_every_unusable_row(monkeypatch) -> None:
    monkeypatch.setattr("sremkit.audit.embed.CHUNK_ROWS", 4)
    values = np.random.default_rng(0).standard_normal((11, 3))
    values[[2, 3, 9], 1] = np.nan
    reported: list[tuple[int, int]] = []
    digest, problems = check_features(ArrayFeatures(values), lambda *numbers: reported.append(numbers))
    assert sorted(problems) == [2, 3, 9]
    assert "row 9" in problems[9]
    assert reported == [(0, 11), (4, 11), (8, 11), (11, 11)]
    values[0, 0] += 1
    assert check_features(ArrayFeatures(values))[0] != digest

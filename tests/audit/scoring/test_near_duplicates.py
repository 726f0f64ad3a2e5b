"""Planted duplicates are found, and nothing else."""

from __future__ import annotations

import time
import tracemalloc
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sremkit.audit.scoring import near_duplicates
from sremkit.audit.scoring.near_duplicates import (
    caption_groups,
    equal_groups,
    fold_groups,
    image_groups,
    plain_caption,
)


def test_captions_equal_up_to_case_spaces_and_punctuation_form_a_group() -> None:
    texts = ["A dog.", "a cat", "a  DOG !", "a bird", "A cat", "'a' dog"]
    assert caption_groups(texts).tolist() == [0, 1, 0, -1, 1, 0]
    assert caption_groups(texts).dtype == np.int64


@pytest.mark.parametrize(
    ("text", "plain"),
    [
        ("A dog's  T-shirt!", "a dogs t shirt"),
        ("A dog’s t_shirt\u00a0", "a dogs t shirt"),
        ("STRASSE", plain_caption("Straße")),  # casefold, not lower
        ("ｆｕｌｌ　ｗｉｄｔｈ", "full width"),
        ("5 €", "5 €"),  # a sign is not punctuation: 5 € are not 5 $
        ("一隻狗，在雪地。", "一隻狗 在雪地"),
        ("?!", "?!"),
    ],
)
def test_a_plain_caption_keeps_what_has_meaning(text: str, plain: str) -> None:
    assert plain_caption(text) == plain


def test_vowel_signs_of_hindi_are_no_punctuation() -> None:
    """A pattern of word characters would drop them and make these two words one."""
    assert caption_groups(["कि", "की", "कि ।"]).tolist() == [0, -1, 0]


def test_captions_of_nothing_are_no_duplicates_and_punctuation_equals_only_itself() -> None:
    assert caption_groups(["", "  ", "", "?", "!", "?"]).tolist() == [-1, -1, -1, 0, -1, 0]
    assert caption_groups([]).tolist() == []


@given(st.lists(st.sampled_from(["a b", "A  b.", "ab", "c", "C!", ""]), max_size=12))
def test_two_captions_share_a_group_exactly_when_they_are_plainly_equal(texts: list[str]) -> None:
    groups = caption_groups(texts)
    for i, left in enumerate(texts):
        for j, right in enumerate(texts):
            if i != j:
                same = groups[i] == groups[j] and groups[i] != -1
                assert same == (plain_caption(left) == plain_caption(right) != "")


def loop_groups(vectors: np.ndarray, threshold: float) -> list[int]:
    """Every pair looked at in float64, groups grown until nothing changes."""
    n = len(vectors)
    x = vectors.astype(np.float64)
    group = list(range(n))
    changed = True
    while changed:
        changed = False
        for i in range(n):
            for j in range(i + 1, n):
                cosine = sum(x[i] * x[j]) / (sum(x[i] ** 2) * sum(x[j] ** 2)) ** 0.5
                if cosine >= threshold and group[i] != group[j]:
                    group[i] = group[j] = min(group[i], group[j])
                    changed = True
    numbers: dict[int, int] = {}
    return [numbers.setdefault(g, len(numbers)) if group.count(g) > 1 else -1 for g in group]


def planted(rng: np.random.Generator, n: int, d: int, copies: int, distance: float) -> np.ndarray:
    """Pooled features are positive; some rows are other rows, scaled and disturbed."""
    vectors = np.abs(rng.normal(size=(n, d)))
    target = rng.permutation(n)[: 2 * copies]
    source = vectors[target[copies:]]
    noise = rng.normal(size=source.shape) / np.sqrt(d) * np.linalg.norm(source, axis=1, keepdims=True)
    vectors[target[:copies]] = 3 * (source + distance * noise)
    return vectors


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("block", [7, 2048])
@pytest.mark.parametrize("many", [0, 20_000])
@pytest.mark.parametrize("width", [3, 96])
def test_groups_are_those_of_looking_at_every_pair(
    monkeypatch: pytest.MonkeyPatch, seed: int, block: int, many: int, width: int
) -> None:
    """Whatever the size of blocks, the width of the sketch, and the way that candidates are looked at."""
    monkeypatch.setattr(near_duplicates, "_BLOCK", block)
    monkeypatch.setattr(near_duplicates, "_MAX_SINGLE", many)
    monkeypatch.setattr(near_duplicates, "_SKETCH_WIDTH", width)
    monkeypatch.setattr(near_duplicates, "_PAIRS_PER_CHUNK", 5)
    vectors = planted(np.random.default_rng(seed), n=30, d=12, copies=9, distance=0.25)
    groups = image_groups(vectors.astype(np.float32))
    assert groups.tolist() == loop_groups(vectors.astype(np.float32), 0.95)
    assert 2 < groups.max() + 1 < 15  # else there would be nothing to tell apart


def test_planted_copies_are_found_and_nothing_else() -> None:
    rng = np.random.default_rng(0)
    vectors = rng.normal(size=(5000, 64)).astype(np.float16)
    vectors[4000] = vectors[10]
    vectors[4999] = -vectors[11]  # the opposite is no copy
    vectors[3000] = 2 * vectors[20]  # the length says nothing
    groups = image_groups(vectors)
    assert np.flatnonzero(groups >= 0).tolist() == [10, 20, 3000, 4000]
    assert groups[[10, 4000, 20, 3000]].tolist() == [0, 0, 1, 1]


def test_images_hang_together_through_those_in_between() -> None:
    # cos 15° = 0.966, cos 30° = 0.866: the first and the third are alike only through the second.
    angles = np.deg2rad([0, 30, 15, 90, 200])
    vectors = np.stack([np.cos(angles), np.sin(angles)], axis=1)
    assert image_groups(vectors).tolist() == [0, 0, 0, -1, -1]
    assert image_groups(vectors[[0, 1, 3, 4]]).tolist() == [-1, -1, -1, -1]


def test_the_threshold_itself_is_near_enough_and_just_below_is_not(monkeypatch: pytest.MonkeyPatch) -> None:
    # (3, 4) and (4, 3): 24 / 25 = 0.96
    vectors = np.array([[3.0, 4.0], [4.0, 3.0]])
    copies = np.repeat(vectors[:1] / 7, 3, axis=0)
    for threshold, rows, groups in ((0.96, vectors, [0, 0]), (0.9601, vectors, [-1, -1]), (1.0, copies, [0, 0, 0])):
        monkeypatch.setattr(near_duplicates, "THRESHOLD", threshold)
        assert image_groups(rows).tolist() == groups


def test_rows_without_a_direction_stay_alone() -> None:
    vectors = np.ones((8, 4), dtype=np.float32)
    vectors[[1, 2]] = 0
    vectors[3, 0] = np.nan
    vectors[4, 1] = np.inf
    vectors[5] *= 1e30
    vectors[6] *= 1e-30
    assert image_groups(vectors).tolist() == [0, -1, -1, -1, -1, 0, 0, 0]


def test_few_vectors_are_no_trouble() -> None:
    assert image_groups(np.zeros((0, 4))).tolist() == []
    assert image_groups(np.ones((1, 4))).tolist() == [-1]
    with pytest.raises(ValueError, match=r"must be \(n, d\)"):
        image_groups(np.ones(4))


def test_vectors_on_disk_are_read_as_they_are(tmp_path: Path) -> None:
    vectors = planted(np.random.default_rng(3), n=50, d=16, copies=5, distance=0).astype(np.float16)
    np.save(tmp_path / "v.npy", vectors)
    mapped = np.load(tmp_path / "v.npy", mmap_mode="r")
    assert image_groups(mapped).tolist() == image_groups(vectors).tolist()
    assert (image_groups(mapped) >= 0).sum() == 10


def test_above_the_cap_only_equal_vectors_are_grouped(monkeypatch: pytest.MonkeyPatch) -> None:
    vectors = np.random.default_rng(0).normal(size=(30, 8)).astype(np.float32)
    vectors[20] = vectors[3]
    vectors[21] = 1.001 * vectors[4]
    vectors[[25, 26]] = 0
    assert np.flatnonzero(image_groups(vectors) >= 0).tolist() == [3, 4, 20, 21]
    monkeypatch.setattr(near_duplicates, "MAX_IMAGES", 29)
    assert np.flatnonzero(image_groups(vectors) >= 0).tolist() == [3, 20]


def test_copies_of_an_image_share_a_group_and_others_do_not() -> None:
    images = np.random.default_rng(0).normal(size=(50, 20)).astype(np.float32)
    images[7] = images[3]
    images[9] = 1.01 * images[4] + 1e-3
    group = fold_groups(images)
    assert group[7] == group[3]
    assert group[9] == group[4]
    assert len(np.unique(group)) == 48


def test_copies_are_found_in_a_narrow_cone_where_all_vectors_are_nearly_parallel() -> None:
    images = 10 + np.random.default_rng(0).normal(size=(200, 20)).astype(np.float32)  # all cosines above 0.95
    images[7] = images[3]
    group = fold_groups(images)
    assert group[7] == group[3]
    assert len(np.unique(group)) == 199


def test_equal_rows_have_equal_numbers() -> None:
    texts = np.random.default_rng(0).normal(size=(20, 6)).astype(np.float32)
    texts[11] = texts[4]
    numbers = equal_groups(texts)
    assert numbers[11] == numbers[4]
    assert len(np.unique(numbers)) == 19


@pytest.mark.alone
def test_thirty_thousand_vectors_take_seconds_and_little_memory() -> None:
    """Features as networks give them: positive, and mostly in a few hundred directions."""
    rng = np.random.default_rng(0)
    n, d = 30_000, 1280
    spread = 1 / np.arange(1, d + 1, dtype=np.float32) ** 0.5
    vectors = np.abs(rng.standard_normal((n, d), dtype=np.float32) * spread)
    vectors[29_000] = vectors[5]
    started = time.process_time()
    groups = image_groups(vectors)
    assert time.process_time() - started < 30  # 4 s on one quiet core
    assert np.flatnonzero(groups >= 0).tolist() == [5, 29_000]

    tracemalloc.start()
    image_groups(vectors[:12_000])
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 150e6  # all products of 12,000 would be 576 MB


@pytest.mark.alone
def test_images_that_are_all_alike_are_no_trouble() -> None:
    vectors = 1 + np.random.default_rng(0).normal(size=(6000, 512)) * 1e-3
    started = time.process_time()
    assert image_groups(vectors.astype(np.float32)).tolist() == [0] * 6000
    assert time.process_time() - started < 20  # checked one by one, eighteen million pairs take much longer


@pytest.mark.data
def test_the_one_image_that_stands_twice_in_flickr8k_is_found(data_root: Path) -> None:
    vectors = np.load(data_root / "flickr8k" / "pooled.npy", mmap_mode="r")
    names = (data_root / "flickr8k" / "images.txt").read_text().split()
    groups = image_groups(vectors)
    assert (groups >= 0).sum() == 2
    first, second = (names[k].split("_")[0] for k in np.flatnonzero(groups >= 0))
    assert first != second

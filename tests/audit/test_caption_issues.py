"""Issues of captions: found in examples made by hand, and hardly ever in real captions."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest

from sremkit.audit.caption_issues import (
    count_unrelated_images,
    find_boilerplate,
    find_conflicts,
    find_duplicate_rows,
    find_other_language,
)
from sremkit.audit.scoring.near_duplicates import caption_groups, image_groups
from sremkit.data.pairs import MISSING


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        ("IMG_2034.JPG", "file name"),
        ("DSC 00012", "file name"),
        ("https://shop.example/item?id=3", "web address"),
        ("404 Not Found", "placeholder or error message"),
        ("No image available.", "placeholder or error message"),
        ("N/A", "placeholder or error message"),
        ("--- 123 ---", "no words"),
        ("a red car", None),
        ("a photo of a dog at www.example.org", None),
        ("dog", None),
        ("犬", None),
    ],
)
def test_single_captions_are_boilerplate_or_not(text: str, kind: str | None) -> None:
    assert find_boilerplate([text], np.zeros(1, dtype=np.int64)) == [kind]


def test_a_title_on_a_tenth_of_the_images_is_boilerplate_and_captions_of_one_image_are_not() -> None:
    texts = [f"thing {chr(97 + k % 26)}{chr(97 + k // 26)} stands alone" for k in range(300)]
    for k in range(0, 300, 10):
        texts[k] = f"Order no. {k}"
    found = find_boilerplate(texts, np.arange(300))
    assert [kind == "repeated caption" for kind in found] == [k % 10 == 0 for k in range(300)]
    assert find_boilerplate(["the same"] * 300, np.zeros(300, dtype=np.int64)) == [None] * 300


def test_a_shop_template_around_other_words_is_boilerplate() -> None:
    words = [chr(97 + k % 26) + chr(97 + k // 26) for k in range(400)]
    texts = [f"{w} sits here quietly {w}{w}" for w in words]
    for k in range(0, 400, 10):
        texts[k] = f"{words[k]} | buy online at the best price"
    found = find_boilerplate(texts, np.arange(400))
    assert [kind == "template" for kind in found] == [k % 10 == 0 for k in range(400)]


def test_other_scripts_and_languages_than_the_rest_are_found() -> None:
    texts = ["a dog runs on the grass with a ball"] * 20 + [
        "Собака бежит по траве",
        "ein Hund läuft mit einem Ball auf der Wiese",
        "un chien court dans les champs avec une balle",
        "Mercedes-Benz",
        "狗在草地上",
    ]
    assert find_other_language(texts)[20:] == ["Cyrillic", "German", "French", None, "Han"]
    assert find_other_language(texts)[:20] == [None] * 20
    mixed = ["Собака бежит", "a dog runs on the grass"] * 5
    assert find_other_language(mixed) == [None] * 10  # there is no rest


def test_a_caption_on_many_images_counts_only_if_they_are_unrelated() -> None:
    rng = np.random.default_rng(0)
    vectors = rng.standard_normal((600, 32)).astype(np.float32)
    vectors[10:20] += 6 * rng.standard_normal(32)  # ten images alike
    captions, alone = np.full(600, MISSING), np.full(600, MISSING)
    captions[:8], captions[10:20], captions[30:33] = 0, 1, 2
    found = count_unrelated_images(captions, alone, np.arange(600), vectors)
    assert found[:8].tolist() == [8] * 8
    assert (found[8:] == MISSING).all()  # alike, or three only
    copies = alone.copy()
    copies[:5] = 0  # near-duplicates count once: four images are left
    assert (count_unrelated_images(captions, copies, np.arange(600), vectors)[:8] == MISSING).all()


def test_captions_of_near_duplicates_conflict_if_none_is_alike() -> None:
    vectors = np.random.default_rng(0).standard_normal((200, 64))
    vectors[1] = vectors[0] + 0.1 * vectors[1]  # agrees with the caption of its copy
    group = np.full(200, MISSING)
    group[:2], group[2:4] = 0, 1
    found = find_conflicts(group, np.arange(200), vectors)
    assert found[:4].tolist() == [False, False, True, True]
    one_image = np.arange(200)
    one_image[3] = 2  # two captions of one image may differ
    assert not find_conflicts(group, one_image, vectors).any()


def test_a_repeated_row_names_the_first_one() -> None:
    captions, images = np.array([0, 0, 0, 1, 1]), np.array([MISSING, 5, 5, MISSING, MISSING])
    found = find_duplicate_rows(list("abcde"), captions, images, np.array([0, 1, 2, 3, 3]))
    assert found == [None, None, "b", None, "d"]  # a has another image; c a near-duplicate of b's


@pytest.mark.data
def test_real_captions_have_hardly_any_issue() -> None:
    folder = Path(os.environ.get("SREMKIT_DATA", "../shared/data")) / "flickr8k"
    if not (folder / "pairs.tsv").is_file():
        pytest.skip(f"there is no Flickr8k in {folder}")
    rows = [line.split("\t") for line in (folder / "pairs.tsv").read_text(encoding="utf-8").splitlines()[1:]]
    number = {name: k for k, name in enumerate((folder / "images.txt").read_text().split())}
    texts, image_of_text = [row[3] for row in rows], np.array([number[row[0]] for row in rows])
    assert sum(kind is not None for kind in find_boilerplate(texts, image_of_text)) <= 10
    assert not any(find_other_language(texts))
    vectors = np.load(folder / "pooled.npy")
    groups = image_groups(vectors)[image_of_text]
    counts = count_unrelated_images(caption_groups(texts), groups, image_of_text, vectors.astype(np.float32))
    assert (counts == MISSING).all()
    assert not find_conflicts(groups, image_of_text, np.load(folder / "sentences.npy")).any()

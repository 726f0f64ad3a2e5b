"""When the input changes, only new images and texts are encoded; the other features are reused."""

from __future__ import annotations

import csv
import os
from pathlib import Path

import numpy as np
import pytest

from fake_encoders import FakeImages, FakeSentences
from layouts import image_bytes, write_image, write_tar
from sremkit.audit.audit import Audit
from sremkit.cli.main import main
from sremkit.errors import DataError
from sremkit.features import extract

pytest.importorskip("pyarrow")


@pytest.fixture
def encoded(scorer, monkeypatch: pytest.MonkeyPatch) -> dict[str, int]:
    """How many images and texts went through the encoders."""
    counts = {"images": 0, "texts": 0}
    encode_image, encode_texts = FakeImages.encode, FakeSentences.encode

    def counted_image(self, image):
        counts["images"] += 1
        return encode_image(self, image)

    def texts(self, given):
        counts["texts"] += len(given)
        return encode_texts(self, given)

    monkeypatch.setattr(FakeImages, "encode", counted_image)
    monkeypatch.setattr(FakeSentences, "encode", texts)
    return counts


def write_rows(folder: Path, numbers: list[int]) -> Path:
    """A table of images, all different, with captions of different lengths."""
    for k in numbers:
        if not (folder / f"{k}.png").exists():
            write_image(folder / f"{k}.png", (k, 2 * k, 255 - k))
    with (folder / "pairs.csv").open("w", newline="") as file:
        rows = [[k, f"{k}.png", " ".join(["word"] * (k + 1))] for k in numbers]
        csv.writer(file).writerows([["id", "image", "text"], *rows])
    return folder / "pairs.csv"


def features(out: Path, key: str) -> list[np.ndarray]:
    return [np.load(out / "features" / key / f"{kind}.npy") for kind in ("pooled", "sentences")]


def find(path: Path, out: Path, **options) -> Audit:
    return Audit.open(path).find(out, workers=0, **options)


def test_ten_more_rows_cost_ten_images_and_ten_texts(tmp_path: Path, encoded) -> None:
    first = find(write_rows(tmp_path, list(range(40))), tmp_path / "out")
    assert encoded == {"images": 40, "texts": 40}
    numbers = [*range(45, 50), *range(40), *range(40, 45)]  # before and behind: every row moves
    more = find(write_rows(tmp_path, numbers), tmp_path / "out")
    assert encoded == {"images": 50, "texts": 50}
    work = more.summary["extracted"]
    assert [(work[what]["encoded"], work[what]["reused"]) for what in ("images", "captions")] == [(10, 40)] * 2
    assert first.summary["extracted"]["images"]["encoded"] == 40
    fresh = find(tmp_path / "pairs.csv", tmp_path / "fresh")
    for taken, made in zip(
        features(tmp_path / "out", more.summary["key"]),
        features(tmp_path / "fresh", fresh.summary["key"]),
        strict=True,
    ):
        np.testing.assert_array_equal(taken, made)


def test_an_image_that_changed_under_its_name_is_encoded_again(tmp_path: Path, encoded) -> None:
    path = write_rows(tmp_path, list(range(6)))
    first = find(path, tmp_path / "out")
    write_image(tmp_path / "3.png", "orange")
    os.utime(tmp_path / "3.png", ns=(1, 1))  # the clock may be too coarse for so quick a change
    again = find(path, tmp_path / "out")
    assert encoded == {"images": 7, "texts": 6}
    pooled, _ = features(tmp_path / "out", again.summary["key"])
    before, _ = features(tmp_path / "out", first.summary["key"])
    assert pooled[3, 0] > 0.8 > 0.1 > before[3, 0]  # orange has much red, number 3 had 3 of 255


def test_a_changed_caption_costs_one_text(tmp_path: Path, encoded) -> None:
    path = write_rows(tmp_path, list(range(6)))
    find(path, tmp_path / "out")
    path.write_text(path.read_text().replace("2,2.png,word word word", "2,2.png,another"))
    again = find(path, tmp_path / "out")
    assert encoded == {"images": 6, "texts": 7}
    assert features(tmp_path / "out", again.summary["key"])[1][:, 0].tolist() == [4, 9, 7, 19, 24, 29]


def test_features_of_another_encoder_are_not_taken_over(tmp_path: Path, encoded, monkeypatch) -> None:
    path = write_rows(tmp_path, list(range(6)))
    find(path, tmp_path / "out")
    monkeypatch.setattr(FakeImages, "description", "another one")
    find(path, tmp_path / "out")
    assert encoded == {"images": 12, "texts": 6}


def test_an_image_that_could_not_be_read_is_tried_again(tmp_path: Path, encoded) -> None:
    path = write_rows(tmp_path, list(range(6)))
    whole = (tmp_path / "2.png").read_bytes()
    (tmp_path / "2.png").write_bytes(whole[: len(whole) // 2].ljust(len(whole), b"\0"))
    os.utime(tmp_path / "2.png", ns=(1, 1))
    assert find(path, tmp_path / "out").summary["scored"] == 5
    (tmp_path / "2.png").write_bytes(whole)
    os.utime(tmp_path / "2.png", ns=(1, 1))  # as large and as old as the broken one
    write_rows(tmp_path, list(range(7)))
    assert find(path, tmp_path / "out").summary["scored"] == 7
    assert encoded == {"images": 7, "texts": 7}


def test_another_shard_costs_its_own_samples_alone(tmp_path: Path, encoded) -> None:
    def write_shard(name: str) -> None:
        members = []
        for k in range(3):
            members += [
                (f"{name}{k}.png", image_bytes()),
                (f"{name}{k}.txt", f"caption {name}{k}{'!' * k}".encode()),
            ]
        write_tar(tmp_path / "shards" / f"{name}.tar", members)

    write_shard("b")
    find(tmp_path / "shards", tmp_path / "out")
    write_shard("a")
    find(tmp_path / "shards", tmp_path / "out")
    assert encoded == {"images": 6, "texts": 6}


def test_workers_take_over_as_well(tmp_path: Path, scorer) -> None:
    find(write_rows(tmp_path, list(range(40))), tmp_path / "out")
    more = Audit.open(write_rows(tmp_path, list(range(45)))).find(tmp_path / "out", workers=1)
    fresh = find(tmp_path / "pairs.csv", tmp_path / "fresh")
    assert more.summary["extracted"]["images"]["reused"] == 40
    for taken, made in zip(
        features(tmp_path / "out", more.summary["key"]),
        features(tmp_path / "fresh", fresh.summary["key"]),
        strict=True,
    ):
        np.testing.assert_array_equal(taken, made)


def test_features_of_an_audit_serve_features_and_another_audit(
    tmp_path: Path, encoded: dict[str, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    path = write_rows(tmp_path, [1, 2, 3, 4])
    first = Audit.from_csv(path).find(tmp_path / "one", workers=0)
    assert encoded == {"images": 4, "texts": 4}
    monkeypatch.setattr(extract, "EfficientNetEncoder", FakeImages)
    monkeypatch.setattr(extract, "MiniLMEncoder", FakeSentences)
    command = ["features", str(path), "-o", str(tmp_path / "f"), "--reuse", str(tmp_path / "one"), "--workers", "0"]
    assert main(command) == 0
    assert encoded == {"images": 4, "texts": 4}
    for kind, expected in zip(("pooled", "sentences"), features(tmp_path / "one", first.summary["key"]), strict=True):
        np.testing.assert_array_equal(np.load(tmp_path / "f" / f"{kind}.npy"), expected)
    write_rows(tmp_path, [2, 3, 4, 5])
    Audit.from_csv(path).find(tmp_path / "two", workers=0, reuse=[tmp_path / "f"])
    assert encoded == {"images": 5, "texts": 5}
    with pytest.raises(DataError, match="holds no finished features"):
        Audit.from_csv(path).find(tmp_path / "three", workers=0, reuse=[tmp_path / "nowhere"])

"""The bench of training on pixels runs all its parts in one call, on a small collection in Flickr8k's layout."""

from __future__ import annotations

import csv
from pathlib import Path

import pytest

from benchmarks import pixels
from layouts import write_flickr8k

TINY = ["--images", "8", "--image-size", "16", "--patch-size", "8", "--batch-size", "8", "--worker-counts", "0", "1",
        "--steps", "2", "--warm-steps", "1", "--epochs", "3", "--warmup-epochs", "1", "--rates", "0.4"]  # fmt: skip


def rows_of(file: Path) -> list[dict[str, str]]:
    with file.open() as opened:
        return list(csv.DictReader(opened))


def test_every_part_writes_its_rows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SREMKIT_CACHE", str(tmp_path / "cache"))
    source = write_flickr8k(tmp_path / "flickr8k", {"train": 16, "val": 4, "test": 4})
    out = tmp_path / "out"
    assert pixels.main(["decode", "step", "recall", *TINY, "--source", str(source), "-o", str(out)]) == 0
    decoded = rows_of(out / "decode.csv")
    assert [row["workers"] for row in decoded] == ["0", "1", "0"]
    assert all(float(row["images_per_second"]) > 0 for row in decoded)
    steps = rows_of(out / "step.csv")
    assert [row["what"] for row in steps] == ["training, cache auto", "training, cache off"]
    assert all(float(row["pairs_per_second"]) > 0 and 0 <= float(row["waiting_share"]) < 1 for row in steps)
    recall = rows_of(out / "recall.csv")
    assert [(row["method"], row["noise"]) for row in recall] == [
        ("infonce", "0.4"),
        ("srem", "0.4"),
        ("srem-plus", "0.4"),
    ]
    assert all(0 <= float(row["test_rsum"]) <= 600 for row in recall)

"""Small inputs: pairs in memory, and a CSV file with unusual column names and its audit."""

from __future__ import annotations

import csv
from dataclasses import replace
from pathlib import Path

import numpy as np

from layouts import write_image
from sremkit.audit.audit import Audit
from sremkit.data.features import ArrayFeatures
from sremkit.data.pairs import Pairs

HEADER = ["uid", "file", "title", "license"]
GOOD = [
    ["a", "0.png", "a red square", "mit"],
    ["b", "1.png", "wrong caption", "mit"],
    ["c", "2.png", "a <b>wrong</b> one, with a comma", "x"],
    ["d", "3.png", "A red   square!", "x"],
]


def write_table(folder: Path, rows: list[list[str]], *, header: list[str] | None = None) -> Path:
    folder.mkdir(exist_ok=True)
    for k, color in enumerate(["red", "green", "blue", "white"]):
        write_image(folder / f"{k}.png", color)
    with (folder / "pairs.csv").open("w", newline="", encoding="utf-8") as file:
        csv.writer(file).writerows([header or HEADER, *rows])
    return folder / "pairs.csv"


def audited(path: Path, out: Path, **options) -> Audit:
    return Audit.from_csv(path, image="file", id="uid", **options).find(out, workers=0)


def column(audit: Audit, name: str) -> list:
    return audit.get_issues()[name].to_pylist()


def make_pairs(**changes) -> Pairs:
    """Three pairs of two images, with features."""
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

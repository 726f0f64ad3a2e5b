"""A small CSV file of pairs with unusual column names, and an audit of it."""

from __future__ import annotations

import csv
from pathlib import Path

from layouts import write_picture
from sremkit.audit.audit import Audit

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
        write_picture(folder / f"{k}.png", color)
    with (folder / "pairs.csv").open("w", newline="", encoding="utf-8") as file:
        csv.writer(file).writerows([header or HEADER, *rows])
    return folder / "pairs.csv"


def audited(path: Path, out: Path, **options) -> Audit:
    return Audit.from_csv(path, image="file", id="uid", **options).find(out, workers=0)


def column(audit: Audit, name: str) -> list:
    return audit.get_issues()[name].to_pylist()

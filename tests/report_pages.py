"""Tables of verdicts made up for the tests of the audit's report, and the page that comes of them."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from PIL import Image

from sremkit.audit.report import write_report

VOID = {"meta", "img", "br", "line", "rect", "link", "input", "hr"}


class Page(HTMLParser):
    """What a browser would make of a page: elements in order, their attributes, and the text of each."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.html = html
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.texts: list[str] = []  # of element k, with everything in it
        self._open: list[int] = []
        self.feed(html)
        self.close()
        assert self._open == [], "an element was never closed"

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))
        self.texts.append("")
        if tag not in VOID:
            self._open.append(len(self.elements) - 1)

    def handle_endtag(self, tag: str) -> None:
        if tag in VOID:
            return
        assert self.elements[self._open.pop()][0] == tag, f"</{tag}> closes something else"

    def handle_data(self, data: str) -> None:
        for k in self._open:
            self.texts[k] += data

    def all(self, tag: str, css: str = "") -> list[str]:
        """The texts of elements of a tag and a class, with single spaces."""
        return [
            " ".join(text.split())
            for (name, attributes), text in zip(self.elements, self.texts, strict=True)
            if name == tag and (not css or css in (attributes.get("class") or "").split())
        ]

    def attributes(self, tag: str, key: str) -> list[str]:
        return [attributes.get(key) or "" for name, attributes in self.elements if name == tag]

    @property
    def text(self) -> str:
        return self.all("body")[0]


def columns(n: int, **others: Any) -> dict[str, Any]:
    """A table of n pairs, the first half of them wrong, worst first."""
    table = {
        "id": [f"pair-{k}" for k in range(n)],
        "image": [f"image-{k}.jpg" for k in range(n)],
        "text": [f"caption {k}" for k in range(n)],
        "match_probability": (np.arange(n) + 0.5) / n,
        "is_mismatch": np.arange(n) < n // 2,
        "energy_i2t": np.linspace(1, -5, n).astype(np.float32),
        "energy_t2i": np.linspace(2, -6, n).astype(np.float32),
        "rank_i2t": n - np.arange(n),
        "rank_t2i": np.arange(n, 0, -1),
        "better_text": [f"better {k}" if k < n // 2 else None for k in range(n)],
    }
    return {**table, **others}


def make(
    folder: Path,
    table: Mapping[str, Any],
    summary: Mapping[str, Any] | None = None,
    image_of: Callable[[int], Image.Image | None] | None = None,
    **options: Any,
) -> Page:
    folder.mkdir(parents=True, exist_ok=True)
    pq.write_table(pa.table(dict(table)), folder / "pairs.parquet", **options)
    if summary is not None:
        (folder / "summary.json").write_text(json.dumps(summary), encoding="utf-8")
    written = write_report(folder, image_of=image_of)
    assert written == folder / "report.html"
    return Page(written.read_text(encoding="utf-8"))


def plain(row: int) -> Image.Image:
    """An image whose colour is its row."""
    return Image.new("RGB", (320, 200), (row % 256, 40, 200))


SUMMARY = {
    "pairs": 6000,
    "scored": 5986,
    "mismatches": 2417,
    "noise_rate": {"estimate": 0.397, "low": 0.3811, "high": 0.414},
    "note": "",
    "problems": {},
    "cutoff": {"precision": 0.95},
    "settings": {"seed": 7, "matcher": {"dim": 512}},
    "source": {"path": "/somewhere/web/pairs.csv"},
    "seconds": {"scoring": 12.5},
}


def full_table(n: int, word: str) -> tuple[dict[str, Any], dict[str, Any]]:
    """A table and a summary with `word` in every text that the page shows."""
    table = columns(
        n,
        id=[f"{word}-{k}" for k in range(n)],
        image=[f"{word}-{k}.jpg" for k in range(n)],
        text=[f"{word} {k}" for k in range(n)],
        better_text=[word] * n,
        better_text_id=[word] * n,
        better_image=[f"{word}-1.jpg"] * n,
        duplicate_text_group=[0] * n,
        duplicate_image_group=[0] * n,
        problem=[word if k == 1 else f"apart {k}" if k == 2 else None for k in range(n)],
    )
    summary = {
        "note": word,
        "problems": {word: 1},
        "cutoff": {word: word},
        "settings": {word: {word: word}},
        "source": {"path": "<script>x"},  # of a path only the last part is shown
        "seconds": {word: 1.0},
        "noise_rate": {"estimate": 0.5, "low": 0.4, "high": 0.6},
    }
    return table, summary

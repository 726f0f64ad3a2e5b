"""Finished audits with known verdicts, written directly, and a browser to review them in."""

from __future__ import annotations

import csv
import json
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from layouts import write_image
from sremkit.audit.result_table import METADATA, PAIRS, write_table
from sremkit.io import write_json

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")
FLAGS = ["--no-sandbox", "--disable-gpu", "--disable-background-networking", "--disable-component-update",
         "--disable-sync", "--no-first-run"]  # fmt: skip
COLORS = ["red", "green", "blue", "white"]
SCRIPT = "<script>document.title = 'hacked'</script><img src=x onerror=\"document.title='hacked'\">"


def write_audit(folder: Path, num_pairs: int = 40, *, texts: dict[int, str] | None = None, images: bool = True) -> Path:
    """An audit of a CSV file in `folder`: the first quarter is flagged, pair k has the score k / num_pairs."""
    folder.mkdir(parents=True, exist_ok=True)
    for number, color in enumerate(COLORS):
        write_image(folder / f"{number}.png", color)
    captions = [(texts or {}).get(k, f"caption {k}") for k in range(num_pairs)]
    files = [f"{k % len(COLORS)}.png" for k in range(num_pairs)]
    ids = [f"p{k}" for k in range(num_pairs)]
    with (folder / "pairs.csv").open("w", newline="", encoding="utf-8") as file:
        csv.writer(file).writerows([["uid", "file", "title"], *zip(ids, files, captions, strict=True)])
    score = np.arange(num_pairs) / num_pairs
    flagged = score < 0.25
    nulls = pa.nulls(num_pairs, pa.int64())
    better = [f"better {k}" if flagged[k] else None for k in range(num_pairs)]
    columns = {
        "id": ids,
        "image": files,
        "text": captions,
        "uid": ids,
        "file": files,
        "title": captions,
        "match_probability": score,
        "is_mismatch": flagged,
        "energy_i2t": score,
        "energy_t2i": score,
        "rank_i2t": np.arange(1, num_pairs + 1),
        "rank_t2i": np.arange(1, num_pairs + 1),
        "better_text": pa.array(better, pa.string()),
        "better_text_id": pa.array(ids, pa.string()),
        "better_image": pa.array(["1.png" if flagged[k] else None for k in range(num_pairs)], pa.string()),
        "fold": np.zeros(num_pairs, dtype=np.int64),
        "duplicate_text_group": nulls,
        "duplicate_image_group": nulls,
        "problem": pa.array([None] * num_pairs, pa.string()),
    }
    source = {"path": str(folder / "pairs.csv"), "format": "table", "split": None,
              "options": {"image": "file", "text": "title", "id": "uid"}}  # fmt: skip
    if not images:
        source = {"path": "embeddings", "format": "embeddings", "split": None}
    roles = {"id": "uid", "image": "file", "text": "title"}
    facts = {"own": {"uid": "uid", "file": "file", "title": "title"}, "source": source, "roles": roles}
    audit = folder / "audit"
    audit.mkdir()
    table = pa.table(columns).replace_schema_metadata({METADATA: json.dumps(facts).encode()})
    write_table(table, audit / PAIRS)
    rate = {"estimate": 0.25, "low": 0.2, "high": 0.3}
    summary = {"pairs": num_pairs, "scored": num_pairs, "mismatches": int(flagged.sum()), "noise_rate": rate,
               "expected_precision": 0.88, "cutoff": {"precision": 0.95}, "source": source}  # fmt: skip
    write_json(audit / "audit.json", {"rows": num_pairs})
    write_json(audit / "summary.json", summary)
    return audit


def open_reviewed(audit: Path) -> Any:
    """The audit under review."""
    from sremkit.review.reviewed_audit import ReviewedAudit

    return ReviewedAudit(audit)


def open_review(audit: Path, **options: Any) -> Any:
    """The app of a review."""
    from sremkit.review.app import review_app
    from sremkit.review.images import AuditImages

    reviewed = open_reviewed(audit)
    return review_app(reviewed, AuditImages(audit, reviewed.table.facts["source"]), **options)


@contextmanager
def browser() -> Iterator[Any]:
    """Chromium of the system, without a window; a skip with the reason where there is none."""
    if CHROMIUM is None:
        pytest.skip("no chromium on this machine; install the package 'chromium'")
    playwright = pytest.importorskip("playwright.sync_api", reason="the package 'playwright' is not installed")
    with playwright.sync_playwright() as driver:
        opened = driver.chromium.launch(executable_path=CHROMIUM, headless=True, args=FLAGS)
        try:
            yield opened
        finally:
            opened.close()

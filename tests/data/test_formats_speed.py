"""Reading is fast enough for the largest collections of the field. Measured, so these run alone."""

from __future__ import annotations

import time

import numpy as np
import pytest

from layouts import karpathy_content, write_json, write_precomp
from sremkit.data import read_pairs

COCO_CAPTIONS = 566_435


def captions(count: int) -> list[str]:
    return [f"a man number {k} riding a wave on top of a surfboard" for k in range(count)]


def cpu_seconds_per_pair(path) -> float:
    start = time.process_time()
    pairs = read_pairs(path)
    return (time.process_time() - start) / len(pairs)


@pytest.mark.alone
def test_the_training_captions_of_coco_are_read_in_seconds(tmp_path):
    rows = np.zeros((COCO_CAPTIONS // 5, 1, 1), dtype=np.float32)
    path = write_precomp(tmp_path, "train", rows, captions(COCO_CAPTIONS))
    assert COCO_CAPTIONS * cpu_seconds_per_pair(path) < 4


@pytest.mark.alone
def test_a_table_of_half_a_million_rows_would_be_read_in_seconds(tmp_path):
    lines = [f"https://x.org/{k // 5}.png,{text}" for k, text in enumerate(captions(100_000))]
    (tmp_path / "pairs.csv").write_text("\n".join(["url,text", *lines]))
    assert 500_000 * cpu_seconds_per_pair(tmp_path / "pairs.csv") < 20


@pytest.mark.alone
def test_a_karpathy_file_of_half_a_million_sentences_would_be_read_in_seconds(tmp_path):
    texts = captions(100_000)
    content = karpathy_content({f"{k}.jpg": texts[k : k + 5] for k in range(0, len(texts), 5)})
    path = write_json(tmp_path / "dataset_coco.json", content)
    assert 500_000 * cpu_seconds_per_pair(path) < 40

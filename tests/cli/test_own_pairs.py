"""Training on pairs of one's own: nothing is made wrong unasked, and measuring on training pairs is said."""

from __future__ import annotations

import json
import tomllib
from pathlib import Path

from layouts import write_features
from sremkit.cli.main import main
from sremkit.config.recipes import load_recipe

SMALL = ["--set", "training.epochs=1", "--set", "training.warmup_epochs=1", "--set", "model.embed_size=4"]


def train(source: str, *more: str) -> int:
    return main(["train", "features-dual-srem", "--set", f"data.source={source}", *SMALL, *more])


def test_without_splits_a_message_reports_validation_on_training_pairs(tmp_path: Path, capsys, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    write_features(Path("whole"), {"all": 8}, has_splits=False)
    assert train("whole", "-o", "a") == 0
    said = capsys.readouterr().out
    assert "16 pairs, 0.0 % of them made wrong" in said
    assert "validation is on the training pairs" in said
    assert main(["eval", "a"]) == 0
    assert "learnt by heart" in capsys.readouterr().out
    assert json.loads(Path("a/eval-test.json").read_text())["seen_in_training"]
    write_features(Path("split"), {"train": 6, "val": 4, "test": 4})
    assert train("split", "-o", "b") == 0
    assert main(["eval", "b"]) == 0
    said = capsys.readouterr().out
    assert "validation is on" not in said
    assert "by heart" not in said


def test_a_run_can_be_used_from_another_folder(tmp_path: Path, capsys, monkeypatch) -> None:
    (tmp_path / "here").mkdir()
    (tmp_path / "there").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    write_features(Path("mine"), {"train": 6, "val": 4, "test": 4})
    Path("keep.txt").write_text("pair 1\npair 4\npair 9\n")
    assert train("mine", "--keep", "keep.txt", "-o", "run") == 0
    monkeypatch.chdir(tmp_path / "there")
    assert main(["train", "--resume", "../here/run"]) == 0
    assert main(["eval", "../here/run"]) == 0


def test_noise_is_injected_into_kept_pairs_only_if_requested(tmp_path: Path, monkeypatch, capsys) -> None:
    monkeypatch.chdir(tmp_path)
    write_features(Path("mine"), {"train": 6, "val": 4, "test": 4})
    Path("keep.txt").write_text("pair 1\npair 4\npair 9\n")
    assert load_recipe("flickr8k-dual-srem").noise.rate == 0.4
    kept = ["train", "flickr8k-dual-srem", "--keep", "keep.txt", "--print-config"]
    assert main(kept) == 0
    assert tomllib.loads(capsys.readouterr().out)["noise"]["rate"] == 0
    assert main([*kept, "--set", "noise.rate=0.2"]) == 0
    assert tomllib.loads(capsys.readouterr().out)["noise"]["rate"] == 0.2

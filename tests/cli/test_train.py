"""Train, evaluate, compare and look at the demo, as a user would: through the command line."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
import torch

from sremkit import experiment
from sremkit.cli.main import main
from sremkit.training.run_folder import RunFolder

TINY = [
    "--set", "data.train_options.num_scenes=24", "--set", "data.options.num_scenes=10",
    "--set", "training.epochs=2", "--set", "training.warmup_epochs=1", "--set", "training.decay_after=1",
    "--set", "training.batch_size=32", "--set", "model.embed_size=16", "--set", "model.word_dim=8",
]  # fmt: skip


@pytest.fixture(scope="module")
def run(tmp_path_factory) -> Path:
    out = tmp_path_factory.mktemp("runs") / "srem"
    assert main(["train", "scenes-srem", *TINY, "--out", str(out)]) == 0
    return out


@pytest.fixture(scope="module")
def other_run(tmp_path_factory) -> Path:
    out = tmp_path_factory.mktemp("runs") / "infonce"
    assert main(["train", "scenes-infonce", *TINY, "--out", str(out)]) == 0
    return out


def test_a_run_leaves_what_it_promises(run: Path) -> None:
    assert {entry.name for entry in run.iterdir()} == {
        "config.toml", "record.json", "metrics.jsonl", "checkpoints", "statistics", "tensorboard", "report.html",
    }  # fmt: skip
    record = json.loads((run / "record.json").read_text())
    assert record["noise"]["protocol"] == "caption"
    assert 0.3 < record["noise"]["rate"] <= 0.4
    assert len(record["noise"]["hash"]) == 16
    assert {"sremkit", "python", "torch", "device"} <= set(record["environment"])
    assert record["seconds"] > 0
    assert record["peak_memory_mb"] > 0
    assert len(RunFolder.open(run).read_metrics()) == 3
    page = (run / "report.html").read_text()
    assert page.count("<svg") == 3
    assert record["noise"]["hash"] in page
    assert re.findall(r'(?:src|href)="(?!#|data:)[^"]*"', page) == []  # it loads nothing


def test_tensorboard_can_read_the_events(run: Path) -> None:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    events = EventAccumulator(str(run / "tensorboard"))
    events.Reload()
    assert [event.step for event in events.Scalars("val/rsum")] == [
        row["step"] for row in RunFolder.open(run).read_metrics()
    ]


def test_a_second_run_in_the_same_folder_is_refused(run: Path, capsys) -> None:
    assert main(["train", "scenes-srem", *TINY, "--out", str(run)]) == 2
    assert "holds a run already" in capsys.readouterr().err


def test_resuming_a_finished_run_changes_nothing(run: Path) -> None:
    before = (run / "metrics.jsonl").read_text()
    assert main(["train", "--resume", str(run)]) == 0
    assert (run / "metrics.jsonl").read_text() == before


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["train"], "name a recipe to train, or a run to go on with"),
        (["train", "scenes-srm"], "did you mean 'scenes-srem'"),
        (["train", "scenes-srem", "--set", "training.epoch=3"], "did you mean 'epochs'"),
        (["train", "scenes-srem", "--set", "method.margn=3"], "margn"),
        (["train", "scenes-srem", "--set", "model.embed=3"], "did you mean 'embed_size'"),
        (["train", "scenes-srem", "--set", "model.name=sgrr"], "did you mean"),
        (["train", "--resume", "nowhere"], "does not exist"),
        (["eval", "nowhere"], "holds no run"),
    ],
)
def test_mistakes_are_sentences(arguments: list[str], message: str, capsys, tmp_path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(arguments) == 2
    error = capsys.readouterr().err
    assert error.startswith("srem: ")
    assert message in error


def test_print_config_shows_everything_and_trains_nothing(capsys, tmp_path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["train", "scenes-srem", "--set", "training.epochs=7", "--print-config"]) == 0
    out = capsys.readouterr().out
    assert "epochs = 7" in out
    assert "keep_statistics = 3" in out  # defaults too
    assert list(tmp_path.iterdir()) == []


def test_eval_prints_the_table_and_writes_json(run: Path, capsys) -> None:
    assert main(["eval", str(run), "--split", "test"]) == 0
    out = capsys.readouterr().out
    assert "R_sum" in out
    assert "single model" in out
    result = json.loads((run / "eval-test.json").read_text())
    assert result["ensemble"] is False
    assert result["metrics"]["rsum"] > 0
    assert result["noise"]["hash"] in out


def test_a_run_in_half_precision_is_evaluated_in_it(run: Path, tmp_path: Path, monkeypatch) -> None:
    half = tmp_path / "half"
    assert (
        main(["train", "scenes-infonce", *TINY, "--set", "training.precision=bf16", "--out", str(half)]) == 0
    )
    seen = []
    score_pairs = experiment.score_pairs
    monkeypatch.setattr(
        experiment,
        "score_pairs",
        lambda *a: seen.append(torch.is_autocast_enabled("cpu")) or score_pairs(*a),
    )
    assert main(["eval", str(run), str(half), "-o", str(tmp_path / "both.json")]) == 0
    assert seen == [False, True]


def test_an_ensemble_is_named_so_and_folds_are_averaged(
    run: Path, other_run: Path, tmp_path: Path, capsys
) -> None:
    out = tmp_path / "both.json"
    assert main(["eval", str(run), str(other_run), "--folds", "2", "-o", str(out)]) == 0
    printed = capsys.readouterr().out
    assert "ensemble of 2" in printed
    assert "mean of 2 folds" in printed
    assert json.loads(out.read_text())["folds"] == 2


def test_compare_shows_what_differs(run: Path, other_run: Path, capsys) -> None:
    assert main(["compare", str(run), str(other_run)]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 3
    assert "method.name" in lines[0]
    assert "batch_size" not in lines[0]  # the same in both
    assert " srem " in lines[1]
    assert " infonce " in lines[2]


def test_the_demo_trains_both_prints_a_table_and_writes_a_report(tmp_path: Path, capsys) -> None:
    out = tmp_path / "demo"
    assert main(["demo", "-o", str(out), *TINY]) == 0
    printed = capsys.readouterr().out
    assert "plain (InfoNCE)" in printed
    assert "SREM" in printed
    assert "What next" in printed
    page = (out / "report.html").read_text()
    assert page.count("data:image/webp") == 24
    assert page.count("<svg") == 4
    assert "fits better" in page
    assert main(["demo", "-o", str(out), *TINY]) == 0  # again: a finished demo is run anew

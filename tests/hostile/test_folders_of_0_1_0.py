"""Folders that 0.1.0 wrote (commit 3994a5b) are read, gone on with and exported."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from fake_encoders import FakeImages, FakeSentences
from hostile.harness import OLD_FOLDERS, run_command
from sremkit.data.formats import read_collection, read_pairs
from sremkit.evaluation import retrieval_recall
from sremkit.evaluation.scoring import score_matrix
from sremkit.experiment import load_best
from sremkit.features.extract import extract_features
from sremkit.training.checkpoint import read_checkpoint
from sremkit.training.run_folder import RunFolder

pytest.importorskip("pyarrow")
pytest.importorskip("jinja2")


@pytest.fixture
def folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    shutil.copytree(OLD_FOLDERS, tmp_path, dirs_exist_ok=True)
    config = tmp_path / "run" / "config.toml"
    config.write_text(config.read_text().replace("FOLDERS", str(tmp_path)))
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_the_fixtures_are_small() -> None:
    assert sum(file.stat().st_size for file in OLD_FOLDERS.rglob("*") if file.is_file()) < 50_000


def test_a_run_is_evaluated_and_compared(folders: Path) -> None:
    run = RunFolder(folders / "run")
    matcher, vocabulary = load_best(run)
    pairs = read_pairs(folders / "features", split="val")
    scores = score_matrix(matcher, pairs, vocabulary)
    # The captions have equal embeddings here, so rounding, which differs between processors, decides their ranks.
    # The scores are compared instead of the recorded R_sum.
    assert float(scores.std()) == pytest.approx(run.read_metrics()[0]["val/score_spread"], rel=1e-5)
    result = run_command(["eval", "run", "--split", "val"])
    assert result.code == 0, result
    assert f"{retrieval_recall(scores, pairs.image_of_text)['rsum']:.1f}" in result.output
    assert run_command(["compare", "run"]).code == 0


def test_an_interrupted_run_goes_on_to_the_same_end(folders: Path) -> None:
    run = RunFolder(folders / "run")
    expected = run.read_metrics()[-1]
    tensors, _ = read_checkpoint(run.checkpoints / "step-00000006")
    shutil.rmtree(run.checkpoints / "step-00000006")  # as if it had been killed in the third epoch
    result = run_command(["train", "--resume", "run"])
    assert result.code == 0, result
    reached = run.read_metrics()
    assert [row["epoch"] for row in reached] == [0, 1, 2]
    assert reached[-1]["loss"] == pytest.approx(expected["loss"], rel=1e-5)
    weights, facts = read_checkpoint(run.checkpoints / "step-00000006")
    for name, tensor in tensors.items():
        if name.startswith("model/"):
            assert weights[name].numpy() == pytest.approx(tensor.numpy(), rel=1e-4, abs=1e-6), name
    assert facts["version"] == 2
    assert json.loads(run.facts.read_text())["version"] == 2


def test_features_are_read(folders: Path) -> None:
    pairs = read_pairs(folders / "features", split="train")
    assert len(pairs) == 6
    assert pairs.image_features is not None
    assert pairs.image_features.dim == 3


def test_an_interrupted_extraction_goes_on(folders: Path) -> None:
    from PIL import Image

    for k in range(12):
        Image.new("RGB", (4, 4), (k * 20, 255 - 10 * k, 7 * k)).save(folders / "data" / f"{k}.png")
    collection = read_collection(folders / "data" / "pairs.csv", image="file", text="title", id="id")
    encoders = {"image_encoder": FakeImages(), "text_encoder": FakeSentences()}
    extract_features(collection, folders / "stopped-features", workers=0, **encoders)
    for name in ("pooled.npy", "sentences.npy"):
        assert (folders / "stopped-features" / name).read_bytes() == (folders / "features" / name).read_bytes()


def test_an_audit_is_exported(folders: Path) -> None:
    result = run_command(["export", "audit", "-o", "keep.txt"])
    assert result.code == 0, result
    kept = (folders / "keep.txt").read_text().split()
    assert kept == [f"p{k}" for k in range(12) if k not in (1, 4)]
    assert run_command(["export", "audit", "--format", "csv", "-o", "clean.csv"]).code == 0

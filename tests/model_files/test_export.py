"""`srem export-model`: what it writes can be loaded, says what it is, and computes the same."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch

from model_files.published_layout import VOCAB, encoders
from small_models import make_items
from small_recipes import AS_OPTIONS
from sremkit.cli.main import main
from sremkit.data import Vocabulary
from sremkit.data.vocabulary import SPECIAL_WORDS
from sremkit.experiment import load_best
from sremkit.model_files import load_model
from sremkit.training.checkpoint import CheckpointError
from sremkit.training.run_folder import RunFolder
from training import tiny

CONFIG = """name = "tiny-dual"
[data]
source = "/private/folder/tiny-pairs"
words = false
keep = "/private/folder/keep.txt"
[noise]
rate = 0.3
[model]
name = "dual"
[method]
name = "srem"
[training]
epochs = 1
warmup_epochs = 1
"""


@pytest.fixture(scope="module")
def dual(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished run of a dual encoder."""
    folder = RunFolder.create(tmp_path_factory.mktemp("runs") / "dual", config=CONFIG)
    tiny.tiny_trainer(folder, epochs=1, warmup_epochs=1).run()
    noise = {"protocol": "caption", "rate": 0.3, "seed": 1, "hash": "abc"}
    record = {
        "recipe": "tiny-dual",
        "noise": noise,
        "pairs": 96,
        "seed": 0,
        "environment": {"torch": torch.__version__},
    }
    folder.write_record(record)
    return folder.path


def test_an_exported_run_is_the_same_model_with_its_vocabulary_and_a_card(tmp_path: Path, capsys) -> None:
    run, out = tmp_path / "run", tmp_path / "model"
    assert main(["train", "scenes-srem", *AS_OPTIONS, "-o", str(run)]) == 0
    assert main(["eval", str(run)]) == 0
    capsys.readouterr()
    assert main(["export-model", str(run), "-o", str(out)]) == 0
    assert "README.md is the model card" in capsys.readouterr().out
    (matcher, vocabulary), (expected, known) = load_model(out), load_best(RunFolder.open(run))
    assert vocabulary is not None
    assert vocabulary.words == known.words
    assert (matcher.name, matcher.options) == (expected.name, expected.options)
    for name, tensor in expected.state_dict().items():
        assert torch.equal(matcher.state_dict()[name], tensor), name
    card = (out / "README.md").read_text()
    best, test = RunFolder.open(run).best()[1]["metrics"], json.loads((run / "eval-test.json").read_text())["metrics"]
    for rsum in (best["val/rsum"], test["rsum"]):
        assert f"| {rsum:.1f} |" in card
    assert f"index {json.loads((run / 'record.json').read_text())['noise']['hash']}" in card
    assert 'load_model("model")' in card
    assert len({file.stat().st_mode for file in out.iterdir()}) == 1  # others can read the weights too


def test_onnx_files_equal_the_dual_encoder_in_onnx_runtime(tmp_path: Path, dual: Path, capsys) -> None:
    for package in ("onnx", "onnxscript", "onnxruntime"):
        pytest.importorskip(package, reason="the extra 'onnx' is not installed")
    import onnxruntime

    out = tmp_path / "model"
    assert main(["export-model", str(dual), "--onnx", "-o", str(out)]) == 0
    printed = capsys.readouterr()
    assert "in ONNX Runtime" in printed.out
    assert printed.err == ""
    config = json.loads((out / "config.json").read_text())["onnx"]
    batch = tiny.Batches(tiny.tiny_pairs(), batch_size=9).take(np.arange(9))
    embeddings = []
    for side, given in (("image", batch.images), ("text", batch.sentences)):
        session = onnxruntime.InferenceSession(out / config[side], providers=["CPUExecutionProvider"])
        embeddings.append(torch.from_numpy(session.run(None, {side: given.numpy()})[0]))
    logits = config["logit_scale"] * embeddings[0] @ embeddings[1].T + config["logit_bias"]
    with torch.no_grad():
        torch.testing.assert_close(logits, load_model(out)[0](batch), rtol=0, atol=1e-4)
    card = (out / "README.md").read_text()
    assert "`tiny-pairs`" in card
    assert "/private" not in card
    assert "keep-list `keep.txt`" in card
    assert "no test result" in card


def test_a_wrong_onnx_file_is_not_kept(tmp_path: Path, dual: Path, monkeypatch: pytest.MonkeyPatch, capsys) -> None:
    pytest.importorskip("onnxscript", reason="the extra 'onnx' is not installed")
    monkeypatch.setattr("sremkit.model_files.onnx._difference", lambda *_: 2e-4)
    assert main(["export-model", str(dual), "--onnx", "-o", str(tmp_path / "model")]) == 2
    assert "differs from the model by 2.0e-04" in capsys.readouterr().err
    assert not list((tmp_path / "model").glob("*.onnx"))


def test_a_published_checkpoint_becomes_a_model_folder(tmp_path: Path, capsys) -> None:
    words = [*SPECIAL_WORDS, *(f"w{k}" for k in range(VOCAB - 4))]
    Vocabulary(words).save(tmp_path / "vocab.json")
    torch.save({"model": encoders("SGR")}, tmp_path / "best.pth.tar")
    command = ["export-model", str(tmp_path / "best.pth.tar"), "--vocabulary", str(tmp_path / "vocab.json")]
    assert main([*command, "-o", str(tmp_path / "model")]) == 0
    matcher, vocabulary = load_model(tmp_path / "model")
    assert vocabulary is not None
    assert len(vocabulary) == matcher.options["vocab_size"] == VOCAB
    assert matcher(make_items(dtype=torch.float32).batch()).shape == (5, 5)
    assert "Imported from a published checkpoint" in (tmp_path / "model" / "README.md").read_text()
    Vocabulary(words[:-1]).save(tmp_path / "vocab.json")
    assert main([*command, "-o", str(tmp_path / "other")]) == 2
    assert "the checkpoint has 40 words, but this vocabulary has 39" in capsys.readouterr().err


def test_mistakes_get_a_sentence(tmp_path: Path, dual: Path, capsys) -> None:
    torch.save({"model": encoders("SGR")}, tmp_path / "sgr.pth.tar")
    (tmp_path / "used").mkdir()
    (tmp_path / "used" / "notes.txt").touch()
    (tmp_path / "empty").mkdir()
    new = str(tmp_path / "new")
    cases = {
        (str(dual), "-o", str(tmp_path / "used")): "is not empty",
        (str(tmp_path / "empty"), "-o", new): "holds no run",
        (str(tmp_path / "nowhere.pth.tar"), "-o", new): "does not exist",
        (str(tmp_path / "sgr.pth.tar"), "--onnx", "-o", new): "the model is 'sgr', and ONNX files",
        (str(dual), "--vocabulary", "x.json", "-o", new): "a run has its own vocabulary",
    }
    for arguments, sentence in cases.items():
        assert main(["export-model", *arguments]) == 2
        assert sentence in capsys.readouterr().err
    assert not (tmp_path / "new").exists()
    with pytest.raises(CheckpointError, match="holds no exported model"):
        load_model(tmp_path / "empty")


def test_a_damaged_folder_gets_a_sentence(tmp_path: Path, dual: Path) -> None:
    assert main(["export-model", str(dual), "-o", str(tmp_path / "model")]) == 0
    weights = tmp_path / "model" / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-100])
    with pytest.raises(CheckpointError, match="missing or damaged; export the model again"):
        load_model(tmp_path / "model")

"""Published checkpoints: the same similarities, and no code of a file is run."""

from __future__ import annotations

import argparse
import os
from pathlib import Path

import numpy as np
import pytest
import torch

from model_files.published_layout import IMAGE, REGIONS, VOCAB, encoders, similarity_of
from sremkit.data.batch import Batch
from sremkit.model_files import load_published
from sremkit.models.ensemble import logit_of_mean
from sremkit.training.checkpoint import CheckpointError

CAPTIONS = [[1, 5, 9, 2], [1, 30, 2], [1, 7, 7, 12, 25, 2]]


def save(path: Path, **content: object) -> Path:
    """With what these files hold apart from the weights: options of argparse and numbers of NumPy."""
    options = argparse.Namespace(data_name="f30k_precomp", module_name="SGR", no_imgnorm=False, learning_rate=2e-4)
    others = {"epoch": 3, "best_rsum": np.float64(480.5), "opt": options, "Eiters": 12}
    torch.save({**others, **content}, path)
    return path


def batch() -> tuple[Batch, torch.Tensor]:
    regions = torch.randn(3, REGIONS, IMAGE, generator=torch.Generator().manual_seed(5))
    words = torch.zeros(3, 6, dtype=torch.long)
    for row, caption in zip(words, CAPTIONS, strict=True):
        row[: len(caption)] = torch.tensor(caption)
    return Batch(torch.arange(3), torch.arange(3), regions, None, words, words > 0), regions


@pytest.mark.parametrize(("kind", "options"), [("SGR", {}), ("SGR", {"num_steps": 2}), ("SAF", {})])
def test_an_imported_model_gives_the_similarities_of_the_original(tmp_path: Path, kind: str, options: dict) -> None:
    published = encoders(kind, **options)
    matcher = load_published(save(tmp_path / "model_best.pth.tar", model=published))
    given, regions = batch()
    expected = torch.tensor([[similarity_of(published, kind, image, text) for text in CAPTIONS] for image in regions])
    assert expected.std() > 1e-3
    with torch.no_grad():
        torch.testing.assert_close(matcher(given).sigmoid(), expected, rtol=1e-4, atol=1e-6)
    assert (matcher.name, matcher.options["vocab_size"]) == (kind.lower(), VOCAB)
    assert not matcher.training


def test_the_two_models_of_ncr_become_one_ensemble(tmp_path: Path) -> None:
    first, second = encoders("SGR"), encoders("SGR", seed=1)
    matcher = load_published(save(tmp_path / "ncr.pth.tar", model_A=first, model_B=second))
    members = [load_published(save(tmp_path / f"{k}.pth.tar", model=w)) for k, w in enumerate((first, second))]
    given, _ = batch()
    with torch.no_grad():
        torch.testing.assert_close(matcher(given), logit_of_mean(*(member(given) for member in members)))
    assert matcher.name == "two-networks"


def test_old_files_and_those_of_data_parallel_are_read(tmp_path: Path) -> None:
    published = encoders("SAF")
    published[2] = {f"module.{name}": tensor for name, tensor in published[2].items()}
    torch.save({"model": published}, tmp_path / "old.pth.tar", _use_new_zipfile_serialization=False)
    assert load_published(tmp_path / "old.pth.tar").name == "saf"


class Harmful:
    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self):
        return os.mkdir, (str(self.path),)


@pytest.mark.parametrize("new", [True, False])
def test_code_in_a_file_is_not_run(tmp_path: Path, new: bool) -> None:
    content = {"model": encoders("SGR"), "opt": Harmful(tmp_path / "harm")}
    torch.save(content, tmp_path / "bad.pth.tar", _use_new_zipfile_serialization=new)
    with pytest.raises(CheckpointError, match=r"other objects than tensors .*mkdir.*could run code; it was not read"):
        load_published(tmp_path / "bad.pth.tar")
    assert not (tmp_path / "harm").exists()


def without(part: int, name: str) -> dict:
    changed = encoders("SGR")
    del changed[part][name]
    return {"model": changed}


def with_shape(part: int, name: str, *shape: int) -> dict:
    changed = encoders("SGR")
    changed[part][name] = torch.zeros(shape)
    return {"model": changed}


@pytest.mark.parametrize(
    ("content", "sentence"),
    [
        (without(2, "sim_eval_w.bias"), r"lacks weights for score\.bias"),
        (without(0, "fc.weight"), r"no weight for our 'regions\.project\.weight'"),
        (without(1, "cap_rnn.weight_ih_l0_reverse"), "another GRU than one bidirectional layer"),
        (
            with_shape(2, "sim_tranglo_w.weight", 5, 9),
            r"'global_similarity\.weight' has the shape \(5, 9\), expected is \(5, 8\)",
        ),
        (with_shape(0, "conv1.weight", 3, 3), r"weights that SGR and SAF do not have: conv1\.weight"),
        ({"model": encoders("SGR")[:2]}, "a list of three state dicts"),
        ({"state": {}}, "expected are 'model', or 'model_A' and 'model_B'"),
        ({"model": encoders("SGR"), "opt": argparse.Namespace(no_txtnorm=True)}, "trained with no_txtnorm"),
    ],
)
def test_what_does_not_fit_is_named(tmp_path: Path, content: dict, sentence: str) -> None:
    with pytest.raises(CheckpointError, match=sentence):
        load_published(save(tmp_path / "x.pth.tar", **content))


def test_a_file_that_is_none_gets_a_sentence(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="does not exist"):
        load_published(tmp_path / "x.pth.tar")
    whole = save(tmp_path / "x.pth.tar", model=encoders("SGR")).read_bytes()
    for damaged in (whole[:2000], b"", b"not a checkpoint"):
        (tmp_path / "x.pth.tar").write_bytes(damaged)
        with pytest.raises(CheckpointError, match=r"x\.pth\.tar"):
            load_published(tmp_path / "x.pth.tar")
    torch.save([1, 2], tmp_path / "x.pth.tar")
    with pytest.raises(CheckpointError, match="no table of a model"):
        load_published(tmp_path / "x.pth.tar")

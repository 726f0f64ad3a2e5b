"""Training on pixels: fine-tuning from a CSV in one command, exact resume, weights to begin with, more epochs."""

from __future__ import annotations

import json
import signal
import warnings
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from pretrained_models import KINDS, save_model, transformers, write_pairs
from sremkit.cli.main import main
from sremkit.config.recipes import OptionsDroppedWarning, Recipe, load_recipe
from sremkit.config.settings import SettingsError
from sremkit.data.formats.features import read_manifest
from sremkit.data.pixels import UnreadableImagesWarning
from sremkit.experiment import evaluate_runs, load_best, prepare, train, with_whole_paths
from sremkit.features.inference import encode_images, encode_texts
from sremkit.search.index_folder import build_index, open_index
from sremkit.training.diagnostics import StoppedError
from sremkit.training.initial_weights import PartialWeightsWarning
from sremkit.training.reporters import Reporter
from sremkit.training.run_folder import RunFolder

TINY_VIT = ["data.train_options.num_scenes=6", "data.options.num_scenes=4", "training.epochs=1",
            "training.warmup_epochs=1", "training.batch_size=10", "model.hidden_size=8", "model.embed_size=8",
            "model.num_layers=1", "model.image_size=16", "model.patch_size=8", "model.num_heads=2"]  # fmt: skip


def command(*arguments: object, settings: list[str]) -> int:
    return main([*map(str, arguments), *(part for setting in settings for part in ("--set", setting))])


def clip_settings(folder: Path, kind: str = "clip") -> list[str]:
    return [
        f"data.source={write_pairs(folder / 'data')}",
        f"model.folder={save_model(folder / kind, kind)}",
        "training.batch_size=6",
        "training.epochs=1",
        "training.learning_rate=1e-3",
    ]


def weights_of(run: Path) -> dict[str, torch.Tensor]:
    saved = RunFolder.open(run).latest_step()
    assert saved is not None
    return {name: tensor for name, tensor in saved[0].items() if not name.startswith("statistics")}


@pytest.mark.parametrize(("kind", "method"), [("clip", "srem"), ("siglip", "srem-plus"), ("siglip", "infonce")])
def test_one_command_fine_tunes_from_a_csv_and_transformers_loads_the_result(
    tmp_path: Path, kind: str, method: str
) -> None:
    settings = clip_settings(tmp_path, kind)
    (tmp_path / "data" / "2.png").write_bytes(b"no image")
    run = tmp_path / "run"
    with pytest.warns(UnreadableImagesWarning, match=r"1 of 15 images of pairs \(train\) .* so 1 pairs are left out"):
        assert command("train", f"clip-finetune-{method}", "-o", run, settings=settings) == 0
    assert RunFolder.open(run).read_record()["pairs"] == 14
    model = transformers.AutoModel.from_pretrained(run / "pretrained").eval()
    assert model.config.model_type == kind
    matcher, tokenizer = load_best(RunFolder.open(run))
    image, text = Image.open(tmp_path / "data" / "1.png"), "a green square"
    with torch.no_grad():
        logit = matcher.compare(encode_images(matcher, [image]), encode_texts(matcher, tokenizer, [text]))
        processor = transformers.AutoImageProcessor.from_pretrained(run / "pretrained", backend="pil")
        own = transformers.AutoTokenizer.from_pretrained(run / "pretrained")
        padding = {"padding": "max_length", "max_length": 8} if kind == "siglip" else {}
        ids = own(text, return_tensors="pt", **padding)["input_ids"]
        alone = model(input_ids=ids, **processor(image, return_tensors="pt")).logits_per_image
    bias = 0.0 if kind == "siglip" else float(matcher.to_logit.bias.detach())
    torch.testing.assert_close(logit - bias, alone, rtol=1e-5, atol=1e-5)
    assert np.isfinite(evaluate_runs([run], split="test")["metrics"]["rsum"])


class StopAfter(Reporter):
    def __init__(self, steps: int) -> None:
        self.left = steps

    def step(self, *_: object) -> None:
        self.left -= 1
        if self.left == 0:
            signal.raise_signal(signal.SIGINT)


def recipes(folder: Path) -> dict[str, Recipe]:
    clip = clip_settings(folder, "clip")
    augmented = ["training.min_crop_area=0.5", "model.dropout=0.2", "noise.rate=0.4"]
    return {
        "clip-finetune-srem": with_whole_paths(load_recipe("clip-finetune-srem", clip)),
        "scenes-pixels-srem": load_recipe("scenes-pixels-srem", [*TINY_VIT, *augmented]),
    }


@pytest.mark.parametrize("name", ["clip-finetune-srem", "scenes-pixels-srem"])
def test_stopped_and_resumed_it_is_the_same_with_and_without_a_cache(tmp_path: Path, name: str) -> None:
    recipe = recipes(tmp_path)[name]
    whole = RunFolder.create(tmp_path / "whole", config="")
    train(prepare(recipe), whole)
    stopped = RunFolder.create(tmp_path / "stopped", config="")
    with pytest.raises(StoppedError):
        train(prepare(recipe), stopped, reporter=StopAfter(4))
    uncached = Recipe(**{**vars(recipe), "data": type(recipe.data)(**{**vars(recipe.data), "pixel_cache": "off"})})
    train(prepare(uncached), stopped)
    one, other = (weights_of(folder.path) for folder in (whole, stopped))
    assert one.keys() == other.keys()
    for key in one:
        np.testing.assert_array_equal(one[key].numpy(), other[key].numpy(), err_msg=key)  # NaN equals NaN


def test_a_finished_run_goes_on_for_more_epochs(tmp_path: Path, capsys) -> None:
    run = tmp_path / "run"
    assert command("train", "scenes-pixels-infonce", "-o", run, settings=TINY_VIT) == 0
    first = weights_of(run)
    assert command("train", "--resume", run, settings=["training.epochs=2"]) == 0
    assert RunFolder.open(run).recipe().training.epochs == 2
    assert [row["epoch"] for row in RunFolder.open(run).read_metrics()] == [0, 1, 2]
    assert RunFolder.open(run).is_finished()
    assert not torch.equal(first["model/embed.weight"], weights_of(run)["model/embed.weight"])
    capsys.readouterr()
    for setting, message in (
        ("training.epochs=1", "the run has 2 epochs"),
        ("training.seed=1", "but for training.epochs"),
    ):
        assert command("train", "--resume", run, settings=[setting]) == 2
        assert message in capsys.readouterr().err


def initial_weights(settings: list[str], name: str = "scenes-pixels-infonce") -> dict[str, torch.Tensor]:
    return prepare(load_recipe(name, settings)).matcher.state_dict()


def test_a_run_begins_with_the_weights_of_another_run_or_exported_model(tmp_path: Path) -> None:
    run, exported = tmp_path / "run", tmp_path / "exported"
    assert command("train", "scenes-pixels-infonce", "-o", run, settings=TINY_VIT) == 0
    assert main(["export-model", str(run), "-o", str(exported)]) == 0
    best = load_best(RunFolder.open(run))[0].state_dict()
    other_words = ["data.train_options.num_scenes=5", "training.seed=5"]  # fewer words; the run's are used
    for source in (run, exported):
        start = initial_weights([*TINY_VIT, *other_words, f"training.init={source}"], "scenes-pixels-srem")
        assert all(torch.equal(start[key], best[key]) for key in best)
    with pytest.warns(PartialWeightsWarning, match="weights are those of"):
        partly = initial_weights([*TINY_VIT, "model.num_layers=2", f"training.init={run}"])
    assert torch.equal(partly["text_tower.layers.0.qkv.weight"], best["text_tower.layers.0.qkv.weight"])
    network = [*TINY_VIT[5:], "model.dropout=0.0", "model.patch_size=8", f"training.init={run}"]
    with pytest.warns(OptionsDroppedWarning):
        both = initial_weights(["model.name=vit", *TINY_VIT[:5], *network], "scenes-ncr")
    assert all(torch.equal(both[f"members.{k}.embed.weight"], best["embed.weight"]) for k in (0, 1))
    assert main(["train", "scenes-pixels-srem", "--init", str(tmp_path), "-o", str(tmp_path / "x")]) == 2


def test_a_run_begins_with_a_fine_tuned_model(tmp_path: Path) -> None:
    settings = clip_settings(tmp_path)
    assert command("train", "clip-finetune-infonce", "-o", tmp_path / "run", settings=settings) == 0
    again = [setting for setting in settings if not setting.startswith("model.")]
    start = initial_weights([*again, f"training.init={tmp_path / 'run'}"], "clip-finetune-srem")
    best = load_best(RunFolder.open(tmp_path / "run"))[0].state_dict()
    for key in best:
        torch.testing.assert_close(start[key], best[key], rtol=1e-6, atol=1e-6)


def test_a_run_begins_with_an_exported_model_that_was_fine_tuned(tmp_path: Path) -> None:
    """`--init` of such a folder asked for model.folder."""
    settings = clip_settings(tmp_path)
    assert command("train", "clip-finetune-infonce", "-o", tmp_path / "run", settings=settings) == 0
    assert main(["export-model", str(tmp_path / "run"), "-o", str(tmp_path / "exported")]) == 0
    again = [setting for setting in settings if not setting.startswith("model.")]
    recipe = load_recipe("clip-finetune-srem", [*again, f"training.init={tmp_path / 'exported'}"])
    prepared = prepare(with_whole_paths(recipe))
    best, tokenizer = load_best(RunFolder.open(tmp_path / "run"))
    assert all(torch.equal(tensor, best.state_dict()[name]) for name, tensor in prepared.matcher.state_dict().items())
    assert prepared.matcher.image_transform == best.image_transform
    assert prepared.vocabulary.to_dict() == tokenizer.to_dict()
    second = RunFolder.create(tmp_path / "second", config="")
    train(prepared, second)
    own = transformers.AutoTokenizer.from_pretrained(second.path / "pretrained")
    assert own("a red square")["input_ids"] == tokenizer.encode("a red square")


def test_search_in_a_run_leaves_out_images_that_cannot_be_read(tmp_path: Path) -> None:
    pytest.importorskip("faiss")
    settings = clip_settings(tmp_path)
    (tmp_path / "data" / "2.png").write_bytes(b"no image")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UnreadableImagesWarning)
        assert command("train", "clip-finetune-infonce", "-o", tmp_path / "run", settings=settings) == 0
        searcher, again = build_index(tmp_path / "run"), open_index(tmp_path / "run")
    assert "2.png" not in searcher.pairs.image_ids
    (hits,) = again.search_texts(["a blue square"], 20)
    assert {hit.image_id for hit in hits} == set(searcher.pairs.image_ids)
    assert len(hits) == 14


def test_a_setting_of_the_recipe_is_taken_back_by_an_assignment_without_a_value() -> None:
    assert "dropout" in load_recipe("scenes-pixels-srem").model
    assert "dropout" not in load_recipe("scenes-pixels-srem", ["model.dropout="]).model
    with pytest.raises(SettingsError, match=r"'model\.scale' is not set in the recipe"):
        load_recipe("scenes-pixels-srem", ["model.scale="])


@pytest.mark.parametrize("kind", KINDS)
def test_features_take_a_fine_tuned_run_as_encoder(tmp_path: Path, kind: str) -> None:
    settings = clip_settings(tmp_path, kind)
    run, features = tmp_path / "run", tmp_path / "features"
    assert command("train", "clip-finetune-infonce", "-o", run, settings=settings) == 0
    pairs = str(tmp_path / "data" / "pairs.csv")
    assert main(["features", pairs, "-o", str(features), "--encoder", str(run), "--workers", "0"]) == 0
    assert np.load(features / "pooled.npy").shape == (24, 6 if kind == "clip" else 8)
    assert kind in json.dumps(read_manifest(features))


def test_an_audit_with_a_run_as_encoder_needs_no_training_for_few_pairs(tmp_path: Path, monkeypatch) -> None:
    assert command("train", "clip-finetune-infonce", "-o", tmp_path / "run", settings=clip_settings(tmp_path)) == 0
    monkeypatch.setattr("sremkit.audit.scoring.fold_model.train_dual_encoder", None)  # cannot be called
    pairs, out = str(write_pairs(tmp_path / "more", 120)), tmp_path / "audit"
    assert main(["audit", pairs, "--encoder", str(tmp_path / "run"), "-o", str(out), "--workers", "0"]) == 0
    summary = json.loads((out / "summary.json").read_text())
    assert summary["scored"] == 120
    assert summary["encoder"] == str(tmp_path / "run" / "pretrained")
    assert main(["score", str(out), pairs, "-o", str(tmp_path / "scores.csv"), "--workers", "0"]) == 0


def test_unreadable_images_are_warned_of_once_each_split(tmp_path: Path) -> None:
    recipe = with_whole_paths(load_recipe("clip-finetune-srem", clip_settings(tmp_path)))
    for number in (2, 3):  # one of the training images and one of the validation
        (tmp_path / "data" / f"{number}.png").write_bytes(b"no image")
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", UnreadableImagesWarning)
        prepared = prepare(recipe)
    assert sum(issubclass(w.category, UnreadableImagesWarning) for w in caught) == 2
    assert (len(prepared.train), prepared.val.num_images) == (14, 4)
    assert len(prepared.is_noisy) == 14


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    "device", ["cpu", pytest.param("cuda", marks=[pytest.mark.gpu, pytest.mark.skipif(
        not torch.cuda.is_available(), reason="needs a CUDA device")])]
)  # fmt: skip
def test_ways_to_save_memory_and_time_train_the_same_model(tmp_path: Path, kind: str, device: str) -> None:
    """Losses of the first steps: float32 and eager, then each way; half precision is near, the others equal."""
    settings = [
        *clip_settings(tmp_path, kind),
        "training.warmup_epochs=1",
        f"training.device={device}",
    ]
    plain = ["training.precision=float32", "training.compile=false", "training.cuda_graphs=false"]
    ways = {
        "gradient checkpointing": (["model.gradient_checkpointing=true"], 1e-3),
        "gradient caching": (["training.grad_cache_chunk_size=2"], 1e-3),
        "bf16": (["training.precision=bf16", "training.float32_steps=0"], 5e-2),
    }
    if device == "cuda":
        ways |= {"compiled": (["training.compile=true"], 1e-3), "auto": (["training.precision=auto"], 5e-2)}

    def first_losses(name: str, changes: list[str]) -> list[float]:
        folder = RunFolder.create(tmp_path / name, config="")
        train(prepare(with_whole_paths(load_recipe("clip-finetune-infonce", [*settings, *plain, *changes]))), folder)
        return [row["loss"] for row in folder.read_metrics()]

    expected = first_losses("plain", [])
    assert np.isfinite(expected).all()
    for name, (changes, rtol) in ways.items():
        np.testing.assert_allclose(first_losses(name, changes), expected, rtol=rtol, err_msg=name)

"""The CLIP backbone against the model class of transformers itself."""

from __future__ import annotations

import json
import re
import sys

import numpy as np
import pytest
import torch
from PIL import Image

from pretrained_models import (
    COLORS,
    KINDS,
    save_model,
    transformers,
    write_clip_vocabulary,
    write_pickled_weights,
    write_sentencepiece,
)
from small_models import SMALL, make_items, small_matcher, some_loss
from sremkit.config.recipes import TrainingSettings
from sremkit.data.batch import Batch
from sremkit.data.batches import WordIds
from sremkit.data.subwords import tokenizer_from_dict
from sremkit.errors import DataError, MissingExtraError
from sremkit.methods import build_method
from sremkit.models import Matcher, build_matcher
from sremkit.training.step import OptimizerStep, build_forward


def saved_model(folder) -> transformers.CLIPModel:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = transformers.CLIPModel(transformers.CLIPConfig(**SMALL["clip"]["config"]))
    model.save_pretrained(folder)
    return model.eval()


def test_a_saved_model_gives_the_same_logits_but_for_the_bias(tmp_path) -> None:
    model = saved_model(tmp_path)
    matcher = build_matcher("clip", folder=str(tmp_path)).eval()
    items = make_items(dtype=torch.float32)
    items.captions = [[*caption[:-1], 3] for caption in items.captions]  # 3 is the end mark of this model
    batch = items.batch("clip")
    with torch.no_grad():
        expected = model(
            input_ids=batch.words, pixel_values=batch.images, attention_mask=batch.word_mask.long()
        ).logits_per_image
        bias = matcher.to_logit.bias
        torch.testing.assert_close(matcher(batch) - bias, expected, rtol=1e-4, atol=1e-5)
        # exp(2.6592) = 14.28, and a cosine of 0.25 starts at logit 0
        assert bias.item() == pytest.approx(-0.25 * 14.285, rel=1e-3)


def test_a_checkpoint_does_not_need_the_folder(tmp_path) -> None:
    saved_model(tmp_path)
    matcher = build_matcher("clip", folder=str(tmp_path)).eval()
    assert matcher.options["folder"] is None
    again = build_matcher("clip", **matcher.options)
    again.load_state_dict(matcher.state_dict())
    batch = make_items(dtype=torch.float32).batch("clip")
    assert torch.equal(again.eval()(batch), matcher(batch))


def test_neither_or_both_sources_are_refused() -> None:
    with pytest.raises(DataError, match="either folder=, where a model was saved, or config="):
        build_matcher("clip")
    with pytest.raises(DataError, match="either folder="):
        build_matcher("clip", folder="x", config=SMALL["clip"]["config"])


def test_a_folder_without_a_model_is_named(tmp_path) -> None:
    with pytest.raises(DataError, match=r"holds no config\.json"):
        build_matcher("clip", folder=str(tmp_path))


def test_features_in_place_of_pixels_are_refused() -> None:
    with pytest.raises(DataError, match=r"prepared pixels of shape .*, got shape \(5, 6, 10\)"):
        small_matcher("clip")(make_items().batch())


def test_too_long_a_text_is_refused_with_the_limit() -> None:
    with pytest.raises(DataError, match="a text has 30 tokens, but this model reads 24"):
        small_matcher("clip")(make_items(words=(2, 30)).batch("clip"))


def pretrained_batch(matcher: Matcher, count: int = 6) -> Batch:
    """Pixels and captions as the matcher's own processor and tokenizer give them."""
    tokenizer, captions = matcher.tokenizer(), [f"a {color} square" for color in COLORS[:count]]
    words, mask = WordIds(captions, tokenizer).padded(np.arange(count))
    images = torch.stack([matcher.image_transform(Image.new("RGB", (20, 30), color)) for color in COLORS[:count]])
    return Batch(pair_id=torch.arange(count), image_id=torch.arange(count), images=images, words=words, word_mask=mask)


def logits_of_transformers(folder, count: int = 6) -> torch.Tensor:
    """By transformers alone: its processor, its tokenizer, its model."""
    model = transformers.AutoModel.from_pretrained(folder).eval()
    processor = transformers.AutoImageProcessor.from_pretrained(folder, backend="pil")
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    pixels = processor([Image.new("RGB", (20, 30), color) for color in COLORS[:count]], return_tensors="pt")
    siglip = model.config.model_type == "siglip"
    length = model.config.text_config.max_position_embeddings
    captions = [f"a {color} square" for color in COLORS[:count]]
    text = tokenizer(
        captions, padding="max_length" if siglip else True, truncation=True, max_length=length, return_tensors="pt"
    )
    names = ("input_ids",) if siglip else ("input_ids", "attention_mask")
    with torch.no_grad():
        return model(**{name: text[name] for name in names}, pixel_values=pixels["pixel_values"]).logits_per_image


def trained(matcher: Matcher, steps: int = 2) -> Matcher:
    """Two steps of the optimizer with SREM."""
    step = OptimizerStep(
        matcher, build_method("srem"), TrainingSettings(learning_rate=1e-2), device=torch.device("cpu")
    )
    for _ in range(steps):
        step(pretrained_batch(matcher), warmup=True)
    return matcher.eval()


@pytest.mark.parametrize("kind", KINDS)
def test_a_fine_tuned_model_is_saved_for_transformers_with_the_same_logits(tmp_path, kind: str) -> None:
    matcher = build_matcher("clip", folder=str(save_model(tmp_path / "given", kind))).eval()
    own_bias = 0.0 if kind == "siglip" else matcher.to_logit.bias.detach()  # CLIP has none
    given = logits_of_transformers(tmp_path / "given")
    with torch.no_grad():
        torch.testing.assert_close(matcher(pretrained_batch(matcher)) - own_bias, given, rtol=1e-5, atol=1e-5)
    batch = pretrained_batch(trained(matcher))
    matcher.save_pretrained(tmp_path / "saved")
    with torch.no_grad():
        logits = matcher(batch)
        again = build_matcher("clip", folder=str(tmp_path / "saved")).eval()
        torch.testing.assert_close(again(pretrained_batch(again)), logits, rtol=1e-5, atol=1e-5)
    own_bias = 0.0 if kind == "siglip" else matcher.to_logit.bias.detach()
    alone = logits_of_transformers(tmp_path / "saved")
    torch.testing.assert_close(alone, logits - own_bias, rtol=1e-5, atol=1e-5)
    assert (alone - given).abs().max() > 0.01  # it was trained


def test_the_file_layouts_of_published_models_are_fine_tuned_and_saved(tmp_path) -> None:
    """CLIP with vocab.json, merges.txt and pytorch_model.bin; SigLIP with spiece.model."""
    for kind, write in (("clip", write_clip_vocabulary), ("siglip", write_sentencepiece)):
        folder = save_model(tmp_path / kind, kind)
        write(folder)
        if kind == "clip":
            write_pickled_weights(folder)
        matcher = build_matcher("clip", folder=str(folder)).eval()
        batch = pretrained_batch(trained(matcher))
        matcher.save_pretrained(tmp_path / "saved" / kind)
        again = build_matcher("clip", folder=str(tmp_path / "saved" / kind)).eval()
        assert again.tokenizer().encode("a red square") == matcher.tokenizer().encode("a red square")
        with torch.no_grad():
            torch.testing.assert_close(again(pretrained_batch(again)), matcher(batch), rtol=1e-5, atol=1e-5)
    saved = logits_of_transformers(tmp_path / "saved" / "clip")
    clip = build_matcher("clip", folder=str(tmp_path / "saved" / "clip")).eval()
    with torch.no_grad():
        torch.testing.assert_close(clip(pretrained_batch(clip)) - clip.to_logit.bias, saved, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("kind", KINDS)
def test_a_checkpoint_with_its_tokenizer_is_saved_without_the_first_folder(tmp_path, kind: str) -> None:
    first = build_matcher("clip", folder=str(save_model(tmp_path / "given", kind))).eval()
    stored = json.loads(json.dumps({"options": first.options, "tokenizer": first.tokenizer().to_dict()}))
    again = build_matcher("clip", **stored["options"]).eval()
    again.load_state_dict(first.state_dict())
    assert again.image_transform == first.image_transform
    again.save_pretrained(tmp_path / "saved", tokenizer_from_dict(stored["tokenizer"]))
    saved = logits_of_transformers(tmp_path / "saved")
    torch.testing.assert_close(saved, logits_of_transformers(tmp_path / "given"), rtol=1e-5, atol=1e-5)


def trained_parts(matcher: Matcher) -> set[str]:
    """Prefixes of the parameters that two steps change."""
    before = {name: p.detach().clone() for name, p in matcher.named_parameters()}
    trained(matcher)
    changed = {name for name, p in matcher.named_parameters() if not torch.equal(p, before[name])}
    return {
        re.sub(r"(layers\.\d+|head|post_layernorm|final_layer_norm)\..*|\.(weight|bias)$", r"\1", n) for n in changed
    }


@pytest.mark.parametrize("kind", KINDS)
def test_frozen_towers_and_last_layers(tmp_path, kind: str) -> None:
    folder = str(save_model(tmp_path, kind))
    parts = trained_parts(build_matcher("clip", folder=folder, image_layers=0, text_layers=1))
    expected = {"text_model.encoder.layers.1", "text_model.final_layer_norm", "to_logit.log_scale", "to_logit"}
    expected |= {"text_projection"} if kind == "clip" else {"text_model.head"}
    assert parts == expected
    everything = trained_parts(build_matcher("clip", folder=folder))
    assert {"vision_model.encoder.layers.0", "text_model.encoder.layers.0"} <= everything
    with pytest.raises(ValueError, match="both 0"):
        build_matcher("clip", folder=folder, image_layers=0, text_layers=0)
    with pytest.raises(ValueError, match="the tower has 2 layers"):
        build_matcher("clip", folder=folder, image_layers=3)


def gradients(matcher: Matcher, chunk_size: int | None = None) -> dict[str, torch.Tensor]:
    matcher.train()
    settings = TrainingSettings(grad_cache_chunk_size=chunk_size)
    forward = build_forward(matcher, settings, world=1)
    some_loss(forward(pretrained_batch(matcher))).backward()
    return {name: p.grad for name, p in matcher.named_parameters()}


@pytest.mark.parametrize("kind", KINDS)
def test_checkpointing_and_gradient_caching_give_the_same_gradients(tmp_path, kind: str) -> None:
    folder = str(save_model(tmp_path, kind))
    expected = gradients(build_matcher("clip", folder=folder))
    for matcher, chunk_size in (
        (build_matcher("clip", folder=folder, gradient_checkpointing=True), None),
        (build_matcher("clip", folder=folder), 2),
    ):
        for name, gradient in gradients(matcher, chunk_size).items():
            torch.testing.assert_close(gradient, expected[name], rtol=1e-4, atol=1e-6, msg=name)


def test_half_precision_trains(tmp_path) -> None:
    matcher = build_matcher("clip", folder=str(save_model(tmp_path, "clip")))
    settings = TrainingSettings(precision="bf16", float32_steps=0)
    step = OptimizerStep(matcher, build_method("infonce"), settings, device=torch.device("cpu"))
    losses = [float(step(pretrained_batch(matcher), warmup=False).total) for _ in range(2)]
    assert np.isfinite(losses).all()
    assert all(p.dtype == torch.float32 for p in matcher.parameters())


@pytest.mark.parametrize("kind", KINDS)
def test_low_rank_adapters_are_trained_alone_and_merged_when_saved(tmp_path, kind: str) -> None:
    pytest.importorskip("peft", reason="peft is the extra 'lora'")
    folder = str(save_model(tmp_path / "given", kind))
    matcher = build_matcher("clip", folder=folder, lora_rank=2, image_layers=0)
    before = {name: p.detach().clone() for name, p in matcher.named_parameters()}
    batch = pretrained_batch(trained(matcher, steps=3))
    changed = {name for name, p in matcher.named_parameters() if not torch.equal(p, before[name])}
    assert changed
    assert all("lora_" in name or name.startswith("to_logit") for name in changed)
    assert not any(name.startswith("vision_model") for name in changed)
    matcher.save_pretrained(tmp_path / "saved")
    own_bias = 0.0 if kind == "siglip" else matcher.to_logit.bias.detach()
    with torch.no_grad():
        expected = matcher(batch) - own_bias
    torch.testing.assert_close(logits_of_transformers(tmp_path / "saved"), expected, rtol=1e-5, atol=1e-5)
    rebuilt = build_matcher("clip", **matcher.options)
    rebuilt.load_state_dict(matcher.state_dict())


def test_a_missing_package_for_adapters_is_named(tmp_path, monkeypatch) -> None:
    monkeypatch.setitem(sys.modules, "peft", None)
    with pytest.raises(MissingExtraError, match=r"sremkit\[lora\]"):
        build_matcher("clip", folder=str(save_model(tmp_path, "clip")), lora_rank=2)


def test_a_name_on_the_hub_that_cannot_be_reached_is_an_error_that_says_so(monkeypatch) -> None:
    hub = pytest.importorskip("huggingface_hub")

    def fails(*_: object, **__: object) -> str:
        raise OSError("no network")

    monkeypatch.setattr(hub, "snapshot_download", fails)
    with pytest.raises(DataError, match=r"openai/clip is no folder, and it could not be downloaded .*no network"):
        build_matcher("clip", folder="openai/clip")


def test_a_name_on_the_hub_is_downloaded(tmp_path, monkeypatch) -> None:
    hub = pytest.importorskip("huggingface_hub")
    save_model(tmp_path, "siglip")
    monkeypatch.setattr(hub, "snapshot_download", lambda name, **_: str(tmp_path) if name == "google/siglip" else "")
    assert build_matcher("clip", folder="google/siglip").kind == "siglip"


def test_a_name_on_the_hub_without_safetensors_is_downloaded_with_its_older_weights(tmp_path, monkeypatch) -> None:
    """openai/clip-vit-base-patch32 has a pytorch_model.bin alone; only safetensors were downloaded."""
    hub = pytest.importorskip("huggingface_hub")
    published = save_model(tmp_path / "published", "clip")
    write_pickled_weights(published)
    cache = tmp_path / "cache"

    def download(name: str, *, allow_patterns: list[str]) -> str:
        cache.mkdir(exist_ok=True)
        for file in published.iterdir():
            if any(file.match(pattern) for pattern in allow_patterns):
                (cache / file.name).write_bytes(file.read_bytes())
        return str(cache)

    monkeypatch.setattr(hub, "snapshot_download", download)
    assert build_matcher("clip", folder="openai/clip").kind == "clip"
    assert (cache / "pytorch_model.bin").exists()

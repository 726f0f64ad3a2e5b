"""Encoders from a folder against transformers' own processor and model."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL.Image import Image, Resampling

from layouts import make_image
from pretrained_models import save_model, write_pickled_weights, write_sentencepiece
from sremkit.errors import DataError
from sremkit.features.encoders.clip import CLIPFolder, open_encoders

transformers = pytest.importorskip("transformers")
tokenizers = pytest.importorskip("tokenizers")

WORDS = ["[PAD]", "[UNK]", "<start>", "<end>", "a", "red", "blue", "square", "dog"]
TEXT = dict(vocab_size=len(WORDS), hidden_size=8, intermediate_size=16, num_hidden_layers=1,
            num_attention_heads=2, max_position_embeddings=6, bos_token_id=2, eos_token_id=3,
            pad_token_id=0)  # fmt: skip
VISION = dict(hidden_size=8, intermediate_size=16, num_hidden_layers=1, num_attention_heads=2, image_size=16,
              patch_size=8)  # fmt: skip
CLIP_PIXELS = {"do_resize": True, "size": {"shortest_edge": 16}, "resample": 3, "do_center_crop": True,
               "crop_size": {"height": 16, "width": 16}, "image_mean": [0.5, 0.4, 0.3], "image_std": [0.2, 0.3, 0.4],
               "do_normalize": True, "do_rescale": True, "rescale_factor": 1 / 255}  # fmt: skip
SIGLIP_PIXELS = {**CLIP_PIXELS, "do_center_crop": False, "size": {"height": 16, "width": 16}}


def saved(folder: Path, kind: str) -> Path:
    """A small random model of this kind with its processor, as people have it on disk."""
    config_class, model_class = {
        "clip": (transformers.CLIPConfig, transformers.CLIPModel),
        "siglip": (transformers.SiglipConfig, transformers.SiglipModel),
    }[kind]
    more = {"projection_dim": 6} if kind == "clip" else {}
    text = TEXT if kind == "clip" else {**TEXT, "projection_size": 8}
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = model_class(config_class(text_config=text, vision_config=VISION, **more))
    model.save_pretrained(folder)
    words = tokenizers.Tokenizer(
        tokenizers.models.WordLevel({word: k for k, word in enumerate(WORDS)}, unk_token="[UNK]")
    )
    words.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    words.post_processor = tokenizers.processors.TemplateProcessing(
        single="<start> $A <end>", special_tokens=[("<start>", 2), ("<end>", 3)]
    )
    transformers.PreTrainedTokenizerFast(tokenizer_object=words, pad_token="[PAD]", unk_token="[UNK]").save_pretrained(
        folder
    )
    pixels = CLIP_PIXELS if kind == "clip" else SIGLIP_PIXELS
    (folder / "preprocessor_config.json").write_text(json.dumps(pixels))
    return folder


def preprocessed(image: Image, settings: dict) -> np.ndarray:
    """The resized, cropped and normalised image (1, 3, 16, 16), computed without transformers."""
    size = settings["size"]
    if "shortest_edge" in size:
        short = size["shortest_edge"]
        scale = short / min(image.size)
        target = tuple(short if side == min(image.size) else int(side * scale) for side in image.size)
    else:
        target = (size["width"], size["height"])
    image = image.resize(target, Resampling.BICUBIC)
    left, top = (image.width - 16) // 2, (image.height - 16) // 2
    pixels = np.asarray(image.crop((left, top, left + 16, top + 16)), dtype=np.float32) / 255
    pixels = (pixels - np.float32(settings["image_mean"])) / np.float32(settings["image_std"])
    return pixels.transpose(2, 0, 1)[None]


@pytest.mark.parametrize("kind", ["clip", "siglip"])
def test_vectors_are_those_of_the_model_itself(tmp_path: Path, kind: str) -> None:
    images, texts = open_encoders(saved(tmp_path, kind))
    model = transformers.AutoModel.from_pretrained(tmp_path).eval()
    pixels = torch.from_numpy(preprocessed(make_image("blue"), CLIP_PIXELS if kind == "clip" else SIGLIP_PIXELS))
    # "a dog" alone: <start> a dog <end>, and SigLIP fills up to its six places with [PAD]
    tokens = torch.tensor([[2, 4, 8, 3] if kind == "clip" else [2, 4, 8, 3, 0, 0]])
    with torch.no_grad():
        out = model(input_ids=tokens, pixel_values=pixels)
    got = images.encode(make_image("blue"))
    np.testing.assert_allclose(got.pooled, out.image_embeds[0].numpy(), rtol=1e-4, atol=1e-6)
    np.testing.assert_allclose(texts.encode(["a dog"]), out.text_embeds.numpy(), rtol=1e-4, atol=1e-6)
    assert got.pooled.shape == (images.dim,)
    assert np.linalg.norm(got.pooled) == pytest.approx(1, rel=1e-5)


def test_texts_in_a_batch_and_texts_beyond_the_maximum_length_are_encoded(tmp_path: Path) -> None:
    _, texts = open_encoders(saved(tmp_path, "clip"))
    together = texts.encode(["a dog", "a red square " * 50])
    np.testing.assert_allclose(together[:1], texts.encode(["a dog"]), rtol=1e-4, atol=1e-6)
    assert np.isfinite(together).all()


@pytest.mark.parametrize("kind", ["clip", "siglip"])
@pytest.mark.parametrize("size", [(40, 24), (24, 40), (16, 16), (9, 33)])
def test_images_are_resized_cropped_and_normalised(tmp_path: Path, kind: str, size: tuple[int, int]) -> None:
    images, _ = open_encoders(saved(tmp_path, kind))
    images.load()
    image = make_image("green", size=size)
    pixels = images.model._processor(image, return_tensors="np")["pixel_values"]
    expected = preprocessed(image, CLIP_PIXELS if kind == "clip" else SIGLIP_PIXELS)
    np.testing.assert_allclose(pixels, expected, rtol=1e-4, atol=1e-4)


def test_a_folder_without_a_model_is_a_clear_error(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"holds no config\.json; give the folder of a CLIP or SigLIP model"):
        CLIPFolder(tmp_path)
    (tmp_path / "config.json").write_text('{"model_type": "bert"}')
    (tmp_path / "preprocessor_config.json").write_text("{}")
    with pytest.raises(DataError, match="a model of type 'bert'; known are: clip, siglip"):
        CLIPFolder(tmp_path)


def test_other_weights_have_another_description(tmp_path: Path) -> None:
    before = CLIPFolder(saved(tmp_path, "clip")).description
    weights = bytearray((tmp_path / "model.safetensors").read_bytes())
    weights[-1] ^= 1  # as many bytes as before, as after fine-tuning
    (tmp_path / "model.safetensors").write_bytes(weights)
    assert CLIPFolder(tmp_path).description != before


def test_the_older_weights_give_the_same_vectors(tmp_path: Path) -> None:
    """A folder with a pytorch_model.bin alone was fine-tuned by `srem train`, and refused by `srem features`."""
    images, texts = open_encoders(saved(tmp_path, "clip"))
    expected = images.encode(make_image("blue")).pooled, texts.encode(["a dog", "a red square"])
    with_safetensors = images.description
    write_pickled_weights(tmp_path)
    images, texts = open_encoders(tmp_path)
    np.testing.assert_allclose(images.encode(make_image("blue")).pooled, expected[0], rtol=1e-5)
    np.testing.assert_allclose(texts.encode(["a dog", "a red square"]), expected[1], rtol=1e-5)
    assert images.description != with_safetensors  # the hash covers the weights, in whichever file
    weights = torch.load(tmp_path / "pytorch_model.bin")
    torch.save({name: tensor + 1 for name, tensor in weights.items()}, tmp_path / "pytorch_model.bin")
    assert open_encoders(tmp_path)[0].description != images.description


def test_the_published_tokenizer_of_siglip_needs_no_further_package(tmp_path: Path) -> None:
    write_sentencepiece(save_model(tmp_path, "siglip"))
    _, texts = open_encoders(tmp_path)
    np.testing.assert_allclose(texts.encode(["A red, square!"]), texts.encode(["a red square"]))

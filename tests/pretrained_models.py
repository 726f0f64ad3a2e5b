"""Small random CLIP and SigLIP models in the file layout of published checkpoints, and pairs to fine-tune them on."""

from __future__ import annotations

import json
from pathlib import Path
from string import ascii_lowercase

import numpy as np
import pytest
import torch
from PIL import Image
from safetensors.torch import load_file

transformers = pytest.importorskip("transformers")
tokenizers = pytest.importorskip("tokenizers")

COLORS = ("red", "green", "blue", "white", "black", "yellow")
WORDS = ["[PAD]", "[UNK]", "<start>", "<end>", "a", "square", "left", *COLORS]
SIDE = 16
TEXT = dict(vocab_size=64, hidden_size=8, intermediate_size=16, num_hidden_layers=2, num_attention_heads=2,
            max_position_embeddings=8, bos_token_id=2, eos_token_id=3, pad_token_id=0)  # fmt: skip
VISION = dict(hidden_size=8, intermediate_size=16, num_hidden_layers=2, num_attention_heads=2, image_size=SIDE,
              patch_size=8)  # fmt: skip
PIXELS = {
    "clip": {"do_resize": True, "size": {"shortest_edge": SIDE}, "resample": 3, "do_center_crop": True,
             "crop_size": {"height": SIDE, "width": SIDE}, "image_mean": [0.48145466, 0.4578275, 0.40821073],
             "image_std": [0.26862954, 0.26130258, 0.27577711], "do_normalize": True, "do_rescale": True,
             "rescale_factor": 0.00392156862745098, "image_processor_type": "CLIPImageProcessor"},
    "siglip": {"do_resize": True, "size": {"height": SIDE, "width": SIDE}, "resample": 3,
               "image_mean": [0.5, 0.5, 0.5], "image_std": [0.5, 0.5, 0.5], "do_normalize": True, "do_rescale": True,
               "rescale_factor": 0.00392156862745098, "image_processor_type": "SiglipImageProcessor"},
}  # fmt: skip
KINDS = tuple(PIXELS)


def save_model(folder: Path, kind: str) -> Path:
    """config.json, model.safetensors, preprocessor_config.json, tokenizer.json, tokenizer_config.json."""
    settings, model_class = {
        "clip": (transformers.CLIPConfig, transformers.CLIPModel),
        "siglip": (transformers.SiglipConfig, transformers.SiglipModel),
    }[kind]
    more = {"projection_dim": 6} if kind == "clip" else {}
    text = TEXT if kind == "clip" else {**TEXT, "projection_size": 8}
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = model_class(settings(text_config=text, vision_config=VISION, **more))
    with torch.no_grad():
        for parameter in model.parameters():  # the first weights are so small that all vectors are alike
            parameter.mul_(3.0) if parameter.ndim > 1 else None
    model.save_pretrained(folder)
    words = tokenizers.Tokenizer(
        tokenizers.models.WordLevel({word: k for k, word in enumerate(WORDS)}, unk_token="[UNK]")
    )
    words.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    words.post_processor = tokenizers.processors.TemplateProcessing(
        single="<start> $A <end>", special_tokens=[("<start>", 2), ("<end>", 3)]
    )
    fast = transformers.PreTrainedTokenizerFast(tokenizer_object=words, pad_token="[PAD]", unk_token="[UNK]")
    fast.save_pretrained(folder)
    (folder / "preprocessor_config.json").write_text(json.dumps(PIXELS[kind]))
    return folder


def write_clip_vocabulary(folder: Path) -> None:
    """The tokenizer as OpenAI published CLIP: vocab.json and merges.txt, without a tokenizer.json.

    Its configuration says 2 for the end token, and transformers then takes the highest id.
    """
    config = json.loads((folder / "config.json").read_text())
    config["text_config"]["eos_token_id"] = 2
    (folder / "config.json").write_text(json.dumps(config))
    (folder / "tokenizer.json").unlink()
    pieces = [*ascii_lowercase, *(f"{letter}</w>" for letter in ascii_lowercase), "re", "red</w>", "sq"]
    vocabulary = {piece: k for k, piece in enumerate([*pieces, "<|startoftext|>", "<|endoftext|>"])}
    (folder / "vocab.json").write_text(json.dumps(vocabulary))
    (folder / "merges.txt").write_text("#version: 0.2\nr e\nre d</w>\ns q\n")
    marks = {"bos_token": "<|startoftext|>", **dict.fromkeys(("eos_token", "pad_token", "unk_token"), "<|endoftext|>")}
    (folder / "tokenizer_config.json").write_text(
        json.dumps({"tokenizer_class": "CLIPTokenizer", "model_max_length": 8, **marks})
    )


PIECES = ["<pad>", "</s>", "<unk>", "\u2581a", "\u2581square", "\u2581left", "\u2581", *(f"\u2581{c}" for c in COLORS)]


def write_sentencepiece(folder: Path) -> None:
    """The tokenizer as Google published SigLIP, but for its tokenizer.json: spiece.model."""
    (folder / "tokenizer.json").unlink()
    proto = pytest.importorskip("transformers.convert_slow_tokenizer").import_protobuf()
    control, unknown, normal = 3, 2, 1
    pieces = [
        proto.ModelProto.SentencePiece(
            piece=piece, score=0.0 if k < 3 else -1.0, type=unknown if k == 2 else control if k < 2 else normal
        )
        for k, piece in enumerate(PIECES)
    ]
    model = proto.ModelProto(pieces=pieces)
    model.trainer_spec.model_type, model.trainer_spec.unk_id = 1, 2
    model.normalizer_spec.name = "identity"
    (folder / "spiece.model").write_bytes(model.SerializeToString())
    marks = {"eos_token": "</s>", "pad_token": "</s>", "unk_token": "<unk>"}
    (folder / "tokenizer_config.json").write_text(
        json.dumps({"tokenizer_class": "SiglipTokenizer", "do_lower_case": True, "model_max_length": 8, **marks})
    )


def write_pickled_weights(folder: Path) -> None:
    """The weights as older models have them: pytorch_model.bin."""
    torch.save(load_file(folder / "model.safetensors"), folder / "pytorch_model.bin")
    (folder / "model.safetensors").unlink()


def write_pairs(folder: Path, count: int = 24) -> Path:
    """A CSV with images of one colour and noise, of several sizes; a fifth of the rows each are val and test."""
    folder.mkdir(parents=True, exist_ok=True)
    rng = np.random.default_rng(0)
    lines = ["image,caption,split"]
    for k in range(count):
        color = COLORS[k % len(COLORS)]
        base = np.array(Image.new("RGB", (20 + k % 7, 18 + k % 5), color), dtype=np.int64)
        noisy = (base + rng.integers(-20, 20, base.shape)).clip(0, 255).astype(np.uint8)
        Image.fromarray(noisy).save(folder / f"{k}.png")
        split = {3: "val", 4: "test"}.get(k % 5, "train")
        lines.append(f"{k}.png,a {color} square,{split}")
    (folder / "pairs.csv").write_text("\n".join(lines) + "\n")
    return folder / "pairs.csv"

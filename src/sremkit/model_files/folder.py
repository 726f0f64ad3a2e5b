"""A model as a folder: weights in safetensors, configuration, vocabulary, model card. Loading one runs no code.

model.safetensors    the weights
config.json          backbone and options
vocabulary.json      of a model that reads words, in the published format
README.md            the model card
image.onnx, text.onnx    of a dual encoder, on request
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from safetensors import SafetensorError
from safetensors.torch import load_file, save

from sremkit.data.subwords import AnyTokenizer, tokenizer_from_dict
from sremkit.errors import UserError
from sremkit.io import atomic_write, first_line, read_json, write_json
from sremkit.models import Matcher, build_matcher
from sremkit.training.checkpoint import CheckpointError
from sremkit.version import __version__

WEIGHTS, CONFIG, VOCABULARY, CARD = "model.safetensors", "config.json", "vocabulary.json", "README.md"


def save_model(folder: Path, matcher: Matcher, vocabulary: AnyTokenizer | None, *, card: str) -> None:
    """Write a model into a new or empty folder."""
    if folder.exists() and any(folder.iterdir()):
        raise UserError(f"{folder} is not empty; name another folder with -o")
    folder.mkdir(parents=True, exist_ok=True)
    tensors = {name: tensor.detach().cpu().contiguous() for name, tensor in matcher.state_dict().items()}
    atomic_write(
        folder / WEIGHTS, save(tensors, metadata={"format": "pt"})
    )  # save_file makes it readable for the user alone
    if vocabulary is not None:
        atomic_write(folder / VOCABULARY, json.dumps(vocabulary.to_dict(), ensure_ascii=False))
    atomic_write(folder / CARD, card)
    config: dict[str, Any] = {"sremkit": __version__, "model": {"name": matcher.name, "options": matcher.options}}
    write_json(folder / CONFIG, config)  # last: a folder with it is complete


def load_model(folder: str | Path) -> tuple[Matcher, AnyTokenizer | None]:
    """The model of an exported folder, in evaluation mode, and its vocabulary if it reads words."""
    folder = Path(folder)
    if not (folder / CONFIG).exists():
        raise CheckpointError(
            f"{folder} holds no exported model (there is no {CONFIG} in it); `srem export-model` writes one"
        )
    try:
        model = read_json(folder / CONFIG)["model"]
        matcher = build_matcher(model["name"], **model["options"])
    except (KeyError, TypeError, ValueError, RuntimeError, MemoryError) as cause:
        raise CheckpointError(
            f"{folder / CONFIG} describes no model that can be built ({first_line(cause)}); export the model again"
        ) from cause
    try:
        matcher.load_state_dict(load_file(folder / WEIGHTS))
    except (OSError, SafetensorError, RuntimeError) as cause:
        raise CheckpointError(f"{folder / WEIGHTS} is missing or damaged; export the model again ({cause})") from cause
    if not (folder / VOCABULARY).exists():
        return matcher.eval(), None
    try:
        return matcher.eval(), tokenizer_from_dict(read_json(folder / VOCABULARY))
    except (KeyError, TypeError, ValueError, AttributeError) as cause:
        raise CheckpointError(
            f"{folder / VOCABULARY} is damaged; export the model again ({first_line(cause)})"
        ) from cause

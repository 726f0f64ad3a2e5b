"""Folders of pretrained image-text models in the layout of `save_pretrained`: CLIP and SigLIP."""

from __future__ import annotations

import re
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from sremkit.data.image_transform import MAX_SIDE, ImageTransform
from sremkit.errors import DataError, UserError
from sremkit.extras import require
from sremkit.io import first_line, read_json

CONFIG, PROCESSOR, PRETRAINED = "config.json", "preprocessor_config.json", "pretrained"
MODELS = ("clip", "siglip")
PURPOSE = "use a pretrained image-text model"
HUB_NAME = re.compile(r"[\w.-]+/[\w.-]+")
#: What is downloaded of a model on the hub; older ones, such as openai/clip-vit-base-patch32, have no safetensors.
HUB_FILES, SAFETENSORS, PICKLES = ["*.json", "*.txt", "*.model"], "model*.safetensors", "pytorch_model*.bin"


#: Files of a tokenizer, of which a folder has some.
TOKENIZER_FILES = ("tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "added_tokens.json",
                   "vocab.json", "merges.txt", "spiece.model", "tokenizer.model")  # fmt: skip


def copy_tokenizer(source: Path, target: Path) -> None:
    """Copy a tokenizer as it is, so that it stays the one that the model was published with."""
    for name in TOKENIZER_FILES:
        if (source / name).is_file() and not (target / name).exists():
            shutil.copyfile(source / name, target / name)


def is_model_folder(folder: str | Path) -> bool:
    """Whether a folder holds a model of transformers."""
    file = Path(folder) / CONFIG
    content = read_json(file) if file.is_file() else None
    return isinstance(content, dict) and "model_type" in content


def find_model_folder(name: str | Path) -> Path:
    """The folder of a model: a path, the folder of a run that has saved one, or a name on the Hugging Face hub.

    A name on the hub is downloaded unless it is in the cache of the package huggingface_hub.
    """
    folder = Path(name).expanduser()
    if (folder / PRETRAINED / CONFIG).is_file():
        return folder / PRETRAINED
    if folder.exists() or not HUB_NAME.fullmatch(str(name)):
        return folder
    hub = require("huggingface_hub", extra="hf", purpose="find a model by its name on the hub")
    try:
        found = Path(hub.snapshot_download(str(name), allow_patterns=[*HUB_FILES, SAFETENSORS]))
        if not weight_files(found):
            found = Path(hub.snapshot_download(str(name), allow_patterns=[*HUB_FILES, PICKLES]))
        return found
    except Exception as cause:  # of the network, of the hub, of the disk
        raise DataError(
            f"{name} is no folder, and it could not be downloaded from the Hugging Face hub ({first_line(cause)}); "
            "give the folder of a saved model"
        ) from cause


def weight_files(folder: Path) -> list[Path]:
    """The files of the weights: safetensors, else those that `torch.save` wrote."""
    return sorted(folder.glob(SAFETENSORS)) or sorted(folder.glob(PICKLES))


@contextmanager
def quiet() -> Iterator[None]:
    """Inside, transformers shows no progress bars and no warnings of a configuration's default values."""
    logging = require("transformers", extra="hf", purpose=PURPOSE).utils.logging
    shown, level = logging.is_progress_bar_enabled(), logging.get_verbosity()
    logging.disable_progress_bar()
    logging.set_verbosity_error()
    try:
        yield
    finally:
        logging.set_verbosity(level)
        if shown:
            logging.enable_progress_bar()


def read_config(folder: Path) -> dict[str, Any]:
    """The configuration of a model, whose type must be known."""
    if not (folder / CONFIG).is_file():
        raise DataError(f"{folder} holds no {CONFIG}; give the folder of a saved CLIP or SigLIP model")
    config = _read_table(folder / CONFIG)
    check_kind(config.get("model_type"), str(folder))
    return config


def _read_table(file: Path) -> dict[str, Any]:
    content = read_json(file)
    if not isinstance(content, dict):
        raise DataError(f"{file} holds no table of settings; copy the model again")
    return content


@contextmanager
def loading(folder: Path) -> Iterator[None]:
    """Inside, a package reads the files of a model: whatever it raises, on damaged ones, becomes a `DataError`."""
    try:
        yield
    except UserError:
        raise
    except Exception as cause:
        reason = f"{type(cause).__name__}: {first_line(cause)}"
        raise DataError(f"the model in {folder} cannot be loaded ({reason:.300}); copy it again") from cause


def check_kind(kind: Any, where: str) -> str:
    """The type of a model, if it is a known one."""
    if kind not in MODELS:
        raise DataError(f"{where} holds a model of type '{kind}'; known are: {', '.join(MODELS)}")
    return str(kind)


def default_transform(kind: str, image_size: int) -> ImageTransform:
    """The image processor that models of this kind are published with."""
    if kind == "siglip":
        return ImageTransform(image_size, image_size)
    return ImageTransform(image_size, image_size, shortest_edge=image_size, **ImageTransform.CLIP)


def read_transform(folder: Path, kind: str, image_size: int) -> ImageTransform:
    """The folder's image processor; without one, that of the published models."""
    file = folder / PROCESSOR
    if not file.is_file():
        return default_transform(kind, image_size)
    config = _read_table(file)
    # Newer versions nest it in a table.
    return ImageTransform.from_processor(config.get("image_processor", config), name=str(file))


def check_sides(folder: Path) -> None:
    """Refuse an image processor that would resize images beyond all memory."""
    config = _read_table(folder / PROCESSOR)
    for size in (config.get(name) for name in ("size", "crop_size")):
        sides = size.values() if isinstance(size, dict) else size if isinstance(size, list) else [size]
        if any(isinstance(side, int | float) and side > MAX_SIDE for side in sides):
            raise DataError(f"{folder / PROCESSOR} resizes images to {size!r:.60}; at most {MAX_SIDE:,} is supported")


def processor_config(transform: ImageTransform, kind: str) -> dict[str, Any]:
    """The transform as a `preprocessor_config.json`."""
    size = {"height": transform.height, "width": transform.width}
    edge = transform.shortest_edge
    return {
        "image_processor_type": {"clip": "CLIPImageProcessor", "siglip": "SiglipImageProcessor"}[kind],
        "do_convert_rgb": True,
        "do_resize": True,
        "size": size if edge is None else {"shortest_edge": edge},
        "resample": transform.resample,
        **({} if edge is None else {"do_center_crop": True, "crop_size": size}),
        "do_rescale": True,
        "rescale_factor": 1 / 255,
        "do_normalize": True,
        "image_mean": list(transform.mean),
        "image_std": list(transform.std),
    }

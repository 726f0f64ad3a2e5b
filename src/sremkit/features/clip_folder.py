"""Pictures and texts through a CLIP or SigLIP model that `transformers` has saved in a folder on this machine.

Pictures are prepared here from the folder's own preprocessor_config.json, because the fast processors of
transformers need torchvision.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
import torch.nn.functional as F

from sremkit.data.text_files import read_json
from sremkit.errors import DataError
from sremkit.extras import require
from sremkit.features.pictures import PictureFeatures

if TYPE_CHECKING:
    from PIL.Image import Image

MODELS = ("clip", "siglip")
TEXTS_AT_ONCE = 32
PURPOSE = "read a CLIP or SigLIP folder"


def open_encoders(folder: str | Path) -> tuple[ClipPictures, ClipTexts]:
    """Both encoders of one model."""
    model = ClipFolder(folder)
    return ClipPictures(model), ClipTexts(model)


class ClipFolder:
    """A saved model; its weights are read when they are first needed."""

    def __init__(self, folder: str | Path) -> None:
        self.folder = Path(folder)
        for name in ("config.json", "preprocessor_config.json"):
            if not (self.folder / name).is_file():
                raise DataError(
                    f"{self.folder} holds no {name}; give the folder of a CLIP or SigLIP model with its "
                    "processor, as save_pretrained writes them"
                )
        self.config: dict[str, Any] = read_json(self.folder / "config.json")
        self.preparation: dict[str, Any] = read_json(self.folder / "preprocessor_config.json")
        kind = self.config.get("model_type")
        if kind not in MODELS:
            raise DataError(f"{self.folder} holds a model of type '{kind}'; known are: {', '.join(MODELS)}")
        self.kind: str = kind
        self._model: Any = None
        self._tokenizer: Any = None

    @property
    def description(self) -> str:
        """The model by its kind, its folder's name, and a hash of its settings and weights."""
        digest = hashlib.sha256()
        for name in ("config.json", "preprocessor_config.json"):
            digest.update((self.folder / name).read_bytes())
        for weights in sorted(self.folder.glob("*.safetensors")):
            with weights.open("rb") as file:
                digest.update(hashlib.file_digest(file, "sha256").digest())
        return f"{self.kind} {self.folder.name} ({digest.hexdigest()[:8]}), unit length"

    @property
    def dim(self) -> int:
        if self.kind == "clip":
            return int(self.config.get("projection_dim", 512))
        return int(self.config.get("vision_config", {}).get("hidden_size", 768))

    def load(self) -> None:
        if self._model is not None:
            return
        transformers = require("transformers", extra="hf", purpose=PURPOSE)
        self._tokenizer = transformers.AutoTokenizer.from_pretrained(self.folder, local_files_only=True)
        self._model = transformers.AutoModel.from_pretrained(
            self.folder, local_files_only=True, use_safetensors=True
        ).eval()

    @torch.inference_mode()
    def image_vectors(self, pixels: np.ndarray) -> np.ndarray:
        """Unit vectors (k, d) of prepared pictures (k, 3, height, width)."""
        self.load()
        return _unit(self._model.get_image_features(pixel_values=torch.from_numpy(pixels)))

    @torch.inference_mode()
    def text_vectors(self, texts: Sequence[str]) -> np.ndarray:
        """Unit vectors (k, d); what is beyond the model's longest text is not read."""
        self.load()
        tokens = self._tokenizer(
            list(texts),
            padding="max_length" if self.kind == "siglip" else True,  # SigLIP has only ever seen full lengths
            truncation=True,
            max_length=self._model.config.text_config.max_position_embeddings,
            return_tensors="pt",
        )
        names = ("input_ids",) if self.kind == "siglip" else ("input_ids", "attention_mask")
        return _unit(self._model.get_text_features(**{name: tokens[name] for name in names}))

    def __getstate__(self) -> dict[str, Any]:  # other processes read the weights themselves
        return {**self.__dict__, "_model": None, "_tokenizer": None}


class ClipPictures:
    """The picture side of a folder."""

    num_places = 1

    def __init__(self, model: ClipFolder) -> None:
        self.model = model
        self.description, self.dim = model.description, model.dim

    def load(self) -> None:
        self.model.load()

    def encode(self, picture: Image) -> PictureFeatures:
        pooled = self.model.image_vectors(prepare(picture, self.model.preparation))[0]
        return PictureFeatures(pooled=pooled, grid=pooled[None])


class ClipTexts:
    """The text side of a folder."""

    def __init__(self, model: ClipFolder) -> None:
        self.model = model
        self.description, self.dim = model.description, model.dim

    def load(self) -> None:
        self.model.load()

    def encode(self, texts: Sequence[str]) -> np.ndarray:
        parts = [texts[k : k + TEXTS_AT_ONCE] for k in range(0, len(texts), TEXTS_AT_ONCE)]
        return np.concatenate([self.model.text_vectors(part) for part in parts])


def prepare(picture: Image, settings: dict[str, Any]) -> np.ndarray:
    """Pixels (1, 3, height, width) as the folder's preprocessor_config.json wants them."""
    resampling = require("PIL.Image", extra="data", purpose="read pictures").Resampling
    picture = picture.convert("RGB")
    size = _sides(settings.get("size", 224))
    if settings.get("do_resize", True):
        picture = picture.resize(
            _target(picture.size, size), resampling(settings.get("resample", resampling.BICUBIC))
        )
    if settings.get("do_center_crop", False):
        crop = _sides(settings.get("crop_size", 224))
        width, height = (
            crop[side] if side in crop else crop["shortest_edge"] for side in ("width", "height")
        )
        left, top = (picture.width - width) // 2, (picture.height - height) // 2
        picture = picture.crop((left, top, left + width, top + height))
    pixels = np.asarray(picture, dtype=np.float32)  # (height, width, 3)
    if settings.get("do_rescale", True):
        pixels = pixels * np.float32(settings.get("rescale_factor", 1 / 255))
    if settings.get("do_normalize", True):
        mean, std = (np.array(settings[name], dtype=np.float32) for name in ("image_mean", "image_std"))
        pixels = (pixels - mean) / std
    return np.ascontiguousarray(pixels.transpose(2, 0, 1)[None])


def _sides(size: int | dict[str, int]) -> dict[str, int]:
    return {"shortest_edge": size} if isinstance(size, int) else size


def _target(given: tuple[int, int], size: dict[str, int]) -> tuple[int, int]:
    """Width and height after resizing: as named, or so that the shorter side has its length."""
    if "shortest_edge" not in size:
        return size["width"], size["height"]
    short, (width, height) = size["shortest_edge"], given
    if width <= height:
        return short, int(short * height / width)
    return int(short * width / height), short


def _unit(output: Any) -> np.ndarray:
    vectors = output if isinstance(output, torch.Tensor) else output.pooler_output
    return F.normalize(vectors.float(), dim=-1).numpy()

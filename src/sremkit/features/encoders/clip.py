"""Image and text vectors of a CLIP or SigLIP model in a folder that `save_pretrained` of transformers wrote."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
import torch.nn.functional as F
from torch.nn.utils.rnn import pad_sequence

from sremkit.data.subwords import SubwordTokenizer
from sremkit.errors import DataError
from sremkit.extras import require
from sremkit.features.encoders import ImageFeatures
from sremkit.models.hf_folder import (
    CONFIG,
    PROCESSOR,
    check_sides,
    find_model_folder,
    loading,
    quiet,
    read_config,
    weight_files,
)

if TYPE_CHECKING:
    from PIL.Image import Image

BATCH_SIZE = 32
MAX_DIM = 100_000
PURPOSE = "read a CLIP or SigLIP folder"


def open_encoders(folder: str | Path) -> tuple[CLIPImageEncoder, CLIPTextEncoder]:
    """The image and the text encoder of one model: its folder, a run that fine-tuned one, or a name on the hub."""
    model = CLIPFolder(find_model_folder(folder))
    return CLIPImageEncoder(model), CLIPTextEncoder(model)


class CLIPFolder:
    """A saved model; its weights are loaded on first use."""

    def __init__(self, folder: str | Path) -> None:
        self.folder = Path(folder)
        for name in (CONFIG, PROCESSOR):
            if not (self.folder / name).is_file():
                raise DataError(
                    f"{self.folder} holds no {name}; give the folder of a CLIP or SigLIP model with its "
                    "processor, as save_pretrained writes them"
                )
        self.config: dict[str, Any] = read_config(self.folder)
        self.kind: str = self.config["model_type"]
        check_sides(self.folder)
        self._model: Any = None
        self._tokenizer: Any = None
        self._processor: Any = None

    @cached_property
    def description(self) -> str:
        """Kind of the model, name of its folder, and a hash of its configuration and weights."""
        digest = hashlib.sha256()
        for name in (CONFIG, PROCESSOR):
            digest.update((self.folder / name).read_bytes())
        for weights in weight_files(self.folder):
            with weights.open("rb") as file:
                digest.update(hashlib.file_digest(file, "sha256").digest())
        return f"{self.kind} {self.folder.name} ({digest.hexdigest()[:8]}), unit length"

    @property
    def dim(self) -> int:
        if self.kind == "clip":
            dim = self.config.get("projection_dim", 512)
        else:
            vision = self.config.get("vision_config")
            dim = vision.get("hidden_size", 768) if isinstance(vision, dict) else 768
        if type(dim) is not int or not 1 <= dim <= MAX_DIM:
            raise DataError(f"{self.folder / CONFIG} states vectors of {dim!r:.40} numbers; copy the model again")
        return dim

    def load(self) -> None:
        if self._model is not None:
            return
        transformers = require("transformers", extra="hf", purpose=PURPOSE)
        images = require("PIL.Image", extra="hf", purpose=PURPOSE)
        local = {"local_files_only": True, "trust_remote_code": False}
        with loading(self.folder), quiet():
            # With Pillow: the default processors need torchvision, which resizes differently.
            self._processor = transformers.AutoImageProcessor.from_pretrained(self.folder, backend="pil", **local)
            model = transformers.AutoModel.from_pretrained(self.folder, **local).eval()
            longest = model.config.text_config.max_position_embeddings
            padded = self.kind == "siglip"  # it was trained on padded texts
            self._tokenizer = SubwordTokenizer.from_folder(self.folder, max_length=longest, padded=padded)
            self._model = model
            for vectors in (self.image_vector(images.new("RGB", (32, 24)))[None], self.text_vectors(["a trial"])):
                if vectors.shape != (1, self.dim) or not np.isfinite(vectors).all():
                    raise DataError(
                        f"the model in {self.folder} gives vectors of the shape {vectors.shape[1:]} where its "
                        f"configuration states {self.dim} numbers, or NaN; copy it again"
                    )

    @torch.inference_mode()
    def image_vector(self, image: Image) -> np.ndarray:
        """The unit vector (d,) of an image."""
        self.load()
        pixels = self._processor(image.convert("RGB"), return_tensors="pt")["pixel_values"]
        return _unit(self._model.get_image_features(pixel_values=pixels))[0]

    @torch.inference_mode()
    def text_vectors(self, texts: Sequence[str]) -> np.ndarray:
        """Unit vectors (k, d) of texts, truncated to the model's maximum length."""
        self.load()
        tokens = [torch.tensor(self._tokenizer.encode(text)) for text in texts]
        present = pad_sequence([torch.ones_like(ids) for ids in tokens], batch_first=True)
        words = pad_sequence(tokens, batch_first=True, padding_value=self._tokenizer.pad_id)
        mask = {} if self.kind == "siglip" else {"attention_mask": present}
        return _unit(self._model.get_text_features(input_ids=words, **mask))

    def __getstate__(self) -> dict[str, Any]:  # other processes load the weights themselves
        return {**self.__dict__, "_model": None, "_tokenizer": None, "_processor": None}


class _Tower:
    def __init__(self, model: CLIPFolder) -> None:
        self.model = model
        self.description, self.dim = model.description, model.dim

    def load(self) -> None:
        self.model.load()


class CLIPImageEncoder(_Tower):
    """The image tower of a CLIP folder."""

    num_regions = 1

    def encode(self, image: Image) -> ImageFeatures:
        pooled = self.model.image_vector(image)
        return ImageFeatures(pooled=pooled, grid=pooled[None])


class CLIPTextEncoder(_Tower):
    """The text tower of a CLIP folder."""

    def encode(self, texts: Sequence[str]) -> np.ndarray:
        parts = [texts[k : k + BATCH_SIZE] for k in range(0, len(texts), BATCH_SIZE)]
        return np.concatenate([self.model.text_vectors(part) for part in parts])


def _unit(output: Any) -> np.ndarray:
    vectors = output if isinstance(output, torch.Tensor) else output.pooler_output
    return F.normalize(vectors.float(), dim=-1).numpy()

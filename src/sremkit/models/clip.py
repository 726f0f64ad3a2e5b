"""CLIP-type dual encoder: two transformers, one vector each, a cosine.

    logit = scale · cos(image, text) + bias

The transformers come from a folder on this machine, or start at random from a configuration; nothing is
downloaded. Images enter as prepared pixels (b, 3, h, w), texts as the tokenizer's numbers with their mask;
the last present token, which CLIP's tokenizer makes the end mark, stands for the text.

Reference: Radford et al., "Learning Transferable Visual Models From Natural Language Supervision", ICML 2021.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from sremkit.data.batch import Batch
from sremkit.errors import DataError
from sremkit.extras import require
from sremkit.models import BACKBONES
from sremkit.models.masking import words_of
from sremkit.models.matcher import Encoded, Matcher
from sremkit.models.similarity import LearnedLogit, all_cosines, unit


@BACKBONES.register("clip")
class Clip(Matcher):
    """CLIP through `transformers`: fine-tunes a model from a local folder, or trains one from scratch.

    Args:
        folder: where the model was saved, in the layout of `transformers`.
        config: instead of a folder, the configuration of a model with random weights, as `CLIPConfig` takes
            it: {"text_config": {...}, "vision_config": {...}, "projection_dim": ...}.
        scale: starting slope from cosine to logit; the model's own unless given.
        neutral: cosine whose logit starts at 0. CLIP's cosines are small: some 0.3 for a match, 0.2 else.
    """

    image_input = "pixels"
    text_input = "words"

    def __init__(
        self,
        *,
        folder: str | None = None,
        config: dict[str, Any] | None = None,
        scale: float | None = None,
        neutral: float = 0.25,
    ) -> None:
        super().__init__()
        model = _clip_model(folder, config)
        self.vision_model, self.visual_projection = model.vision_model, model.visual_projection
        self.text_model, self.text_projection = model.text_model, model.text_projection
        self.max_words: int = model.config.text_config.max_position_embeddings
        own_scale = float(model.logit_scale.detach().exp())
        self.to_logit = LearnedLogit(scale=own_scale if scale is None else scale, neutral=neutral)
        # A checkpoint holds all weights, so it must not need the folder again.
        self.resolved_options = {"folder": None, "config": model.config.to_diff_dict()}

    def encode_images(self, batch: Batch) -> Encoded:
        if batch.images is None or batch.images.ndim != 4:
            given = "none" if batch.images is None else f"shape {tuple(batch.images.shape)}"
            raise DataError(f"'clip' takes prepared pixels of shape (b, 3, height, width), got {given}")
        seen = self.vision_model(pixel_values=batch.images).pooler_output
        return Encoded(pooled=unit(self.visual_projection(seen)))

    def encode_texts(self, batch: Batch) -> Encoded:
        words, mask = words_of(batch)
        if words.shape[1] > self.max_words:
            raise DataError(
                f"a text has {words.shape[1]} tokens, but this model reads {self.max_words}; shorten it"
            )
        read = self.text_model(input_ids=words, attention_mask=mask.long()).last_hidden_state  # (b, w, d)
        last = mask.sum(dim=1).clamp_min(1) - 1
        end = read[torch.arange(len(read), device=read.device), last]  # (b, d)
        return Encoded(pooled=unit(self.text_projection(end)))

    def compare(self, images: Encoded, texts: Encoded) -> Tensor:
        return self.to_logit(all_cosines(images.whole(), texts.whole()))


def _clip_model(folder: str | None, config: dict[str, Any] | None) -> Any:
    transformers = require("transformers", extra="hf", purpose="build the backbone 'clip'")
    if config is not None and folder is None:
        return transformers.CLIPModel(transformers.CLIPConfig(**config))
    if folder is None or config is not None:
        raise DataError("'clip' needs either folder=, where a model was saved, or config= for a random one")
    if not (Path(folder) / "config.json").exists():
        raise DataError(f"{folder} holds no config.json; give the folder of a saved CLIP model")
    return transformers.CLIPModel.from_pretrained(folder, local_files_only=True)

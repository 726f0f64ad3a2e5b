"""CLIP-type dual encoder: two transformers, one vector each, a cosine.

    logit = scale · cos(image, text) + bias

The transformers come from a local folder, or are initialised at random from a configuration; nothing is
downloaded. Images are preprocessed pixels (b, 3, h, w), texts the tokenizer's indices with their mask; the
state of the last present token, which CLIP's tokenizer makes the end token, is the text's vector.

No data reader gives pixels yet, so recipes cannot train it and `srem list` does not show it.

Reference: Radford et al., "Learning Transferable Visual Models From Natural Language Supervision", ICML 2021.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, ClassVar

import torch
from torch import Tensor

from sremkit.data.batch import Batch
from sremkit.errors import DataError
from sremkit.extras import require
from sremkit.models import BACKBONES
from sremkit.models.layers.encoders import LogitScale, all_cosines
from sremkit.models.layers.masking import words_of
from sremkit.models.matcher import Encoded, Matcher
from sremkit.ops.functional import l2_normalize

_SMALL_TRANSFORMER = {"hidden_size": 16, "intermediate_size": 24, "num_hidden_layers": 2, "num_attention_heads": 2}


@BACKBONES.register("clip")
class Clip(Matcher):
    """CLIP through `transformers`: fine-tunes a model from a local folder, or trains one from scratch.

    Args:
        folder: where the model was saved, in the layout of `transformers`.
        config: instead of a folder, the configuration of a model with random weights, as `CLIPConfig` takes
            it: {"text_config": {...}, "vision_config": {...}, "projection_dim": ...}.
        scale: initial slope from cosine to logit; the model's own unless given.
        neutral: cosine whose logit is initially 0. CLIP's cosines are small: some 0.3 for a match, 0.2 else.
    """

    image_input = "pixels"
    text_input = "words"
    small_options: ClassVar[dict[str, Any]] = {
        "config": {
            "text_config": {
                **_SMALL_TRANSFORMER,
                "vocab_size": 40,
                "max_position_embeddings": 24,
                "bos_token_id": 1,
                "eos_token_id": 3,
                "pad_token_id": 0,
            },
            "vision_config": {**_SMALL_TRANSFORMER, "image_size": 16, "patch_size": 8},
            "projection_dim": 8,
        }
    }

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
        self.to_logit = LogitScale(scale=own_scale if scale is None else scale, neutral=neutral)
        # A checkpoint contains all weights, so it must not need the folder again.
        self.resolved_options = {"folder": None, "config": model.config.to_diff_dict()}

    def encode_images(self, batch: Batch) -> Encoded:
        if batch.images is None or batch.images.ndim != 4:
            given = "none" if batch.images is None else f"shape {tuple(batch.images.shape)}"
            raise DataError(f"'clip' takes prepared pixels of shape (b, 3, height, width), got {given}")
        seen = self.vision_model(pixel_values=batch.images).pooler_output
        return Encoded(pooled=l2_normalize(self.visual_projection(seen)))

    def encode_texts(self, batch: Batch) -> Encoded:
        words, mask = words_of(batch)
        if words.shape[1] > self.max_words:
            raise DataError(f"a text has {words.shape[1]} tokens, but this model reads {self.max_words}; shorten it")
        read = self.text_model(input_ids=words, attention_mask=mask.long()).last_hidden_state  # (b, w, d)
        last = mask.sum(dim=1).clamp_min(1) - 1
        end = read[torch.arange(len(read), device=read.device), last]  # (b, d)
        return Encoded(pooled=l2_normalize(self.text_projection(end)))

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

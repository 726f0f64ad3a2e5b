"""CLIP and SigLIP: two pretrained transformers, one vector each, a cosine.

    logit = scale · cos(image, text) + bias

The transformers come from a folder in the layout of transformers, from the Hugging Face hub, or from a configuration
with random weights. Images are pixels (b, 3, h, w) as the model's own image processor prepares them, texts the ids of
its own tokenizer. The text vector of CLIP is the state of the last present token, which its tokenizer makes the end
token; SigLIP reads texts padded to a fixed length.

SigLIP has a scale and a bias of its own. CLIP has a scale only; the bias is ours, and changes no ranking.

References: Radford et al., "Learning Transferable Visual Models From Natural Language Supervision", ICML 2021; Zhai
et al., "Sigmoid Loss for Language Image Pre-Training", ICCV 2023.
"""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from sremkit.data.batch import Batch
from sremkit.data.image_transform import ImageTransform
from sremkit.data.subwords import SubwordTokenizer
from sremkit.errors import DataError
from sremkit.extras import require
from sremkit.io import write_json
from sremkit.models import BACKBONES
from sremkit.models.hf_folder import (
    PROCESSOR,
    PURPOSE,
    check_kind,
    copy_tokenizer,
    default_transform,
    find_model_folder,
    loading,
    processor_config,
    quiet,
    read_config,
    read_transform,
)
from sremkit.models.layers.encoders import LogitScale, all_cosines
from sremkit.models.layers.fine_tuning import add_adapters, merge_adapters, train_last_layers
from sremkit.models.layers.masking import pixels_of, words_of
from sremkit.models.matcher import Encoded, Matcher
from sremkit.ops.functional import l2_normalize

#: Where a saved configuration keeps the bias of a model that has none of its own.
BIAS_KEY = "sremkit_logit_bias"
_SMALL_TRANSFORMER = {"hidden_size": 16, "intermediate_size": 24, "num_hidden_layers": 2, "num_attention_heads": 2}


@BACKBONES.register("clip")
class Clip(Matcher):
    """CLIP or SigLIP through `transformers`: fine-tunes a pretrained model on pixels and captions.

    Args:
        folder: where the model was saved, in the layout of `transformers`; a run of this backbone; or a name on the
            Hugging Face hub, such as "openai/clip-vit-base-patch32", where the network allows it.
        config: instead of a folder, the configuration of a model with random weights, as `CLIPConfig` or
            `SiglipConfig` takes it: {"model_type": "clip", "text_config": {...}, "vision_config": {...}}.
        processor: sizes, mean and std of the image processor, as `ImageTransform` takes them; the folder's own unless
            given.
        scale: initial slope from cosine to logit; the model's own unless given.
        neutral: cosine whose logit is initially 0; the model's own bias decides where it has one, else 0.25. CLIP's
            cosines are small: some 0.3 for a match, 0.2 else.
        image_layers: train this number of last layers of the image tower; all of it when absent, none of it with 0.
        text_layers: likewise of the text tower.
        lora_rank: train low-rank adapters of this rank in the attention of both towers, in place of their weights;
            0 for none. A tower with 0 layers gets none.
        gradient_checkpointing: compute the activations again in the backward pass, which saves memory.
    """

    image_input = "pixels"
    text_input = "words"
    has_tokenizer = True
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
        processor: dict[str, Any] | None = None,
        scale: float | None = None,
        neutral: float | None = None,
        image_layers: int | None = None,
        text_layers: int | None = None,
        lora_rank: int = 0,
        gradient_checkpointing: bool = False,
    ) -> None:
        super().__init__()
        if image_layers == 0 and text_layers == 0:
            raise ValueError("image_layers and text_layers are both 0, so nothing of the model would be trained")
        if (folder is None) == (config is None):
            raise DataError(
                "'clip' needs either folder=, where a model was saved, or config= for a random one; in a recipe: "
                "--set model.folder=FOLDER, or a name on the Hugging Face hub"
            )
        self.folder = None if folder is None else find_model_folder(folder)
        model = _random_model(config) if self.folder is None else _load(self.folder)
        self.kind: str = model.config.model_type
        self.config = model.config
        if gradient_checkpointing:
            _checkpoint_layers(model)
        self.vision_model, self.text_model = model.vision_model, model.text_model
        self.visual_projection = getattr(model, "visual_projection", nn.Identity())
        self.text_projection = getattr(model, "text_projection", nn.Identity())
        self.max_words: int = model.config.text_config.max_position_embeddings
        self.to_logit = _logit_scale(model, scale, neutral)
        self.image_transform: ImageTransform = self._transform(processor)
        for tower, projection, layers in (
            (self.vision_model, self.visual_projection, image_layers),
            (self.text_model, self.text_projection, text_layers),
        ):
            if lora_rank and layers != 0:
                add_adapters(tower, projection, lora_rank)
            elif layers is not None:
                train_last_layers(tower, projection, layers)
        # A checkpoint contains all weights, so it must not need the folder again.
        self.resolved_options = {
            "folder": None,
            "config": model.config.to_diff_dict(),
            "processor": self.image_transform.to_dict(),
        }

    def _transform(self, processor: dict[str, Any] | None) -> ImageTransform:
        size = self.config.vision_config.image_size
        if processor is not None:
            return ImageTransform.from_dict({**default_transform(self.kind, size).to_dict(), **processor})
        return (
            default_transform(self.kind, size) if self.folder is None else read_transform(self.folder, self.kind, size)
        )

    def tokenizer(self) -> SubwordTokenizer:
        if self.folder is None:
            raise DataError(
                "a model from config= has no tokenizer; give the folder of a saved model, with its tokenizer"
            )
        return SubwordTokenizer.from_folder(self.folder, max_length=self.max_words, padded=self.kind == "siglip")

    def encode_images(self, batch: Batch) -> Encoded:
        pixels = pixels_of(batch, "clip")
        return Encoded(
            pooled=l2_normalize(self.visual_projection(self.vision_model(pixel_values=pixels).pooler_output))
        )

    def encode_texts(self, batch: Batch) -> Encoded:
        words, mask = words_of(batch)
        if words.shape[1] > self.max_words:
            raise DataError(f"a text has {words.shape[1]} tokens, but this model reads {self.max_words}; shorten it")
        if self.kind == "siglip":  # reads padding like words, up to its fixed length
            pad = self.config.text_config.pad_token_id
            words = F.pad(words.masked_fill(~mask, pad), (0, self.max_words - words.shape[1]), value=pad)
            return Encoded(pooled=l2_normalize(self.text_model(input_ids=words).pooler_output))
        read = self.text_model(input_ids=words, attention_mask=mask.long()).last_hidden_state  # (b, w, d)
        last = mask.sum(dim=1).clamp_min(1) - 1
        end = read[torch.arange(len(read), device=read.device), last]  # (b, d)
        return Encoded(pooled=l2_normalize(self.text_projection(end)))

    def compare(self, images: Encoded, texts: Encoded) -> Tensor:
        return self.to_logit(all_cosines(images.whole(), texts.whole()))

    def save_pretrained(self, folder: str | Path, tokenizer: SubwordTokenizer | None = None) -> None:
        """Write the model in its own format, which transformers loads: configuration, weights, processor, tokenizer.

        Adapters are merged into the weights. CLIP's format has no bias; it is kept in the configuration, where only
        this package reads it.
        """
        folder = Path(folder)
        folder.mkdir(parents=True, exist_ok=True)
        merged = copy.deepcopy(self)
        for tower in (merged.vision_model, merged.text_model):
            merge_adapters(tower)
        config = copy.deepcopy(self.config)
        bias = float(self.to_logit.bias.detach())
        if self.kind == "clip":
            setattr(config, BIAS_KEY, bias)
        model = _model_class(self.kind)(config)
        state = {name: tensor for name, tensor in merged.state_dict().items() if not name.startswith("to_logit.")}
        own = model.state_dict()
        state["logit_scale"] = self.to_logit.log_scale.detach().reshape(own["logit_scale"].shape)
        if "logit_bias" in own:
            state["logit_bias"] = self.to_logit.bias.detach().reshape(own["logit_bias"].shape)
        model.load_state_dict(state)
        with quiet():
            model.save_pretrained(folder)
        write_json(folder / PROCESSOR, processor_config(self.image_transform, self.kind))
        if self.folder is not None:
            copy_tokenizer(self.folder, folder)
        elif tokenizer is not None:
            tokenizer.save(folder)


def _checkpoint_layers(model: Any) -> None:
    if hasattr(model, "activation_checkpointing_enable"):
        model.activation_checkpointing_enable()
    else:  # its name in earlier versions of transformers
        model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})


def _model_class(kind: str) -> Any:
    transformers = require("transformers", extra="hf", purpose=PURPOSE)
    return {"clip": transformers.CLIPModel, "siglip": transformers.SiglipModel}[kind]


def _random_model(config: dict[str, Any] | None) -> Any:
    transformers = require("transformers", extra="hf", purpose=PURPOSE)
    options = dict(config or {})
    kind = check_kind(options.pop("model_type", "clip"), "config=")
    settings = {"clip": transformers.CLIPConfig, "siglip": transformers.SiglipConfig}[kind]
    return _model_class(kind)(settings(**options))


def _load(folder: Path) -> Any:
    kind = read_config(folder)["model_type"]
    with loading(folder), quiet():
        return _model_class(kind).from_pretrained(folder, local_files_only=True, dtype=torch.float32)


def _logit_scale(model: Any, scale: float | None, neutral: float | None) -> LogitScale:
    own = float(model.logit_scale.detach().exp())
    bias = getattr(model.config, BIAS_KEY, None)
    if hasattr(model, "logit_bias"):
        bias = float(model.logit_bias.detach())
    if neutral is None and bias is not None:
        neutral = -bias / own
    return LogitScale(scale=own if scale is None else scale, neutral=0.25 if neutral is None else neutral)

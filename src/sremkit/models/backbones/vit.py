"""A small vision transformer and a text transformer, trained from scratch on pixels and words.

    logit = scale · cos(image, text) + bias

An image is cut into square patches, a text is a row of words of the data's vocabulary; both pass a transformer, and
the mean of its outputs is projected to the joint space. For machines without pretrained weights; the defaults have
four million parameters and a vocabulary's embedding.

Reference: Dosovitskiy et al., "An Image is Worth 16x16 Words: Transformers for Image Recognition at Scale", ICLR 2021.
"""

from __future__ import annotations

from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from sremkit.data.batch import Batch
from sremkit.data.image_transform import ImageTransform
from sremkit.errors import DataError
from sremkit.models import BACKBONES
from sremkit.models.layers.encoders import LogitScale, all_cosines, check_positive
from sremkit.models.layers.masking import masked_mean, pixels_of, words_of
from sremkit.models.layers.transformer import Transformer
from sremkit.models.matcher import Encoded, Matcher
from sremkit.ops.functional import l2_normalize

EMBEDDING_STD = 0.3  # of words and positions: about the size of a patch's embedding


@BACKBONES.register("vit")
class ViT(Matcher):
    """A small vision transformer and text transformer from scratch, on pixels and words.

    Args:
        image_size: pixels along one side of the resized image.
        patch_size: pixels along one side of a patch.
        hidden_size: width of both transformers.
        num_layers: of each transformer.
        num_heads: of the attention.
        max_words: words of a text that are read; longer texts are cut.
        dropout: after the attention and after the MLP of each layer.
        mean, std: of the pixels of the collection, on the scale of 0 to 1, by which images are normalised. Images of
            light backgrounds begin with almost equal vectors if the mean is that of photographs, and learn late.
        crop: resize the shorter side and crop the centre; else the image is resized whatever its proportions.
        gradient_checkpointing: compute activations again in the backward pass, which saves memory.
    """

    image_input = "pixels"
    text_input = "words"
    small_options: ClassVar[dict[str, Any]] = {
        "image_size": 16,
        "patch_size": 8,
        "hidden_size": 12,
        "embed_size": 8,
        "num_layers": 2,
        "num_heads": 2,
        "dropout": 0.0,
    }

    def __init__(
        self,
        *,
        vocab_size: int,
        image_size: int = 96,
        patch_size: int = 16,
        hidden_size: int = 192,
        embed_size: int = 256,
        num_layers: int = 4,
        num_heads: int = 4,
        max_words: int = 64,
        dropout: float = 0.1,
        scale: float = 10.0,
        neutral: float = 0.5,
        mean: float = 0.5,
        std: float = 0.25,
        crop: bool = True,
        gradient_checkpointing: bool = False,
    ) -> None:
        super().__init__()
        check_positive(
            vocab_size=vocab_size, image_size=image_size, patch_size=patch_size, hidden_size=hidden_size,
            embed_size=embed_size, num_layers=num_layers, num_heads=num_heads, max_words=max_words,
        )  # fmt: skip
        if image_size % patch_size:
            raise ValueError(f"image_size {image_size} must be a multiple of patch_size {patch_size}")
        self.max_words = max_words
        self.image_transform = ImageTransform(
            image_size, image_size, shortest_edge=image_size if crop else None, mean=(mean,) * 3, std=(std,) * 3
        )
        num_patches = (image_size // patch_size) ** 2
        self.patches = nn.Conv2d(3, hidden_size, patch_size, stride=patch_size)
        self.embed = nn.Embedding(vocab_size, hidden_size)
        self.patch_positions = nn.Parameter(torch.empty(num_patches, hidden_size))
        self.word_positions = nn.Parameter(torch.empty(max_words, hidden_size))
        for weight in (self.embed.weight, self.patch_positions, self.word_positions):
            nn.init.normal_(weight, std=EMBEDDING_STD)
        self.image_tower, self.text_tower = (
            Transformer(hidden_size, num_layers, num_heads, dropout=dropout, recompute=gradient_checkpointing)
            for _ in range(2)
        )
        self.image_projection = nn.Linear(hidden_size, embed_size, bias=False)
        self.text_projection = nn.Linear(hidden_size, embed_size, bias=False)
        self.to_logit = LogitScale(scale=scale, neutral=neutral)

    def encode_images(self, batch: Batch) -> Encoded:
        pixels = pixels_of(batch, "vit")
        assert self.image_transform is not None
        if tuple(pixels.shape[1:]) != self.image_transform.shape:
            raise DataError(
                f"'vit' was built for images of {self.image_transform.shape}, got {tuple(pixels.shape[1:])}"
            )
        patches = self.patches(pixels).flatten(2).transpose(1, 2)  # (b, p, d)
        seen = self.image_tower(patches + self.patch_positions)
        return Encoded(pooled=l2_normalize(self.image_projection(seen.mean(dim=1))))

    def encode_texts(self, batch: Batch) -> Encoded:
        words, mask = words_of(batch)
        words, mask = words[:, : self.max_words], mask[:, : self.max_words]
        read = self.text_tower(self.embed(words) + self.word_positions[: words.shape[1]], mask)
        return Encoded(pooled=l2_normalize(self.text_projection(masked_mean(read, mask.unsqueeze(-1), dim=1))))

    def compare(self, images: Encoded, texts: Encoded) -> Tensor:
        return self.to_logit(all_cosines(images.whole(), texts.whole()))

"""Every backbone at a size that tests can afford, and batches for them."""

from __future__ import annotations

import inspect
from dataclasses import dataclass, replace
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from sremkit.data.batch import Batch
from sremkit.models import BACKBONES, Matcher, build_matcher

VOCAB, IMAGE_DIM, TEXT_DIM, PIXELS = 40, 10, 9, 16

#: Widths that follow from the data.
_OF_DATA = {"vocab_size": VOCAB, "image_dim": IMAGE_DIM, "text_dim": TEXT_DIM}


def small_options(name: str) -> dict[str, Any]:
    """Options of a small model, as its class declares them; dropout is off, so that training mode is repeatable."""
    backbone = BACKBONES[name]
    takes = inspect.signature(backbone).parameters
    return {**{key: value for key, value in _OF_DATA.items() if key in takes}, **backbone.small_options}


#: Options of a small model under each registered name.
SMALL: dict[str, dict[str, Any]] = {name: small_options(name) for name in BACKBONES}


@dataclass
class Items:
    """Pairs without any padding: what an oracle reads."""

    images: list[Tensor]  # (r_i, d) each
    captions: list[list[int]]
    sentences: Tensor  # (b, e)
    pixels: Tensor  # (b, 3, h, w)

    def batch(self, name: str = "sgr", *, more_words: int = 0, more_regions: int = 0, garbage: float = 0.0) -> Batch:
        """Padded as the loader does, and further on request; padding may be filled with `garbage`."""
        b = len(self.captions)
        word_counts = torch.tensor([len(c) for c in self.captions])
        region_counts = torch.tensor([len(v) for v in self.images])
        width, regions = int(word_counts.max()) + more_words, int(region_counts.max()) + more_regions
        words = torch.full((b, width), 7 if garbage else 0)
        images = torch.full((b, regions, self.images[0].shape[1]), garbage, dtype=self.images[0].dtype)
        for k, (image, caption) in enumerate(zip(self.images, self.captions, strict=True)):
            images[k, : len(image)] = image
            words[k, : len(caption)] = torch.tensor(caption)
        batch = Batch(
            pair_id=torch.arange(b),
            image_id=torch.arange(b),
            images=images,
            region_mask=torch.arange(regions) < region_counts[:, None],
            words=words,
            word_mask=torch.arange(width) < word_counts[:, None],
            sentences=self.sentences,
        )
        if BACKBONES[name].image_input == "pixels":
            return replace(batch, images=self.pixels, region_mask=None)
        return batch

    def permuted(self, order: list[int]) -> Items:
        return Items(
            [self.images[k] for k in order],
            [self.captions[k] for k in order],
            self.sentences[order],
            self.pixels[order],
        )


def make_items(
    b: int = 5,
    *,
    seed: int = 0,
    regions: tuple[int, int] = (3, 6),
    words: tuple[int, int] = (2, 7),
    dtype=torch.float64,
) -> Items:
    """Random pairs with region and word counts in the given ranges, both ends included and both reached."""
    g = torch.Generator().manual_seed(seed)

    def counts(low: int, high: int) -> list[int]:
        drawn = torch.randint(low, high + 1, (b,), generator=g).tolist()
        return [high, low, *drawn[2:]][:b]

    images = [torch.randn(r, IMAGE_DIM, generator=g, dtype=torch.float64).to(dtype) for r in counts(*regions)]
    captions = []
    for w in counts(*words)[::-1]:
        middle = torch.randint(4, VOCAB, (max(0, w - 2),), generator=g).tolist()
        captions.append([1, *middle, 2][:w] if w > 1 else [1])
    return Items(
        images,
        captions,
        torch.randn(b, TEXT_DIM, generator=g, dtype=torch.float64).to(dtype),
        torch.randn(b, 3, PIXELS, PIXELS, generator=g, dtype=torch.float64).to(dtype),
    )


def small_matcher(name: str, *, seed: int = 0, dtype=torch.float64, **options: Any) -> Matcher:
    """A small model with nothing left at zero or one: biases, norms and running estimates are random too."""
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        matcher = build_matcher(name, **{**SMALL[name], **options}).to(dtype)
    g = torch.Generator().manual_seed(seed + 1)
    with torch.no_grad():
        for parameter in matcher.parameters():
            noise = torch.randn(parameter.shape, generator=g, dtype=torch.float64)
            parameter.add_(0.1 * noise.to(dtype))
        for key, buffer in matcher.named_buffers():
            if key.endswith("running_mean"):
                buffer.add_(0.1 * torch.randn(buffer.shape, generator=g, dtype=torch.float64).to(dtype))
            if key.endswith("running_var"):
                buffer.mul_(0.5 + torch.rand(buffer.shape, generator=g, dtype=torch.float64).to(dtype))
    return matcher


def weights_of(module: nn.Module) -> dict[str, Tensor]:
    """Parameters and buffers by name, the very same tensors, so that gradients can be asked for."""
    return {**dict(module.named_parameters()), **dict(module.named_buffers())}


def some_loss(logits: Tensor) -> Tensor:
    """A loss that sees every logit, and what they have in common too."""
    match = torch.arange(len(logits), device=logits.device)
    ranking = F.cross_entropy(logits, match) + F.cross_entropy(logits.T, match)
    return ranking + logits.sigmoid().square().mean()

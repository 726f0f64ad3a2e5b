"""The contract of every backbone: images and texts are encoded once each, then compared all against all."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any, ClassVar, Literal, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from sremkit.config.options import TakesOptions
from sremkit.data.batch import Batch
from sremkit.data.batches import Batches
from sremkit.data.image_transform import ImageTransform
from sremkit.data.subwords import SubwordTokenizer
from sremkit.errors import DataError
from sremkit.models.encoding import Encoded as Encoded

#: Options that follow from the data, so that a recipe may leave them out.
FROM_DATA = ("image_dim", "text_dim", "vocab_size")

ENCODE_BATCH = 256

Progress = Callable[[int, int], None]  # called with (pairs done, pairs in all)


class Matcher(nn.Module, TakesOptions):
    """A similarity model. Subclasses implement `encode_images`, `encode_texts` and `compare`.

    `build_matcher` stores in `name` and `options` how the model was built, so that a checkpoint can rebuild it.

    The following options have the same meaning in every backbone that takes them. A recipe may leave out those that
    follow from the data.

    Args:
        vocab_size: number of words of the vocabulary; follows from the data.
        image_dim: width of an image feature; follows from the data.
        text_dim: width of a sentence vector; follows from the data.
        embed_size: width of the joint space of images and texts.
        word_dim: width of a word embedding.
        hidden_size: width of the hidden layers.
        scale: initial slope from cosine to logit.
        neutral: cosine whose logit is initially 0.
    """

    #: What the backbone reads from a batch.
    image_input: ClassVar[Literal["regions", "vectors", "pixels"]] = "regions"
    text_input: ClassVar[Literal["words", "sentences"]] = "words"
    #: Whether it reads texts by a tokenizer of its own, `tokenizer()`, in place of a vocabulary of the data.
    has_tokenizer: ClassVar[bool] = False
    #: Whether the host never waits for a CUDA device during a step, so that the step can be a CUDA graph.
    supports_cuda_graphs: ClassVar[bool] = False
    #: Whether products in `compare` follow autocast; else it computes in full precision.
    compares_in_autocast: ClassVar[bool] = False
    #: Options of a small model without dropout, for tests; widths that follow from the data are added.
    small_options: ClassVar[Mapping[str, Any]] = {}

    def __init__(self) -> None:
        super().__init__()
        self.name = ""
        self.options: dict[str, Any] = {}
        #: How images become the pixels that it reads, of a backbone that reads pixels.
        self.image_transform: ImageTransform | None = None
        #: Options that rebuilding the model needs in place of the given ones, such as a file's content.
        self.resolved_options: dict[str, Any] = {}

    def tokenizer(self) -> SubwordTokenizer:
        """The tokenizer of a backbone with `has_tokenizer`."""
        raise NotImplementedError

    def save_pretrained(self, folder: str | Path, tokenizer: SubwordTokenizer | None = None) -> None:
        """Write a backbone with `has_tokenizer` in the format that it was published in."""
        raise NotImplementedError

    def encode_images(self, batch: Batch) -> Encoded:
        raise NotImplementedError

    def encode_texts(self, batch: Batch) -> Encoded:
        raise NotImplementedError

    def compare(self, images: Encoded, texts: Encoded) -> Tensor:
        """Logits of every image (row) with every text (column): (n, m) float32."""
        raise NotImplementedError

    def similarity_vectors(self, images: Encoded, texts: Encoded) -> Tensor:
        """What `compare` computes its logits from, (n, m, s); the logits themselves unless overridden."""
        return self.compare(images, texts).unsqueeze(-1)

    @property
    def similarity_width(self) -> int:
        """The width s of a similarity vector."""
        return 1

    def forward(self, batch: Batch) -> Tensor:
        """Logits (b, b) of a batch: rows images, columns texts, diagonal the given pairs."""
        return self.compare(*self.encode(batch))

    def encode(self, batch: Batch) -> tuple[Encoded, Encoded]:
        """A batch's images and texts, for training.

        While a CUDA graph is captured, images are encoded on another stream, as a branch of the graph: the GRU over the
        words is a chain of small kernels that leaves most of the device idle. Autograd computes gradients on the stream
        of the forward pass. Outside a graph both would wait for the host. Random numbers are drawn in the same order.
        """
        device = batch.pair_id.device
        if not _is_capturing(device):
            return self.encode_images(batch), self.encode_texts(batch)
        current, side = torch.cuda.current_stream(device), _side_stream(device)
        side.wait_stream(current)
        with torch.cuda.stream(side):
            images = self.encode_images(batch)
        texts = self.encode_texts(batch)
        current.wait_stream(side)
        for tensor in images._tensors().values():
            tensor.record_stream(current)  # or the side stream would reuse its memory as soon as it is freed
        return images, texts

    def extra_losses(self, batch: Batch, images: Encoded | None = None) -> dict[str, Tensor]:
        """Weighted losses of the backbone itself, by name, for training; without `images` these are encoded again."""
        return {}

    def logits_and_losses(self, batch: Batch) -> tuple[Tensor, dict[str, Tensor]]:
        """`forward`'s logits and the extra losses, from one encoding of the images."""
        images, texts = self.encode(batch)
        logits = self.compare(images, texts)
        return logits, self.extra_losses(batch, images)

    def kernels_support(self, batch: Batch) -> bool:
        """Whether the kernels support this batch's sizes; if not, the host waits for the device in its step."""
        return True

    def networks(self) -> list[Matcher]:
        """The networks it consists of, whose gradients are clipped separately."""
        return [self]

    def floats_per_pair(self, images: Encoded, texts: Encoded) -> int:
        """About how many floats `compare` holds for one image with one text; sets the blocks of `score_all`."""
        return 2

    @torch.no_grad()
    def score_all(
        self,
        images: Encoded,
        texts: Encoded,
        *,
        memory_limit: int | None = None,
        image_chunk: int | None = None,
        text_chunk: int | None = None,
        progress: Progress | None = None,
        on_device: bool = False,
    ) -> Tensor:
        """Logits of all images with all texts, (n, m) on the CPU, in evaluation mode and without gradients.

        Items may be on any device; a block at a time is moved to the model's, so move them there first if they fit. The
        training mode of every submodule is restored afterwards.

        Args:
            memory_limit: bytes that one block may take in addition to inputs and result; sets the chunks. By default
                half a gigabyte on a CPU, a quarter of the free memory on a GPU.
            image_chunk: images per block, in place of what `memory_limit` gives.
            text_chunk: texts per block, likewise.
            progress: called after each block with the number of pairs done and in total.
            on_device: leave the logits on the model's device.
        """
        n, m = len(images), len(texts)
        if n == 0 or m == 0:
            raise DataError(f"there is nothing to score: {n} images and {m} texts")
        device = next(self.parameters()).device
        # Texts of similar length share a block, so that little is computed on padding.
        lengths = texts.lengths.cpu()
        order = lengths.argsort(descending=True, stable=True)
        limit = memory_limit or _memory_limit(device)
        chunks = block_of(n, pairs=limit // (4 * self.floats_per_pair(images, texts)))
        image_chunk, text_chunk = image_chunk or chunks[0], text_chunk or chunks[1]
        images = images.trimmed()
        scores: Tensor | None = None  # allocated when the first block gives its dtype
        with evaluating(self):
            for texts_from in range(0, m, text_chunk):
                columns = order[texts_from : texts_from + text_chunk]
                some_texts = texts.take(columns, lengths[columns]).to(device)
                for images_from in range(0, n, image_chunk):
                    rows = slice(images_from, images_from + image_chunk)
                    block = self.compare(images[rows].to(device), some_texts)
                    if scores is None:
                        scores = block.new_empty(n, m)  # on the device, which the host need not wait for
                    scores[rows, columns.to(device)] = block
                    if progress is not None:
                        progress(texts_from * n + min(images_from + image_chunk, n) * len(columns), n * m)
        assert scores is not None
        return scores if on_device else scores.cpu()


@contextmanager
def evaluating(module: nn.Module) -> Iterator[None]:
    """Evaluation mode inside the block; afterwards every submodule is in its previous mode."""
    modes = [(part, part.training) for part in module.modules()]
    module.eval()
    try:
        yield
    finally:
        for part, training in modes:
            part.training = training


class EncodedPairs(NamedTuple):
    """All images and all texts after encoding."""

    images: Encoded  # (n,)
    texts: Encoded  # (m,)


@torch.no_grad()
def encode_everything(
    matcher: Matcher, batches: Batches, *, text_rows: np.ndarray | None = None, shard: tuple[int, int] = (0, 1)
) -> EncodedPairs:
    """Encode each image and each text once, in evaluation mode, on the matcher's device.

    Args:
        text_rows: these texts only.
        shard: rank and number of processes; each encodes a consecutive part.
    """
    device = next(matcher.parameters()).device
    image_rows = np.arange(batches.pairs.num_images)
    text_rows = np.arange(len(batches.pairs)) if text_rows is None else text_rows
    with evaluating(matcher):
        images = [matcher.encode_images(batches.take_images(rows).to(device)) for rows in _chunks(image_rows, shard)]
        texts = [matcher.encode_texts(batches.take_texts(rows).to(device)) for rows in _chunks(text_rows, shard)]
    return EncodedPairs(Encoded.concatenate(images), Encoded.concatenate(texts))


def _chunks(rows: np.ndarray, shard: tuple[int, int]) -> list[np.ndarray]:
    """The rows of this shard in chunks of a batch; at least one chunk, even if it is empty."""
    rank, world = shard
    own = np.array_split(rows, world)[rank]
    return np.array_split(own, max(1, math.ceil(len(own) / ENCODE_BATCH)))


def _memory_limit(device: torch.device) -> int:
    if device.type != "cuda":
        return 512 << 20
    return min(16 << 30, torch.cuda.mem_get_info(device)[0] // 4)


def block_of(num_images: int, *, pairs: int) -> tuple[int, int]:
    """Images and texts of a block of so many pairs: images in equal parts, at most square; fewer images, more texts."""
    side = max(1, math.isqrt(pairs))
    image_chunk = math.ceil(num_images / math.ceil(num_images / side))
    return image_chunk, max(1, pairs // image_chunk)


def _is_capturing(device: torch.device) -> bool:
    if device.type != "cuda" or torch.compiler.is_compiling():
        return False
    return torch.cuda.is_current_stream_capturing()


@cache
def _side_stream(device: torch.device) -> torch.cuda.Stream:
    return torch.cuda.Stream(device)

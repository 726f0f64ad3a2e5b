"""What every backbone is: images and texts are encoded once each, then compared all against all."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, fields, replace
from typing import Any, ClassVar, Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from sremkit.data.batch import Batch
from sremkit.errors import DataError
from sremkit.models.at_once import at_once

Progress = Callable[[int, int], None]  # called with (pairs done, pairs in all)


@dataclass(frozen=True, eq=False)
class Encoded:
    """Items of one modality after encoding; the first axis of every tensor counts the items.

    A backbone fills what its comparison needs: local vectors with their mask, one global vector, or both.
    Absent local vectors are zero.
    """

    local: Tensor | None = None  # (n, l, d) regions or words
    mask: Tensor | None = None  # (n, l) bool, True where a region or word is present
    pooled: Tensor | None = None  # (n, d)
    most_parts: int | None = None  # no more local vectors than this are present; where the host knows it

    def __len__(self) -> int:
        return next(len(t) for t in self._tensors().values())

    def __getitem__(self, items: slice | Tensor) -> Encoded:
        taken = replace(self, **{name: t[items] for name, t in self._tensors().items()})
        if taken.most_parts is None or taken.mask is None:
            return taken
        everything = taken.mask.numel()
        # Of a slice there is nothing twice.
        most = min(taken.most_parts, everything) if isinstance(items, slice) else everything
        return replace(taken, most_parts=most)

    def to(self, device: torch.device | str) -> Encoded:
        return replace(self, **{name: t.to(device) for name, t in self._tensors().items()})

    def parts(self) -> tuple[Tensor, Tensor]:
        """Local vectors (n, l, d) and their mask (n, l), of a backbone that keeps them."""
        if self.local is None or self.mask is None:
            raise ValueError("these items were encoded without local vectors, by another backbone")
        return self.local, self.mask

    def whole(self) -> Tensor:
        """Global vectors (n, d), of a backbone that keeps them."""
        if self.pooled is None:
            raise ValueError("these items were encoded without global vectors, by another backbone")
        return self.pooled

    @property
    def lengths(self) -> Tensor:
        """How many local vectors each item has: (n,) int64; 0 where a backbone keeps none."""
        if self.mask is None:
            return torch.zeros(len(self), dtype=torch.long)
        return self.mask.sum(dim=1)

    def trimmed(self) -> Encoded:
        """Without the trailing columns in which no item has anything."""
        if self.local is None or self.mask is None:
            return self
        return self._cut_to(trimmed_width(self.mask))

    def take(self, items: Tensor, lengths: Tensor) -> Encoded:
        """These items without trailing padding; their lengths are known to the host, which need not wait."""
        if self.mask is None:
            return self[items]
        taken = self[items.to(self.mask.device)]._cut_to(max(1, int(lengths.max())))
        return replace(taken, most_parts=int(lengths.sum()))

    def _cut_to(self, width: int) -> Encoded:
        """Without the columns from `width` on."""
        if self.local is None or self.mask is None or self.mask.shape[1] <= width:
            return self
        return replace(self, local=self.local[:, :width].contiguous(), mask=self.mask[:, :width].contiguous())

    @staticmethod
    def concatenate(parts: Sequence[Encoded]) -> Encoded:
        """All items of several batches, padded to the longest."""
        widest = max(0 if part.mask is None else part.mask.shape[1] for part in parts)
        padded = [part._padded_to(widest) for part in parts]
        names = padded[0]._tensors()
        joined: dict[str, Any] = {name: torch.cat([getattr(p, name) for p in padded]) for name in names}
        return Encoded(**joined)

    def _padded_to(self, width: int) -> Encoded:
        if self.local is None or self.mask is None or self.mask.shape[1] == width:
            return self
        missing = width - self.mask.shape[1]
        return replace(self, local=F.pad(self.local, (0, 0, 0, missing)), mask=F.pad(self.mask, (0, missing)))

    def _tensors(self) -> dict[str, Any]:
        return {f.name: t for f in fields(self) if isinstance(t := getattr(self, f.name), Tensor)}


class Matcher(nn.Module):
    """A similarity model. Subclasses give `encode_images`, `encode_texts` and `compare`.

    `build_matcher` writes down in `name` and `options` how the model was made, so that a checkpoint can
    make it again.
    """

    #: What of a batch the backbone reads, for whoever prepares the batches.
    image_input: ClassVar[Literal["regions", "vectors", "pixels"]] = "regions"
    text_input: ClassVar[Literal["words", "sentences"]] = "words"
    #: Whether a step on a CUDA device never waits for it, so that it can be recorded and replayed.
    recordable: ClassVar[bool] = False

    def __init__(self) -> None:
        super().__init__()
        self.name = ""
        self.options: dict[str, Any] = {}
        #: Options that making the model again needs in place of the given ones, such as a file's content.
        self.resolved_options: dict[str, Any] = {}

    def encode_images(self, batch: Batch) -> Encoded:
        raise NotImplementedError

    def encode_texts(self, batch: Batch) -> Encoded:
        raise NotImplementedError

    def compare(self, images: Encoded, texts: Encoded) -> Tensor:
        """Logits of every image (row) with every text (column): (n, m) float32."""
        raise NotImplementedError

    def similarity_vectors(self, images: Encoded, texts: Encoded) -> Tensor:
        """What `compare` makes its logits of, (n, m, s): the logits themselves where there is nothing before."""
        return self.compare(images, texts).unsqueeze(-1)

    @property
    def similarity_width(self) -> int:
        """The width s of a similarity vector."""
        return 1

    def forward(self, batch: Batch) -> Tensor:
        """Logits (b, b) of a batch: rows images, columns texts, diagonal the given pairs."""
        return self.compare(*self.encode(batch))

    def encode(self, batch: Batch) -> tuple[Encoded, Encoded]:
        """A batch's images and texts, for training."""
        return at_once(
            lambda: self.encode_images(batch),
            lambda: self.encode_texts(batch),
            device=batch.pair_id.device,
            tensors_of=lambda images: images._tensors().values(),
        )

    def extra_losses(self, batch: Batch, images: Encoded | None = None) -> dict[str, Tensor]:
        """Losses that belong to the backbone and not to the objective, by name, already weighted.

        They are to be added to the objective's total in training. Most backbones have none.

        Args:
            images: the batch's encoded images, where they are at hand; else they are encoded again.
        """
        return {}

    def logits_and_losses(self, batch: Batch) -> tuple[Tensor, dict[str, Tensor]]:
        """`forward`'s logits and the extra losses, from one encoding of the images."""
        images, texts = self.encode(batch)
        logits = self.compare(images, texts)
        return logits, self.extra_losses(batch, images)

    def kernels_hold(self, batch: Batch) -> bool:
        """Whether the kernels hold items as large as this batch's; if not, a step goes the plain way, which waits."""
        return True

    def networks(self) -> list[Matcher]:
        """The networks it consists of, whose gradients are clipped apart: itself, where there is one."""
        return [self]

    def floats_per_pair(self, images: Encoded, texts: Encoded) -> int:
        """About how many numbers `compare` holds for one image with one text; sets score_all's blocks."""
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

        Items may lie on any device; a block at a time goes to the model's, so put them there first if they
        fit. Each part of the model is put back into the mode it was found in.

        Args:
            memory_limit: bytes that one block may take beside inputs and result; sets the chunks. Half a
                gigabyte on the processor when absent, a quarter of what is free on a GPU.
            image_chunk: images compared at once, if you would rather say so yourself.
            text_chunk: texts compared at once, likewise.
            progress: called after each block with the number of pairs done and in all.
            on_device: leave the logits where the model lies.
        """
        n, m = len(images), len(texts)
        if n == 0 or m == 0:
            raise DataError(f"there is nothing to score: {n} images and {m} texts")
        device = next(self.parameters()).device
        # Texts of like length share a block, so that little is computed on padding.
        lengths = texts.lengths.cpu()
        order = lengths.argsort(descending=True, stable=True)
        limit = memory_limit or _memory_limit(device)
        chunks = block_of(n, pairs=limit // (4 * self.floats_per_pair(images, texts)))
        image_chunk, text_chunk = image_chunk or chunks[0], text_chunk or chunks[1]
        images = images.trimmed()
        scores: Tensor | None = None  # made when the first block shows its number format
        with evaluating(self):
            for texts_from in range(0, m, text_chunk):
                columns = order[texts_from : texts_from + text_chunk]
                some_texts = texts.take(columns, lengths[columns]).to(device)
                for images_from in range(0, n, image_chunk):
                    rows = slice(images_from, images_from + image_chunk)
                    block = self.compare(images[rows].to(device), some_texts)
                    if scores is None:
                        # It stays on the device, where nothing has to wait for it.
                        scores = block.new_empty(n, m)
                    scores[rows, columns.to(device)] = block
                    if progress is not None:
                        progress(texts_from * n + min(images_from + image_chunk, n) * len(columns), n * m)
        assert scores is not None
        return scores if on_device else scores.cpu()


@contextmanager
def evaluating(module: nn.Module) -> Iterator[None]:
    """Evaluation mode inside the block; afterwards every submodule is in the mode it was in before."""
    modes = [(part, part.training) for part in module.modules()]
    module.eval()
    try:
        yield
    finally:
        for part, training in modes:
            part.training = training


def trimmed_width(mask: Tensor) -> int:
    """How many leading columns of `mask` hold everything present; at least 1."""
    present = mask.any(dim=0).nonzero()
    return int(present[-1]) + 1 if len(present) else 1


def _memory_limit(device: torch.device) -> int:
    if device.type != "cuda":
        return 512 << 20
    return min(16 << 30, torch.cuda.mem_get_info(device)[0] // 4)


def block_of(num_images: int, *, pairs: int) -> tuple[int, int]:
    """Images and texts of a block of so many pairs: images in equal parts, square at most; fewer take more texts."""
    side = max(1, math.isqrt(pairs))
    image_chunk = math.ceil(num_images / math.ceil(num_images / side))
    return image_chunk, max(1, pairs // image_chunk)

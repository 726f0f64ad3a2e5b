"""Large batches in little memory: encode piece by piece, compare the whole batch at once.

Ordinary gradient accumulation would shrink the batch that a pair is compared with. Here every pair still
meets all negatives: a piece's activations are thrown away after encoding and computed again, with the
same random numbers, when its gradient is due.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from sremkit.data.batch import Batch
from sremkit.errors import UserError
from sremkit.models.matcher import Encoded, Matcher


class PiecewiseMatcher(nn.Module):
    """A dual encoder that encodes at most `piece` pairs at a time."""

    def __init__(self, matcher: Matcher, piece: int) -> None:
        super().__init__()
        if piece < 1:
            raise UserError(f"training.micro_batch must be at least 1, got {piece}")
        if any(hasattr(part, "running_mean") for part in matcher.modules()):
            raise UserError(
                f"'{matcher.name}' normalises by statistics of the batch, which a piece would change; "
                "training.micro_batch is for backbones without them, such as 'dual' and 'clip'"
            )
        self.matcher = matcher
        self.piece = piece
        self.extra: dict[str, Tensor] = {}

    def forward(self, batch: Batch) -> Tensor:
        pieces = [batch[start : start + self.piece] for start in range(0, len(batch), self.piece)]
        images = self._encode(self.matcher.encode_images, pieces)
        texts = self._encode(self.matcher.encode_texts, pieces)
        return self.matcher.compare(images, texts)

    def _encode(self, encode: Callable[[Batch], Encoded], pieces: list[Batch]) -> Encoded:
        def pooled(piece: Batch) -> Tensor:
            encoded = encode(piece)
            if encoded.local is not None or encoded.pooled is None:
                raise UserError(
                    "training.micro_batch saves memory only where an image and a text meet as two vectors; "
                    f"'{self.matcher.name}' compares words with regions, and that is what fills its memory: "
                    "lower training.batch_size instead"
                )
            return encoded.pooled

        return Encoded(pooled=torch.cat([checkpoint(pooled, piece, use_reentrant=False) for piece in pieces]))

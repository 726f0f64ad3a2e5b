"""Two networks of one kind, trained beside each other, as NCR and its successors want them.

In training each gives its own logits. Where one answer is wanted they are an ensemble: their similarities, which
are the logits' sigmoids, are averaged (beside.py).
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from sremkit.data.batch import Batch
from sremkit.models import BACKBONES, build_matcher
from sremkit.models.beside import halves, logit_of_mean, side_by_side
from sremkit.models.matcher import Encoded, Matcher


@BACKBONES.register("twins")
class Twins(Matcher):
    """Two networks of one kind; methods that train two make it for themselves.

    Args:
        member: "name" and "options" of the backbone.
    """

    def __init__(self, *, member: dict[str, Any]) -> None:
        super().__init__()
        first = build_matcher(member["name"], **member["options"])
        second = build_matcher(first.name, **first.options)
        self.members = nn.ModuleList([first, second])
        self.recordable = first.recordable  # type: ignore[misc]  # it waits for the device where they do
        self.resolved_options = {"member": {"name": first.name, "options": first.options}}

    @property
    def first(self) -> Matcher:
        return self.members[0]  # type: ignore[return-value]

    @property
    def second(self) -> Matcher:
        return self.members[1]  # type: ignore[return-value]

    def networks(self) -> list[Matcher]:
        return [self.first, self.second]

    def encode_images(self, batch: Batch) -> Encoded:
        return side_by_side(self.first.encode_images(batch), self.second.encode_images(batch))

    def encode_texts(self, batch: Batch) -> Encoded:
        return side_by_side(self.first.encode_texts(batch), self.second.encode_texts(batch))

    def compare(self, images: Encoded, texts: Encoded) -> Tensor:
        """The logit of the two networks' mean similarity: (n, m)."""
        return logit_of_mean(*self.compare_each(images, texts))

    def compare_each(self, images: Encoded, texts: Encoded) -> Tensor:
        """The logits of each network: (2, n, m)."""
        (images_a, images_b), (texts_a, texts_b) = halves(images), halves(texts)
        return torch.stack([self.first.compare(images_a, texts_a), self.second.compare(images_b, texts_b)])

    def logits_and_losses(self, batch: Batch) -> tuple[Tensor, dict[str, Tensor]]:
        """For training: the logits of each network, (2, b, b), and the sum of their extra losses."""
        logits, losses = zip(*(network.logits_and_losses(batch) for network in self.networks()), strict=True)
        return torch.stack(logits), {name: losses[0][name] + losses[1][name] for name in losses[0]}

    def kernels_hold(self, batch: Batch) -> bool:
        return self.first.kernels_hold(batch)

    def floats_per_pair(self, images: Encoded, texts: Encoded) -> int:
        return 2 * self.first.floats_per_pair(halves(images)[0], halves(texts)[0])

"""Two networks of one kind, as NCR and its successors train them: separate in training, elsewhere an ensemble."""

from __future__ import annotations

from typing import Any, cast

import torch
from torch import Tensor, nn

from sremkit.data.batch import Batch
from sremkit.data.subwords import SubwordTokenizer
from sremkit.models import WRAPPERS, build_matcher
from sremkit.models.ensemble import Ensemble
from sremkit.models.matcher import Encoded, Matcher


@WRAPPERS.register("two-networks")
class TwoNetworks(Ensemble):
    """Two networks of one kind; built by methods that train two.

    Args:
        member: "name" and "options" of the backbone.
    """

    def __init__(self, *, member: dict[str, Any]) -> None:
        super().__init__()
        first = build_matcher(member["name"], **member["options"])
        second = build_matcher(member["name"], **member["options"])  # pretrained weights are read for both
        self.members = nn.ModuleList([first, second])
        self.image_transform = first.image_transform
        self.supports_cuda_graphs = first.supports_cuda_graphs  # type: ignore[misc]
        self.resolved_options = {"member": {"name": first.name, "options": first.options}}

    def pair(self) -> tuple[Matcher, Matcher]:
        first, second = self.members
        return cast(Matcher, first), cast(Matcher, second)

    def tokenizer(self) -> SubwordTokenizer:
        return self.pair()[0].tokenizer()

    def networks(self) -> list[Matcher]:
        return list(self.pair())

    def logits_and_losses(self, batch: Batch) -> tuple[Tensor, dict[str, Tensor]]:
        """For training: the logits of each network, (2, b, b), and the sum of their extra losses."""
        logits, losses = zip(*(network.logits_and_losses(batch) for network in self.networks()), strict=True)
        return torch.stack(logits), {name: losses[0][name] + losses[1][name] for name in losses[0]}

    def floats_per_pair(self, images: Encoded, texts: Encoded) -> int:
        return 2 * super().floats_per_pair(images, texts)

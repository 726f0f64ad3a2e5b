"""A backbone whose similarity vectors are scored by a small network of its own, for MSCN.

    logit = v · ReLU(U x + c) + d,    x the similarity vector of a pair (SAF, SGR), or its logit (all others)

This *meta-network* replaces the backbone's last linear layer, which is left unused. A method can train the
two separately.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from sremkit.data.batch import Batch
from sremkit.data.subwords import SubwordTokenizer
from sremkit.models import WRAPPERS, build_matcher
from sremkit.models.layers.encoders import check_positive, xavier_linear
from sremkit.models.matcher import Encoded, Matcher
from sremkit.ops.functional import full_precision, without_autocast


class MetaNetwork(nn.Module):
    """From a similarity vector to a logit: linear, ReLU, linear."""

    def __init__(self, width: int, hidden_size: int) -> None:
        super().__init__()
        self.hidden = xavier_linear(width, hidden_size)
        self.output = xavier_linear(hidden_size, 1)
        if width == 1:
            # A vector of width 1 is a logit that ranks already. With equal signs before and after the ReLU the
            # network is initially increasing; random signs would invert every ranking half of the time.
            with torch.no_grad():
                self.output.weight.abs_().mul_(self.hidden.weight.sign().T)

    def forward(self, vectors: Tensor) -> Tensor:
        """Logits (n, m) of similarity vectors (n, m, s)."""
        with without_autocast(vectors):
            return self.output(torch.relu(self.hidden(full_precision(vectors)))).squeeze(-1)


@WRAPPERS.register("meta-scored")
class MetaScored(Matcher):
    """A backbone scored by a meta-network; built by methods that train the two separately.

    Args:
        member: "name" and "options" of the backbone.
        hidden_size: width of the meta-network.
    """

    def __init__(self, *, member: dict[str, Any], hidden_size: int = 64) -> None:
        super().__init__()
        check_positive(hidden_size=hidden_size)
        self.backbone = build_matcher(member["name"], **member["options"])
        self.meta_network = MetaNetwork(self.backbone.similarity_width, hidden_size)
        self.image_transform = self.backbone.image_transform
        self.resolved_options = {"member": {"name": self.backbone.name, "options": self.backbone.options}}

    def tokenizer(self) -> SubwordTokenizer:
        return self.backbone.tokenizer()

    def encode_images(self, batch: Batch) -> Encoded:
        return self.backbone.encode_images(batch)

    def encode_texts(self, batch: Batch) -> Encoded:
        return self.backbone.encode_texts(batch)

    def compare(self, images: Encoded, texts: Encoded) -> Tensor:
        return self.meta_network(self.backbone.similarity_vectors(images, texts))

    def extra_losses(self, batch: Batch, images: Encoded | None = None) -> dict[str, Tensor]:
        return self.backbone.extra_losses(batch, images)

    def floats_per_pair(self, images: Encoded, texts: Encoded) -> int:
        return self.backbone.floats_per_pair(images, texts) + 2 * self.meta_network.hidden.out_features

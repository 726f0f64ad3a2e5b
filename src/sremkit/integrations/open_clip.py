"""SREM behind open_clip's loss contract, in place of `ClipLoss` or `SigLipLoss`."""

from __future__ import annotations

import torch
from torch import Tensor

from sremkit.integrations.embedding_loss import EmbeddingLoss
from sremkit.integrations.warmup import Warmup
from sremkit.objectives import SREM


class OpenCLIPLoss(EmbeddingLoss):
    """Called as open_clip's training loop does: `loss(**model_out, output_dict=True)`.

    Args:
        criterion, warmup: as for `EmbeddingLoss`.
        logit_bias: used where the model has none. SREM needs negative logits for mismatches; a model built with
            `init_logit_bias` learns its own bias, which is better.
    """

    def __init__(
        self, criterion: SREM | None = None, *, warmup: Warmup | int | None = None, logit_bias: float = -10.0
    ) -> None:
        super().__init__(criterion, warmup=warmup)
        self.logit_bias = logit_bias

    def forward(
        self,
        image_features: Tensor,
        text_features: Tensor,
        logit_scale: Tensor | float,
        logit_bias: Tensor | float | None = None,
        output_dict: bool = False,
    ) -> Tensor | dict[str, Tensor]:
        """The loss, or {"srem_loss": loss}. Features are (b, d), of unit length; the scale is not its logarithm."""
        bias = self.logit_bias if logit_bias is None else logit_bias
        scale, bias = (torch.as_tensor(x).squeeze() for x in (logit_scale, bias))  # open_clip's may have one element
        total = self.total(image_features, text_features, scale, bias)
        return {"srem_loss": total} if output_dict else total

"""InfoNCE: contrastive training that treats every given pair as correct."""

from __future__ import annotations

from collections.abc import Hashable
from typing import ClassVar

from sremkit.data.batch import Batch
from sremkit.methods.base import METHODS, Forward, Method
from sremkit.objectives import Loss
from sremkit.objectives.contrastive import infonce


@METHODS.register("infonce")
class InfoNCE(Method):
    """Plain training: symmetric cross-entropy over the batch; no defence against wrong pairs."""

    has_warmup: ClassVar[bool] = False

    def graph_key(self) -> Hashable:
        return ()

    def loss(self, forward: Forward, batch: Batch, *, warmup: bool) -> Loss:
        logits = forward(batch)
        i2t, t2i = infonce(logits), infonce(logits.T)
        return Loss(total=(i2t + t2i) / 2, parts={"i2t": i2t.detach(), "t2i": t2i.detach()})

"""Plain contrastive training: every given pair is believed."""

from __future__ import annotations

from sremkit.data.batch import Batch
from sremkit.methods import METHODS, Method, Scorer
from sremkit.objectives import Loss
from sremkit.objectives.infonce import infonce


@METHODS.register("infonce")
class InfoNCE(Method):
    """Plain training: symmetric cross-entropy over the batch; no defence against wrong pairs."""

    def loss(self, matcher: Scorer, batch: Batch, *, warmup: bool) -> Loss:
        logits = matcher(batch)
        i2t, t2i = infonce(logits), infonce(logits.T)
        return Loss(total=(i2t + t2i) / 2, parts={"i2t": i2t.detach(), "t2i": t2i.detach()})

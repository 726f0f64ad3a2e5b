"""When the warm-up of SREM is over, and whether training after it has to return to it.

The ranking loss of SREM raises the score of a pair with its weight w and lowers that of its hardest negative with
weight 1. Weights are small while the rows of the logits are flat. Then all scores fall together, the rows become
flatter still, and training collapses within a few updates. So the warm-up continues until

    mean weight of the selected pairs >= 2/3

Measured with SAF on Flickr8k (docs/lab.md): up to 0.53 training mostly collapses, from 0.57 on it recovers, from 0.65
on recall hardly falls. A collapse shows first in the selection, because equal scores rank no pair first:

    share of selected pairs < 1/2 of the share at the end of the warm-up
"""

from __future__ import annotations

import math
import warnings

import torch
from torch import Tensor

from sremkit.errors import UserNotice
from sremkit.objectives.terms import Terms

MIN_WEIGHT = 2 / 3
MIN_SHARE = 0.5
EARLY_WEIGHT = 0.5  # a single batch is a noisy estimate, so `SREM` warns below this mean weight


class WarmupMonitor:
    """Ends the warm-up of `SREM` when the model is ready, and returns to it if the selection is lost.

    .. code-block:: python

        monitor = WarmupMonitor()
        for images, texts in loader:
            out = criterion(model(images, texts), warmup=monitor.warmup)
            monitor.update(out)

    Sums stay on the device of the logits; they are read every `interval` batches. A return to the warm-up is reported
    by a warning. A model whose scores have collapsed recovers faster from the weights of the end of the warm-up.

    Args:
        min_weight: mean weight of the selected pairs at which the warm-up ends.
        min_share: training returns to the warm-up if the share of selected pairs falls below this fraction of the
            share at the end of the warm-up.
        interval: number of batches between two checks; None if `check` is called by the training loop.
    """

    def __init__(
        self, *, min_weight: float = MIN_WEIGHT, min_share: float = MIN_SHARE, interval: int | None = 50
    ) -> None:
        if not 0 <= min_weight <= 1 or not 0 <= min_share <= 1:
            raise ValueError(f"min_weight and min_share must lie in [0, 1], got {min_weight} and {min_share}")
        if interval is not None and interval < 1:
            raise ValueError(f"interval must be at least 1, got {interval}")
        self.min_weight = min_weight
        self.min_share = min_share
        self.interval = interval
        self.warmup = True  # whether the next batch belongs to the warm-up
        self.mean_weight = math.nan  # of the selected pairs, at the last check; NaN where no pair was selected
        self.share = math.nan  # of the pairs that were selected, at the last check
        self.share_at_end = math.nan  # of the warm-up
        self._sums = torch.zeros(3, dtype=torch.float64)  # weights of selected pairs, selected pairs, pairs
        self._batches = 0  # since the last check
        self._read = torch.zeros(3, dtype=torch.float64)  # sums that were read since the last `read_all`

    @torch.no_grad()
    def update(self, terms: Terms) -> None:
        """Add one batch, each selected pair with the weight that its ranking loss uses or would use."""
        if self._sums.device != terms.weight_i2t.device:
            self._sums = self._sums.to(terms.weight_i2t.device)
        # In place and without synchronisation, so that CUDA graphs can replay it. Weights are swapped.
        for weight, clean in ((terms.weight_i2t, terms.clean_t2i), (terms.weight_t2i, terms.clean_i2t)):
            self._sums[0].add_(weight.masked_fill(~clean, 0.0).sum())
            self._sums[1].add_(clean.sum())
            self._sums[2].add_(len(clean))
        if self.interval is not None:
            self._batches += 1
            if self._batches >= self.interval:
                self.check()

    def check(self) -> None:
        """Read the sums since the last check, and decide whether the next batch belongs to the warm-up."""
        if not self.read():
            return
        if self.warmup and self.is_ready():
            self.warmup, self.share_at_end = False, self.share
        elif not self.warmup and self.has_lost_selection():
            warnings.warn(
                f"training returns to the warm-up: {self.share:.1%} of the pairs are selected, after "
                f"{self.share_at_end:.1%} at its end. Restore the weights of that moment if you have them",
                UserNotice,
                stacklevel=3,
            )
            self.warmup = True

    def read(self) -> bool:
        """Read the sums since the last reading without a decision; False if there was no batch."""
        sums = self._sums.to("cpu", copy=True)
        self._sums.zero_()
        self._read += sums
        self._batches = 0
        return self._evaluate(sums)

    def read_all(self) -> bool:
        """Read the sums since the last call of this method, those of readings in between included."""
        self.read()
        sums, self._read = self._read, torch.zeros_like(self._read)
        return self._evaluate(sums)

    def _evaluate(self, sums: Tensor) -> bool:
        weights, selected, pairs = sums.tolist()
        if pairs == 0:
            return False
        self.mean_weight = weights / selected if selected else math.nan
        self.share = selected / pairs
        return True

    def is_ready(self) -> bool:
        """Whether the warm-up may end, as of the last check."""
        return self.mean_weight >= self.min_weight

    def has_lost_selection(self) -> bool:
        """Whether training has to return to the warm-up, as of the last check."""
        return self.share < self.min_share * self.share_at_end

    def message(self) -> str:
        """The state at the last check in words."""
        if math.isnan(self.share):
            return "no batch was monitored"
        if math.isnan(self.mean_weight):
            return "no pair was selected"
        return f"{self.share:.0%} of the pairs are selected, their mean weight is {self.mean_weight:.2f}"

    def state_dict(self) -> dict[str, Tensor]:
        values = (float(self.warmup), self.mean_weight, self.share, self.share_at_end, float(self._batches))
        return {"sums": self._sums, "read": self._read, "values": torch.tensor(values, dtype=torch.float64)}

    def load_state_dict(self, state: dict[str, Tensor]) -> None:
        self._sums = state["sums"].to(self._sums.device, copy=True)  # a captured step cannot move it to the device
        self._read = state.get("read", torch.zeros(3, dtype=torch.float64)).cpu().clone()  # newer than the others
        warmup, self.mean_weight, self.share, self.share_at_end, batches = state["values"].tolist()
        self.warmup, self._batches = bool(warmup), int(batches)


def early_end_message(terms: Terms) -> str:
    """Why the first batch after a warm-up shows that it ended too early; empty if it does not."""
    weight = torch.cat([terms.weight_i2t[terms.clean_t2i], terms.weight_t2i[terms.clean_i2t]])
    if len(weight) and weight.mean() >= EARLY_WEIGHT:
        return ""
    found = f"the mean weight of the selected pairs is {weight.mean():.3f}" if len(weight) else "no pair is selected"
    return (
        f"the warm-up of SREM ended too early: {found}, and below {MIN_WEIGHT:.2f} training may collapse. Warm up "
        "until `sremkit.WarmupMonitor` ends it; if the weights hardly grow, raise the scale of the logits"
    )


def unscaled_message(logits: Tensor) -> str:
    """Why these logits look like plain cosines; empty if they do not."""
    largest = float(logits.detach().abs().max())
    if largest > 1 + 1e-4:
        return ""
    return (
        f"the logits given to SREM lie within [-1, 1] (largest magnitude {largest:.3f}). If they are cosines, their "
        "softmax is nearly uniform and SREM learns little: pass `scale * cosine + bias` with learned scale and bias, "
        "for example 20 and -10 at the start (`SREM.from_embeddings` takes both)"
    )

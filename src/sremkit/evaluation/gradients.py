"""The paper's noisy-gradient ratio: how much of what pulls pairs together pulls at wrong ones.

    ratio = sum of w over wrong pairs / sum of w over all pairs,  w the weight that L_w gives to a pair's own score

Only pairs that are selected as clean and inside the hinge have such a gradient. Both directions are added up.
"""

from __future__ import annotations

from torch import Tensor

from sremkit.objectives import Terms


def noisy_gradient_ratio(terms: Terms, is_noisy: Tensor) -> float:
    """The ratio of one batch, from what the objective reports and the truth (b,); 0 without any gradient."""
    gradients = NoisyGradients()
    gradients.update(terms, is_noisy)
    return gradients.ratio()


class NoisyGradients:
    """Adds up positive gradients, and those that fell on wrong pairs, over many batches."""

    def __init__(self) -> None:
        self.noisy: Tensor | float = 0.0
        self.total: Tensor | float = 0.0

    def update(self, terms: Terms, is_noisy: Tensor) -> None:
        # Swapped: the image direction's gradient is weighted by the text direction's weight, and the reverse.
        pull = (terms.active_i2t * terms.weight_t2i + terms.active_t2i * terms.weight_i2t).double()  # (b,)
        self.noisy = self.noisy + (pull * is_noisy).sum()  # stays on the device: no wait in a training loop
        self.total = self.total + pull.sum()

    def ratio(self) -> float:
        total = float(self.total)
        return float(self.noisy) / total if total > 0 else 0.0

    def state(self) -> dict[str, float]:
        """What a stopped epoch needs to go on."""
        return {"noisy_gradient": float(self.noisy), "all_gradient": float(self.total)}

    def load_state(self, state: dict[str, float]) -> None:
        self.noisy, self.total = state["noisy_gradient"], state["all_gradient"]

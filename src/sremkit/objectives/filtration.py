"""Energy-guided filtration: the energy of a query, the filter, and the loss that separates clean from noisy queries.

    E_i = -log sum_j exp(F_ij)                                                               [eq:energy]
    clean_i  <=>  E_i < threshold  and  argmax_j F_ij = i                                    [eq:filter]
    L_u = mean over clean [E_i - m_clean]_+^2 + mean over noisy [m_noisy - E_i]_+^2          [eq:energy-bound]

    level = mean over both directions of logsumexp_{j != i} F_ij                              [eq:level]

Low energy means that the batch holds a confident match for the query. The scale depends on the batch: with all B logits
at 0 the energy is -log B. Each direction has its own clean set; pass `logits.T` for texts as queries.
"""

from __future__ import annotations

from torch import Tensor

from sremkit.objectives.logits import as_logits, diagonal_mask, mask_invalid, mask_value, mean_over


def energy(logits: Tensor, *, valid: Tensor | None = None) -> Tensor:
    """Energy (b,) of each row."""
    logits = mask_invalid(as_logits(logits, square=False), valid)
    # logsumexp, not log(sum(exp)): the exponential of a logit of 100 is inf in float32.
    return -logits.logsumexp(dim=1)  # [eq:energy]


def select_clean(logits: Tensor, threshold: float, *, valid: Tensor | None = None) -> Tensor:
    """Clean pairs (b,) bool: low energy, and the pair is the best match of its row.

    A tie between the pair and a negative counts against the pair. With all logits equal no pair is clean.
    """
    logits = as_logits(logits.detach())
    negatives = mask_invalid(logits, valid).masked_fill(diagonal_mask(logits), mask_value(logits.dtype))
    is_best = logits.diagonal() > negatives.amax(dim=1)
    return is_best & (energy(logits, valid=valid) < threshold)  # [eq:filter]


def logit_level(logits: Tensor, *, valid: Tensor | None = None) -> Tensor:
    """The level of the logits: at `logits - level`, the energy of a query without its match is 0 on average.

    A softmax does not depend on it, so a contrastive loss leaves it free; energies and sigmoid scores do.
    """
    logits = as_logits(logits.detach())
    negatives = mask_invalid(logits, valid).masked_fill(diagonal_mask(logits), mask_value(logits.dtype))
    return (negatives.logsumexp(dim=1).mean() + negatives.logsumexp(dim=0).mean()) / 2  # [eq:level]


def energy_bound(energy: Tensor, clean: Tensor, *, clean_margin: float = -4.0, noisy_margin: float = 0.0) -> Tensor:
    """Penalty on `clean` queries above `clean_margin` and on the others below `noisy_margin`; 0 for an empty set."""
    too_high = mean_over((energy - clean_margin).relu().square(), clean)
    too_low = mean_over((noisy_margin - energy).relu().square(), ~clean)
    return too_high + too_low  # [eq:energy-bound]

"""Energy uncertainty of a query, and the loss that keeps clean and noisy queries apart by it.

    E_i = -log sum_j exp(F_ij)                                                               [eq:energy]
    L_u = mean over clean [E_i - m_clean]_+^2 + mean over noisy [m_noisy - E_i]_+^2          [eq:energy-bound]

Low energy means that the batch holds a confident match for the query. The scale depends on the batch: with
all b logits at 0 the energy is -log b.
"""

from __future__ import annotations

from torch import Tensor

from sremkit.objectives.candidates import as_logits, keep_valid


def energy(logits: Tensor, *, valid: Tensor | None = None) -> Tensor:
    """Energy (b,) of each row; pass `logits.T` for the text-to-image direction."""
    logits = keep_valid(as_logits(logits, square=False), valid)
    # logsumexp, not log(sum(exp)): a logit of 100 is already inf in float32.
    return -logits.logsumexp(dim=1)  # [eq:energy]


def energy_bound(
    energy: Tensor, clean: Tensor, *, clean_margin: float = -4.0, noisy_margin: float = 0.0
) -> Tensor:
    """Penalty on clean queries above `clean_margin` and on noisy ones below `noisy_margin`.

    Args:
        clean: (b,) bool, the queries that the filter kept. It selects and carries no gradient.

    An empty set contributes 0.
    """
    too_high = mean_over((energy - clean_margin).relu().square(), clean)
    too_low = mean_over((noisy_margin - energy).relu().square(), ~clean)
    return too_high + too_low  # [eq:energy-bound]


def mean_over(values: Tensor, members: Tensor) -> Tensor:
    """Mean of `values` where `members` is True; 0 when there are none, and without a data-dependent shape."""
    return values.where(members, 0.0).sum() / members.sum().clamp_min(1)

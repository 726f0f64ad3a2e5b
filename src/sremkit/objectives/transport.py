"""Re-matching by partial optimal transport, as in L2RM: which images and texts of mismatched pairs belong together?

    pi = argmin <pi, C> - epsilon H(pi),   pi 1 <= 1/n,   pi' 1 <= 1/m,   sum pi = mass                [eq:transport]
    l = 1/2 mean_i [KL(t_i, P_i) + KL(P_i, t_i)] over rows, and the same over columns                  [eq:rematching]

Only the share `mass` of the images and texts is matched, so that those without a partner need none. The plan is found
by overrelaxed Sinkhorn iterations with one more row and column, which take what stays unmatched. P is the softmax of
the logits, t the plan with rows (columns) that sum to 1.
References: Han et al., Learning to Rematch Mismatched Pairs for Robust Cross-Modal Retrieval, CVPR 2024; Thibault et
al., Overrelaxed Sinkhorn-Knopp Algorithm for Regularized Optimal Transport, Algorithms 2021.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from sremkit.objectives.logits import check_logits, mask_invalid

MIN_SHARE = 1e-10  # of a target, so that its logarithm is finite
RELAXATION = 1.5  # of the steps; with 1, Sinkhorn's own, 2.5 times as many are needed
CHECK_EVERY = 10  # steps; each check waits for the device


@torch.no_grad()
def partial_transport(
    cost: Tensor,
    *,
    mass: float,
    epsilon: float,
    valid: Tensor | None = None,
    max_iterations: int = 1000,
    tolerance: float = 1e-4,
) -> Tensor:
    """The plan (n, m) in float64; 0 where a match is not valid. Columns keep their bounds, and the sum is near `mass`.

    Args:
        cost: (n, m), of matching an image with a text.
        mass: share that is matched, above 0 and below 1.
        epsilon: weight of the entropy; the smaller, the sharper the plan and the more iterations.
        valid: (n, m) bool, False where a match is excluded.
        tolerance: the iterations end when no potential of an image changes by more in a step.
    """
    check_logits(cost, square=False)
    if not 0 < mass < 1:
        raise ValueError(f"mass must lie between 0 and 1, got {mass}")
    if epsilon <= 0:
        raise ValueError(f"epsilon must be positive, got {epsilon}")
    n, m = cost.shape
    kernel = cost.new_zeros(n + 1, m + 1, dtype=torch.float64)
    kernel[:n, :m] = -cost.double() / epsilon
    if valid is not None:
        kernel[:n, :m] = kernel[:n, :m].masked_fill(~valid, -torch.inf)
    kernel[n, m] = -torch.inf  # what is unmatched is that of an image or a text
    rows = torch.cat([cost.new_full((n,), 1 / n), cost.new_tensor([1 - mass])]).double().log()
    columns = torch.cat([cost.new_full((m,), 1 / m), cost.new_tensor([1 - mass])]).double().log()
    u, v = torch.zeros_like(rows), torch.zeros_like(columns)
    for step in range(1, max_iterations + 1):
        before = u
        u = torch.lerp(u, rows - torch.logsumexp(kernel + v, dim=1), RELAXATION)
        v = torch.lerp(v, columns - torch.logsumexp(kernel + u[:, None], dim=0), RELAXATION)
        if step % CHECK_EVERY == 0 and epsilon * float((u - before).abs().max()) < tolerance:
            break
    v = columns - torch.logsumexp(kernel + u[:, None], dim=0)  # not overrelaxed, so that the columns are exact
    return (kernel + u[:, None] + v).exp()[:n, :m]  # [eq:transport]


def rematching_loss(logits: Tensor, plan: Tensor, *, valid: Tensor | None = None) -> Tensor:
    """Symmetric divergence of the softmax of rows and columns from the plan: a scalar.

    Args:
        logits: (n, m).
        plan: (n, m), not negative and without gradient.
        valid: (n, m) bool, False where a match is excluded; such candidates count neither here nor there.
    """
    loss = logits.new_zeros(())
    for dim in (1, 0):
        log_probs = F.log_softmax(mask_invalid(logits, valid), dim=dim)
        share = plan.to(logits).clamp_min(MIN_SHARE)
        share = share if valid is None else share.where(valid, 0.0)
        share = share / share.sum(dim=dim, keepdim=True).clamp_min(MIN_SHARE)
        difference = log_probs - share.clamp_min(MIN_SHARE).log()
        difference = difference if valid is None else difference.where(valid, 0.0)
        divergences = ((log_probs.exp() - share) * difference).sum(dim=dim)  # KL(P, t) + KL(t, P)
        loss = loss + divergences.mean() / 2  # [eq:rematching]
    return loss

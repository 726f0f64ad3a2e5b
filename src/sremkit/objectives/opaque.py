"""The fast objective as a single operation that torch.compile does not look into, for CPUs.

On a CPU the compiler writes whole matrices between its passes where the block-wise computation stays in
cache, so looking into it would make it slower. On a GPU the compiler's fusion wins, and this is not used.
"""

from __future__ import annotations

import torch
from torch import Tensor

from sremkit.objectives.fused import Outcome, Plan, evaluate


def evaluate_opaque(logits: Tensor, valid: Tensor | None, plan: Plan, *, with_gradient: bool) -> Outcome:
    """As `evaluate`, in one node of a compiled graph."""
    return Outcome(*_evaluate_op(logits, valid, [float(entry) for entry in plan], with_gradient))


@torch.library.custom_op("sremkit::evaluate", mutates_args=())
def _evaluate_op(
    logits: Tensor, valid: Tensor | None, plan: list[float], with_gradient: bool
) -> list[Tensor]:
    restored = Plan._make([*plan[:-4], *(bool(entry) for entry in plan[-4:])])  # the last four are switches
    return list(evaluate(logits, valid, restored, with_gradient=with_gradient))


@_evaluate_op.register_fake
def _(logits: Tensor, valid: Tensor | None, plan: list[float], with_gradient: bool) -> list[Tensor]:
    scalars = [logits.new_empty(()) for _ in range(6)]
    per_pair = [
        logits.new_empty(len(logits), dtype=torch.bool if name.startswith(("clean", "active")) else None)
        for name in Outcome._fields[6:14]
    ]
    return [*scalars, *per_pair, logits.new_empty(logits.shape if with_gradient else (0, 0))]

"""The fast objective as something autograd can go back through."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from sremkit.objectives.fused import Outcome, Plan, evaluate
from sremkit.objectives.opaque import evaluate_opaque


def weighted_sum(logits: Tensor, valid: Tensor | None, plan: Plan) -> tuple[Outcome, Tensor]:
    """Every term of the plan, detached, and their weighted sum with its gradient."""
    with_gradient = torch.is_grad_enabled() and logits.requires_grad
    compiling = torch.compiler.is_compiling()
    run = evaluate_opaque if compiling and logits.device.type == "cpu" else evaluate
    found = run(logits.detach(), valid, plan, with_gradient=with_gradient)
    total = (
        plan.ranking_weight * (found.ranking_i2t + found.ranking_t2i)
        + plan.energy_weight * (found.energy_bound_i2t + found.energy_bound_t2i)
        + plan.complementary_weight * (found.complementary_i2t + found.complementary_t2i)
    )
    if not with_gradient:
        return found, total
    if compiling:
        return found, _KeepsGradient.apply(logits, total, found.gradient)
    return found, _GivesGradientAway.apply(logits, total, found.gradient, valid, plan)


class _KeepsGradient(torch.autograd.Function):
    """A value whose gradient by the logits is known."""

    @staticmethod
    def forward(ctx: Any, logits: Tensor, value: Tensor, gradient: Tensor) -> Tensor:
        ctx.save_for_backward(gradient)
        return value.clone()

    @staticmethod
    def backward(ctx: Any, upstream: Tensor) -> tuple[Tensor, None, None]:
        (gradient,) = ctx.saved_tensors
        return upstream * gradient, None, None


class _GivesGradientAway(torch.autograd.Function):
    """The same without a second matrix, which would cost more than several passes over the first.

    The first backward pass scales the gradient in place and gives it away. A further one, over a retained
    graph, computes it anew.
    """

    @staticmethod
    def forward(
        ctx: Any, logits: Tensor, value: Tensor, gradient: Tensor, valid: Tensor | None, plan: Plan
    ) -> Tensor:
        ctx.save_for_backward(logits, valid)
        ctx.gradient, ctx.plan = gradient, plan
        return value.clone()

    @staticmethod
    def backward(ctx: Any, upstream: Tensor) -> tuple[Tensor, None, None, None, None]:
        # Under create_graph=True the matrix would silently count as a constant.
        if torch.is_grad_enabled():
            raise RuntimeError(
                "SREM has no second derivative; put the terms together from the functions of sremkit.objectives, "
                "which have one"
            )
        logits, valid = ctx.saved_tensors
        gradient, ctx.gradient = ctx.gradient, None
        if gradient is None:
            gradient = evaluate(logits, valid, ctx.plan, with_gradient=True).gradient
        if upstream.device.type == "cpu" and upstream == 1:  # as in total.backward(): save the pass
            return gradient, None, None, None, None
        return gradient.mul_(upstream), None, None, None, None

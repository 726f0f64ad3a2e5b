"""The fused objective as a differentiable function: autograd functions, and a custom operator for torch.compile."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from sremkit.objectives.fast.fused import DirectionResult, FusedResult, SREMConfig, evaluate
from sremkit.objectives.terms import Terms


def fused_srem(logits: Tensor, valid: Tensor | None, config: SREMConfig) -> Terms:
    """All terms and statistics of a batch; the total has a gradient with respect to the logits."""
    with_gradient = torch.is_grad_enabled() and logits.requires_grad
    compiling = torch.compiler.is_compiling()
    run = evaluate_custom_op if compiling and logits.device.type == "cpu" else evaluate
    result = run(logits.detach(), valid, config, with_gradient=with_gradient)
    total = result.total(config)
    if with_gradient and compiling:
        total = _SavedGradient.apply(logits, total, result.gradient)
    elif with_gradient:
        total = _ReleasedGradient.apply(logits, total, result.gradient, valid, config)
    return result.terms(total, config)


class _SavedGradient(torch.autograd.Function):
    """A value with a known gradient with respect to the logits."""

    @staticmethod
    def forward(ctx: Any, logits: Tensor, value: Tensor, gradient: Tensor) -> Tensor:
        ctx.save_for_backward(gradient)
        return value.clone()

    @staticmethod
    def backward(ctx: Any, upstream: Tensor) -> tuple[Tensor, None, None]:
        (gradient,) = ctx.saved_tensors
        return upstream * gradient, None, None


class _ReleasedGradient(torch.autograd.Function):
    """The same without a second matrix, whose allocation would cost more than several passes over the first.

    The first backward pass scales the gradient in place and returns it. A further one, over a retained graph, computes
    the gradient again.
    """

    @staticmethod
    def forward(
        ctx: Any, logits: Tensor, value: Tensor, gradient: Tensor, valid: Tensor | None, config: SREMConfig
    ) -> Tensor:
        ctx.save_for_backward(logits, valid)
        ctx.gradient, ctx.config = gradient, config
        return value.clone()

    @staticmethod
    def backward(ctx: Any, upstream: Tensor) -> tuple[Tensor, None, None, None, None]:
        # Under create_graph=True the gradient would silently count as a constant.
        if torch.is_grad_enabled():
            raise RuntimeError("SREM has no second derivative; use sremkit.objectives.srem_reference, which has one")
        logits, valid = ctx.saved_tensors
        gradient, ctx.gradient = ctx.gradient, None
        if gradient is None:
            gradient = evaluate(logits, valid, ctx.config, with_gradient=True).gradient
        if upstream.device.type == "cpu" and upstream == 1:  # total.backward(): no scaling needed
            return gradient, None, None, None, None
        return gradient.mul_(upstream), None, None, None, None


def evaluate_custom_op(logits: Tensor, valid: Tensor | None, config: SREMConfig, *, with_gradient: bool) -> FusedResult:
    """`evaluate` as one node of a compiled graph, which the compiler does not trace; for CPUs.

    On a CPU the compiler writes whole matrices between its passes, where the block-wise computation stays in cache.
    On a GPU the compiler's fusion is faster, and `evaluate` is traced.
    """
    i2t, t2i = len(DirectionResult._fields), 2 * len(DirectionResult._fields)
    flat = _evaluate_op(logits, valid, [float(entry) for entry in config], with_gradient)
    return FusedResult(DirectionResult(*flat[:i2t]), DirectionResult(*flat[i2t:t2i]), flat[-1])


# PyTorch 2.6 does not read the schema from list[...].
SCHEMA = "(Tensor logits, Tensor? valid, float[] config, bool with_gradient) -> Tensor[]"


@torch.library.custom_op("sremkit::evaluate", mutates_args=(), schema=SCHEMA)
def _evaluate_op(logits: Tensor, valid: Tensor | None, config: list[float], with_gradient: bool) -> list[Tensor]:
    restored = SREMConfig._make([*config[:-4], *(bool(entry) for entry in config[-4:])])  # four switches
    i2t, t2i, gradient = evaluate(logits, valid, restored, with_gradient=with_gradient)
    return [*i2t, *t2i, gradient]


@_evaluate_op.register_fake
def _(logits: Tensor, valid: Tensor | None, config: list[float], with_gradient: bool) -> list[Tensor]:
    outputs = []
    for _ in ("i2t", "t2i"):
        outputs += [logits.new_empty(()) for _ in range(3)]
        dtypes = (logits.dtype, torch.bool, logits.dtype, torch.bool)  # energy, clean, weight, active
        outputs += [logits.new_empty(len(logits), dtype=dtype) for dtype in dtypes]
    return [*outputs, logits.new_empty(logits.shape if with_gradient else (0, 0))]

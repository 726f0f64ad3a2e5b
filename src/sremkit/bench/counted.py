"""The operations of a training step as PyTorch counts them, for backbones that nobody has counted by hand.

Counted are the matrix products and convolutions of one plain step, with padding and with what it computes twice to save
memory, so a little more than has to be. Bytes are the features, read forward and backward, and the parameters, which is
less than any step moves.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch.utils.flop_counter import FlopCounterMode

from sremkit import kernels
from sremkit.bench.backbones import gradients_of
from sremkit.bench.operations import Work, parameter_bytes
from sremkit.data.batch import Batch
from sremkit.models import Matcher


def counted_work(matcher: Matcher, batch: Batch) -> Work:
    """One plain step of this matcher on this batch; its gradients are left behind as they were: none."""
    counter = FlopCounterMode(display=False, custom_mapping=_UNCOUNTED)
    with kernels.use("plain"), counter:
        logits, losses = matcher.logits_and_losses(batch)
        gradients_of(logits, sum(losses.values()))
    matcher.zero_grad(set_to_none=True)
    inputs = [x for x in (batch.images, batch.sentences) if x is not None]
    moved = sum(2 * x.numel() * x.element_size() for x in inputs)
    return Work(float(counter.get_total_flops()), moved + parameter_bytes(matcher))


def recurrence_operations(
    x_shape: tuple[int, ...], weight_shapes: list[tuple[int, ...]], *_: Any, **__: Any
) -> int:
    """Of a recurrent network in one piece, as CUDA has it: each matrix meets each item of the sequences once."""
    items = math.prod(x_shape[:-1])
    return sum(2 * items * math.prod(shape) for shape in weight_shapes if len(shape) == 2)


def _recurrence_gradients(*args: Any, **kwargs: Any) -> int:
    return 2 * recurrence_operations(*args, **kwargs)


def _product_in_place(_: Any, left: tuple[int, int], right: tuple[int, int], **__: Any) -> int:
    return 2 * left[0] * left[1] * right[1]


#: What PyTorch's counter leaves out.
_UNCOUNTED = {
    torch.ops.aten.addmm_: _product_in_place,
    torch.ops.aten._cudnn_rnn: recurrence_operations,
    torch.ops.aten._cudnn_rnn_backward: _recurrence_gradients,
}

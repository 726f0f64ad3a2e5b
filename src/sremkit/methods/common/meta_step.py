"""One step of meta-learning: the gradient of a meta-network through a virtual step of the backbone.

    W^(T) = W - virtual_rate dL(W; T)/dW         the step that the backbone W would make, with meta-network T
    gradient = d/dT J(W^(T); T)                   J, the loss on pairs whose correctness is known

The gradient goes through the virtual step, so it is of second order in L.
Reference: Han et al., Noisy Correspondence Learning with Meta Similarity Correction (MSCN), CVPR 2023.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager

import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn.attention import SDPBackend, sdpa_kernel

from sremkit.methods.base import Forward
from sremkit.models.wrappers.meta_scored import MetaScored

#: Attributes of modules that recompute activations: ours, and those of transformers.
RECOMPUTES = ("recompute", "gradient_checkpointing")
ForwardLoss = Callable[[Forward], Tensor]  # a loss that runs the forward passes it needs


def meta_gradients(
    network: MetaScored, ranking: ForwardLoss, meta_loss: ForwardLoss, *, virtual_rate: float
) -> dict[str, Tensor]:
    """The gradient of each parameter of the meta-network, by its name in it; nothing else is touched.

    Args:
        ranking: L, the loss of the backbone.
        meta_loss: J, the loss of the meta-network.
        virtual_rate: learning rate of the virtual step.
    """
    meta = {name: p.detach().clone().requires_grad_() for name, p in network.meta_network.named_parameters()}
    weights = {f"backbone.{name}": p for name, p in network.backbone.named_parameters() if p.requires_grad}

    def forward_with(weights: Mapping[str, Tensor]) -> Forward:
        # Running estimates are copies: the virtual step must not change the real ones.
        buffers = {name: buffer.clone() for name, buffer in network.named_buffers()}
        parameters = {**weights, **{f"meta_network.{name}": p for name, p in meta.items()}, **buffers}
        return lambda batch: functional_call(network, parameters, (batch,))

    # The recurrent networks of cuDNN and the fused attention have no second derivative; PyTorch's own have.
    with (
        torch.enable_grad(),
        torch.backends.cudnn.flags(enabled=False),
        sdpa_kernel(SDPBackend.MATH),
        without_recomputation(network),
    ):
        # The backbone's own last layer is unused, so some parameters have no gradient.
        slopes = torch.autograd.grad(
            ranking(forward_with(weights)), list(weights.values()), create_graph=True, materialize_grads=True
        )
        virtual = {
            name: weight - virtual_rate * slope for (name, weight), slope in zip(weights.items(), slopes, strict=True)
        }
        gradients = torch.autograd.grad(meta_loss(forward_with(virtual)), list(meta.values()))
    return dict(zip(meta, gradients, strict=True))


@contextmanager
def without_recomputation(network: nn.Module) -> Iterator[None]:
    """Inside, no module recomputes activations in the backward pass.

    The recomputation would use the module's own weights, not those of the functional call: the gradients would be
    silently wrong.
    """
    recomputing = [(part, name) for part in network.modules() for name in RECOMPUTES if getattr(part, name, False)]
    for part, name in recomputing:
        setattr(part, name, False)
    try:
        yield
    finally:
        for part, name in recomputing:
            setattr(part, name, True)

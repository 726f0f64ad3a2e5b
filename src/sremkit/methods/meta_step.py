"""One step of meta-learning: how a meta-network should change so that what it teaches judges trusted pairs better.

    W^(T) = W - virtual_rate dL(W; T)/dW         the step that the backbone W would make, with meta-network T
    gradient = d/dT J(W^(T); T)                   J judges pairs of which it is known whether they are right

The gradient goes through the virtual step, so it is of second order in L.
Reference: Han et al., Noisy Correspondence Learning with Meta Similarity Correction (MSCN), CVPR 2023.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager

import torch
from torch import Tensor, nn
from torch.func import functional_call

from sremkit.methods import Scorer
from sremkit.models.meta_scored import MetaScored

ScoreLoss = Callable[[Scorer], Tensor]  # a loss that calls a scorer for whatever logits it wants


def meta_gradients(
    network: MetaScored, ranking: ScoreLoss, judging: ScoreLoss, *, virtual_rate: float
) -> dict[str, Tensor]:
    """The gradient of each parameter of the meta-network, by its name in it; nothing else is touched.

    Args:
        ranking: L, what the backbone learns from.
        judging: J, what the meta-network learns from.
        virtual_rate: the length of the virtual step.
    """
    meta = {name: p.detach().clone().requires_grad_() for name, p in network.meta_network.named_parameters()}
    weights = {f"backbone.{name}": p for name, p in network.backbone.named_parameters()}

    def scorer(weights: Mapping[str, Tensor]) -> Scorer:
        # Running estimates are copies: a step that is only imagined must not move the real ones.
        buffers = {name: buffer.clone() for name, buffer in network.named_buffers()}
        parameters = {**weights, **{f"meta_network.{name}": p for name, p in meta.items()}, **buffers}
        return lambda batch: functional_call(network, parameters, (batch,))

    # The recurrent networks of cuDNN have no second derivative; PyTorch's own have.
    with torch.enable_grad(), torch.backends.cudnn.flags(enabled=False), keeping_all(network):
        # A backbone's own last layer takes no part, so some parameters may have no gradient.
        slopes = torch.autograd.grad(
            ranking(scorer(weights)), list(weights.values()), create_graph=True, materialize_grads=True
        )
        virtual = {
            name: weight - virtual_rate * slope
            for (name, weight), slope in zip(weights.items(), slopes, strict=True)
        }
        gradients = torch.autograd.grad(judging(scorer(virtual)), list(meta.values()))
    return dict(zip(meta, gradients, strict=True))


@contextmanager
def keeping_all(network: nn.Module) -> Iterator[None]:
    """Inside, no part saves memory by computing again what a backward pass needs.

    It would do so after the call that was made with other weights, and with its own: the gradients would be
    wrong, without a word.
    """
    thrifty = [part for part in network.modules() if getattr(part, "recompute", False)]
    for part in thrifty:
        part.recompute = False  # type: ignore[assignment]
    try:
        yield
    finally:
        for part in thrifty:
            part.recompute = True  # type: ignore[assignment]

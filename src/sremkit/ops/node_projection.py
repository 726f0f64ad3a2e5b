"""Similarity nodes: the similarity vector of every word with every image, and of every text with every image.

    s_l = ℓ2( P (c_l - w_l)² + b ),   c_l = sum_k a_kl v_k   for the words l,
    s_0 = ℓ2( P_g (v_g - w_g)² + b_g )                       for the global vectors of image and text

The square is taken elementwise; a is scaled so that c_l has unit norm (`unit_attention`). The nodes of a pair
are [s_0, s_1, ..., s_w], the global one first.

c is as wide as the embeddings, one for each word and image, and would take gigabytes. So the Triton kernel
never writes it, the CPU backend computes it in tiles, and elsewhere it is recomputed in the backward pass.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from sremkit.ops.cross_attention import Queries
from sremkit.ops.functional import l2_normalize
from sremkit.ops.packing import Packing


class Nodes(NamedTuple):
    """The nodes of n images with some texts, padded or packed."""

    values: Tensor  # (n, k, 1 + w, s), or packed (n, m + W + ..., s): the m global nodes, then the W words
    mask: Tensor  # (k, 1 + w) bool
    packing: Packing | None  # of packed nodes


def node_projection(
    pooled: tuple[Tensor, Tensor],
    attention: Tensor,
    regions: Tensor,
    words: Queries,
    global_layer: nn.Linear,
    local_layer: nn.Linear,
) -> Nodes:
    """The nodes of all images with some texts, packed if the words are, and then in the dtype of the words.

    Args:
        pooled: global vectors of the images (n, d) and of the texts (k, d)
        attention: (n, r, Q) of `unit_attention`
        regions: (n, r, d)
        words: rows (Q, d)
        global_layer: P_g and b_g
        local_layer: P and b
    """
    image, text = pooled
    if words.packing is not None:
        from sremkit.ops.triton.node_projection import Projected, packed_nodes

        # A text's global vector is a word that attends to one region, the image's global vector.
        ones = image.new_ones(len(image), 1, len(text))
        values = packed_nodes(
            Projected(ones, image.unsqueeze(1), text, global_layer.weight, global_layer.bias),
            Projected(attention, regions, words.rows, local_layer.weight, local_layer.bias),
            dtype=words.rows.dtype,
        )
        return Nodes(values, words.packing.node_mask(), words.packing)
    difference = image.unsqueeze(1) - text  # (n, k, d)
    global_nodes = l2_normalize(global_layer(difference.square()))  # (n, k, s)
    padded = words.rows.unflatten(0, words.mask.shape)  # (k, w, d)
    inputs = (attention, regions, padded, local_layer.weight, local_layer.bias, global_nodes)
    if can_tile(*inputs):
        from sremkit.ops.cpu import tiled_nodes

        values = tiled_nodes(*inputs)
    else:
        values = checkpoint(padded_reference, *inputs, use_reentrant=False, preserve_rng_state=False)
    return Nodes(values, F.pad(words.mask, (1, 0), value=True), None)


def node_projection_reference(
    attention: Tensor, regions: Tensor, words: Tensor, weight: Tensor, bias: Tensor
) -> Tensor:
    """Nodes (n, W, s) of words (W, d), with everything in memory."""
    difference = torch.baddbmm(-words, attention.transpose(1, 2), regions)  # (n, W, d)
    return l2_normalize(F.linear(difference.square(), weight, bias))


def padded_reference(
    attention: Tensor, regions: Tensor, words: Tensor, weight: Tensor, bias: Tensor, global_nodes: Tensor
) -> Tensor:
    """Nodes (n, k, 1 + w, s) of words (k, w, d) with attention (n, r, k·w): the given global nodes (n, k, s) first."""
    nodes = node_projection_reference(attention, regions, words.flatten(0, 1), weight, bias)
    return torch.cat([global_nodes.unsqueeze(2), nodes.unflatten(1, words.shape[:2])], dim=2)


def can_tile(*tensors: Tensor) -> bool:
    """Whether the CPU backend applies: all on a CPU in float32 or float64, without autocast or torch.compile."""
    if torch.compiler.is_compiling() or torch.is_autocast_enabled("cpu"):
        return False
    return all(x.device.type == "cpu" and x.dtype == tensors[0].dtype for x in tensors) and (
        tensors[0].dtype in (torch.float32, torch.float64)
    )

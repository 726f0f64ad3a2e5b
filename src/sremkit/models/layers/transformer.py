"""Pre-norm transformer layers in plain PyTorch, for images as patches and texts as words."""

from __future__ import annotations

import torch.nn.functional as F
import torch.utils.checkpoint
from torch import Tensor, nn

from sremkit.ops.functional import Dropout


class TransformerLayer(nn.Module):
    """x + attention(norm(x)), then x + MLP(norm(x)); the MLP is four times as wide."""

    def __init__(self, width: int, num_heads: int, *, dropout: float) -> None:
        super().__init__()
        if width % num_heads:
            raise ValueError(f"the width {width} must be a multiple of the number of heads {num_heads}")
        self.num_heads = num_heads
        self.attention_norm, self.mlp_norm = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.mlp = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))
        self.dropout = Dropout(dropout)

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        """
        Args:
            x: (b, n, d); mask: (b, n), True where an element is present.
        """
        b, n, d = x.shape
        q, k, v = (
            self.qkv(self.attention_norm(x)).view(b, n, 3, self.num_heads, d // self.num_heads).permute(2, 0, 3, 1, 4)
        )
        attended = F.scaled_dot_product_attention(q, k, v, attn_mask=None if mask is None else mask[:, None, None, :])
        x = x + self.dropout(self.out(attended.transpose(1, 2).reshape(b, n, d)))
        return x + self.dropout(self.mlp(self.mlp_norm(x)))


class Transformer(nn.Module):
    """Layers one after the other, and a norm.

    Args:
        recompute: compute the activations of a layer again in the backward pass.
    """

    def __init__(
        self, width: int, num_layers: int, num_heads: int, *, dropout: float = 0.0, recompute: bool = False
    ) -> None:
        super().__init__()
        self.layers = nn.ModuleList(TransformerLayer(width, num_heads, dropout=dropout) for _ in range(num_layers))
        self.norm = nn.LayerNorm(width)
        self.recompute = recompute
        for name, parameter in self.named_parameters():
            if name.endswith(("out.weight", "mlp.2.weight")):  # the sum over layers keeps its variance
                nn.init.normal_(parameter, std=(width * 2 * num_layers) ** -0.5)
            elif parameter.ndim == 2:
                nn.init.normal_(parameter, std=width**-0.5)
            elif name.endswith("bias"):
                nn.init.zeros_(parameter)

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        for layer in self.layers:
            if self.recompute and self.training:
                x = torch.utils.checkpoint.checkpoint(layer, x, mask, use_reentrant=False)
            else:
                x = layer(x, mask)
        return self.norm(x)

"""What of a pretrained tower is trained: all of it, its last layers, low-rank adapters, or nothing."""

from __future__ import annotations

from typing import Any

from torch import nn

from sremkit.extras import require

#: The linear maps of the attention; those of other layers are left as they are.
ATTENTION = r".*encoder\.layers\.\d+\.self_attn\.(q_proj|k_proj|v_proj|out_proj)"
#: Parts after the layers, which are trained with the last of them.
OUTPUT = ("final_layer_norm", "post_layernorm", "head")


def train_last_layers(tower: nn.Module, projection: nn.Module, count: int) -> None:
    """Freeze a tower but for its last `count` layers, its output and its projection; with 0 these too."""
    layers = list(tower.encoder.layers)  # type: ignore[union-attr, arg-type]
    if not 0 <= count <= len(layers):
        raise ValueError(
            f"the tower has {len(layers)} layers, so 0 to {len(layers)} of them can be trained, not {count}"
        )
    tower.requires_grad_(False)
    projection.requires_grad_(count > 0)
    for part in layers[len(layers) - count :] if count else []:
        part.requires_grad_(True)
    for name in OUTPUT if count else ():
        if hasattr(tower, name):
            getattr(tower, name).requires_grad_(True)


def add_adapters(tower: nn.Module, projection: nn.Module, rank: int) -> None:
    """Freeze a tower and add low-rank adapters to its attention: W x + (alpha / rank) B A x, with alpha = 2 rank."""
    peft = require("peft", extra="lora", purpose="train low-rank adapters (model.lora_rank)")
    projection.requires_grad_(False)
    peft.inject_adapter_in_model(peft.LoraConfig(r=rank, lora_alpha=2 * rank, target_modules=ATTENTION), tower)


def merge_adapters(tower: nn.Module) -> None:
    """Add the adapters to the weights, in place, so that the tower is an ordinary one again."""
    adapters: dict[str, Any] = {name: part for name, part in tower.named_modules() if hasattr(part, "get_base_layer")}
    for name, adapter in adapters.items():
        adapter.merge()
        parent, _, attribute = name.rpartition(".")
        setattr(tower.get_submodule(parent), attribute, adapter.get_base_layer())

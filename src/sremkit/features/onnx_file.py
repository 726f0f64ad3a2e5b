"""The few kinds of ONNX nodes that a convolutional network needs, written without the package `onnx`.

An ONNX model is a Protocol Buffers message. Writing one takes only whole numbers in groups of seven bits and
byte strings with their length before them; the numbers of the fields are those of ONNX's published schema.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

IR_VERSION = 8
OPERATORS = 17  # version of the set of operators
FLOAT = 1  # TensorProto.FLOAT
INTS = 7  # AttributeProto.INTS
INT = 2  # AttributeProto.INT


class OnnxNetwork:
    """A network that grows node by node; every method takes names of tensors and gives the name of its result.

    Args:
        input_shape: of the only input; None where any number of items may come.
    """

    INPUT, OUTPUT = "pictures", "features"

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

    def clip(self, x: str, low: float, high: float) -> str:
        return self._node("Clip", [x, self._constant(np.float32(low)), self._constant(np.float32(high))])

    def add(self, x: str, y: str) -> str:
        return self._node("Add", [x, y])

    def to_bytes(self, output: str) -> bytes:
        """The finished model, whose output is the tensor of this name."""
        self._nodes.append(_node("Identity", [output], self.OUTPUT))
        graph = [_bytes(1, node) for node in self._nodes]
        graph.append(_bytes(2, b"network"))
        graph += [_bytes(5, constant) for constant in self._constants]
        graph.append(_bytes(11, _value(self.INPUT, self.input_shape)))
        graph.append(_bytes(12, _value(self.OUTPUT, None)))
        operators = _bytes(1, b"") + _int(2, OPERATORS)
        return _int(1, IR_VERSION) + _bytes(7, b"".join(graph)) + _bytes(8, operators)

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
    """Name and type of an input or output; without a shape the reader works it out."""
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
    """Seven bits a byte, the lowest first; the eighth bit says that more follow."""
    groups = []
    while value > 0x7F:
        groups.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*groups, value])

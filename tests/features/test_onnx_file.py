"""The hand-written ONNX files mean what the same operations mean in PyTorch."""

from __future__ import annotations

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from sremkit.features.onnx_file import OnnxNetwork, _int, _varint

onnxruntime = pytest.importorskip("onnxruntime", reason="the extra 'features' is not installed")


def computed(model: bytes, x: np.ndarray) -> np.ndarray:
    session = onnxruntime.InferenceSession(model, providers=["CPUExecutionProvider"])
    (result,) = session.run(None, {OnnxNetwork.INPUT: x})
    return result


@pytest.mark.parametrize(
    ("value", "expected"),
    # 300 = 0b10_0101100: the low seven bits 0101100 with the mark of more, then 10.
    [(0, b"\x00"), (127, b"\x7f"), (128, b"\x80\x01"), (300, b"\xac\x02"), (1 << 14, b"\x80\x80\x01")],
)
def test_whole_numbers_go_into_groups_of_seven_bits(value: int, expected: bytes) -> None:
    assert _varint(value) == expected


def test_a_field_begins_with_its_number_and_kind() -> None:
    # The tag is field * 8 + kind, and 0 is the kind of whole numbers: 1 * 8 + 0 = 8, then 150 as 0x96 0x01.
    assert _int(1, 150) == b"\x08\x96\x01"


@pytest.mark.parametrize("groups", [1, 2, 4])
@pytest.mark.parametrize("stride", [(1, 1), (2, 2), (2, 1)])
@pytest.mark.parametrize("padding", [(0, 0, 0, 0), (1, 0, 2, 3)])
def test_a_convolution_is_that_of_pytorch(groups: int, stride: tuple, padding: tuple) -> None:
    rng = np.random.default_rng(0)
    x = rng.standard_normal((2, 4, 9, 8)).astype(np.float32)
    weight = rng.standard_normal((8, 4 // groups, 3, 2)).astype(np.float32)
    bias = rng.standard_normal(8).astype(np.float32)
    network = OnnxNetwork(input_shape=(None, 4, 9, 8))
    out = network.convolution(OnnxNetwork.INPUT, weight, bias, stride=stride, padding=padding, groups=groups)
    top, left, bottom, right = padding
    padded = F.pad(torch.from_numpy(x), (left, right, top, bottom))
    expected = F.conv2d(
        padded, torch.from_numpy(weight), torch.from_numpy(bias), stride=stride, groups=groups
    )
    np.testing.assert_allclose(computed(network.to_bytes(out), x), expected.numpy(), rtol=1e-4, atol=1e-5)


def test_nodes_follow_one_another_and_short_cuts_join() -> None:
    network = OnnxNetwork(input_shape=(None, 2))
    clipped = network.clip(OnnxNetwork.INPUT, 0.0, 6.0)
    model = network.to_bytes(network.add(clipped, OnnxNetwork.INPUT))
    x = np.array([[-3.0, 2.5], [7.0, 6.0]], dtype=np.float32)
    # clip(-3) - 3 = -3, clip(2.5) + 2.5 = 5, clip(7) + 7 = 13, clip(6) + 6 = 12
    np.testing.assert_array_equal(computed(model, x), [[-3.0, 5.0], [13.0, 12.0]])

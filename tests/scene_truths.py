"""Shared by the tests of the generated scenes: what is behind pairs, and the truth by reading the words."""

from __future__ import annotations

import re

import numpy as np

from oracles import scenes as oracle
from sremkit.data.features import ArrayFeatures
from sremkit.data.generated.scenes import SceneImages
from sremkit.data.generated.scenes.scene import Scene, Shape
from sremkit.data.pairs import Pairs


def scene_images(pairs: Pairs) -> SceneImages:
    assert isinstance(pairs.images, SceneImages)
    return pairs.images


def features_of(pairs: Pairs) -> np.ndarray:
    assert isinstance(pairs.image_features, ArrayFeatures)
    return pairs.image_features.array


def as_dictionary(scene: Scene) -> dict:
    keys = ("kind", "color", "size", "texture", "row", "column")
    shapes = [{key: getattr(shape, key) for key in keys} for shape in scene.shapes]
    return {"background": scene.background, "shapes": shapes}


def truths(pairs: Pairs) -> np.ndarray:
    """Whether each text is true of the image it is given with, by the oracle."""
    scenes = [as_dictionary(scene_images(pairs).scene(k)) for k in range(pairs.num_images)]
    told = [oracle.read_caption(text) for text in pairs.texts]
    return np.array([oracle.is_true(c, scenes[k]) for c, k in zip(told, pairs.image_of_text, strict=True)])


def words(text: str) -> list[str]:
    return re.findall("[a-z]+", text.lower())


def shape(kind: str = "star", color: str = "red", *, cell: int = 0, shift=(0.0, 0.0), **more: str) -> Shape:
    return Shape(kind, color, more.get("size", "large"), more.get("texture", "plain"), cell, shift)

"""Scenes as pairs: pictures, region features and five captions each."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from sremkit.data.features import ArrayFeatures
from sremkit.data.pairs import Pairs
from sremkit.data.scenes.captions import CAPTIONS_PER_SCENE, Caption, write_captions
from sremkit.data.scenes.drawing import draw_scene
from sremkit.data.scenes.patches import DRAWN_AT, NUM_PATCHES, PATCH_DIM, patch_features
from sremkit.data.scenes.scene import SPLITS, Purpose, Scene, sample_scene, scene_generator
from sremkit.data.splits import choose_split
from sremkit.errors import DataError

if TYPE_CHECKING:
    from PIL.Image import Image


class SceneImages:
    """The pictures of a split, drawn when they are asked for; also the scenes and captions behind them."""

    def __init__(self, num_scenes: int, *, split: str = "train", seed: int = 0, size: int = 192) -> None:
        if num_scenes < 1:
            raise DataError(f"num_scenes must be 1 or more, got {num_scenes}; 2000 train a small model")
        self.num_scenes = num_scenes
        self.split = choose_split(split, SPLITS, "the collection of scenes")
        self.seed = seed
        self.size = size  # of a picture, in pixels

    def __len__(self) -> int:
        return self.num_scenes

    def name(self, index: int) -> str:
        return f"scenes/{self.image_id(index)}"

    def image_id(self, index: int) -> str:
        return f"{self.split}/{index:05d}"

    def pair_id(self, index: int, caption: int) -> str:
        return f"{self.image_id(index)}#{caption}"

    def open(self, index: int) -> Image:
        return draw_scene(self.scene(index), self.size)

    def scene(self, index: int) -> Scene:
        """What picture `index` shows."""
        return sample_scene(self._generator(index, purpose="scene"))

    def captions(self, index: int) -> tuple[Caption, ...]:
        """The five captions that `make_scenes` gives with picture `index`, with their claims."""
        return write_captions(self.scene(index), self._generator(index, purpose="captions"))

    def _generator(self, index: int, *, purpose: Purpose) -> np.random.Generator:
        if not 0 <= index < self.num_scenes:
            raise IndexError(f"there is no scene {index}: they are numbered from 0 to {self.num_scenes - 1}")
        return scene_generator(seed=self.seed, split=self.split, index=int(index), purpose=purpose)


def make_scenes(num_scenes: int = 2000, *, split: str = "train", seed: int = 0) -> Pairs:
    """Generate scenes with five captions each; every pair is right.

    Scene k is the same for any `num_scenes`. Region features are (36, 204), see `patch_features`; pictures
    are drawn at 192 pixels when opened. For mismatches use `subtle_mismatches`, or shuffle as with any
    other collection: `pairs.paired_as(make_noise(pairs.image_of_text, rate=0.4).image_of_text)`.
    """
    images = SceneImages(num_scenes, split=split, seed=seed)
    features = np.empty((num_scenes, NUM_PATCHES, PATCH_DIM), dtype=np.float32)
    texts: list[str] = []
    for k in range(num_scenes):
        features[k] = patch_features(draw_scene(images.scene(k), DRAWN_AT))
        texts += [caption.text for caption in images.captions(k)]
    return Pairs(
        name="scenes",
        split=images.split,
        pair_ids=[images.pair_id(k, c) for k in range(num_scenes) for c in range(CAPTIONS_PER_SCENE)],
        texts=texts,
        image_of_text=np.repeat(np.arange(num_scenes), CAPTIONS_PER_SCENE),
        image_ids=[images.image_id(k) for k in range(num_scenes)],
        images=images,
        image_features=ArrayFeatures(features, name="scenes"),
    )

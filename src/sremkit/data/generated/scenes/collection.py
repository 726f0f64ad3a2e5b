"""Scenes as pairs: images, region features and five captions each, some of them wrong on request."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from sremkit.data.features import ArrayFeatures
from sremkit.data.format_utils import choose_split
from sremkit.data.formats import FORMATS
from sremkit.data.generated.scenes.captions import CAPTIONS_PER_SCENE, Caption, falsified, write_captions
from sremkit.data.generated.scenes.scene import (
    DRAWN_AT,
    NUM_PATCHES,
    PATCH_DIM,
    SPLITS,
    Purpose,
    Scene,
    draw_scene,
    patch_features,
    sample_scene,
    scene_generator,
)
from sremkit.data.pairs import Pairs
from sremkit.errors import DataError

if TYPE_CHECKING:
    from PIL.Image import Image

MAX_SCENES = 1_000_000  # 29 GB of features
IMAGE_SIZE = 192  # pixels, of an image that is opened


class SceneImages:
    """The images of a split, drawn on demand, with their scenes and captions."""

    def __init__(self, num_scenes: int, *, split: str = "train", seed: int = 0) -> None:
        if not isinstance(num_scenes, int) or num_scenes > MAX_SCENES:
            raise DataError(f"num_scenes must be a whole number of at most {MAX_SCENES:,}, got {num_scenes!r:.40}")
        if num_scenes < 1:
            raise DataError(f"num_scenes must be 1 or more, got {num_scenes}; 2000 train a small model")
        self.num_scenes = num_scenes
        self.split = choose_split(split, SPLITS, "the collection of scenes")
        self.seed = seed

    def __len__(self) -> int:
        return self.num_scenes

    def name(self, index: int) -> str:
        return f"scenes/{self.image_id(index)}"

    def digest(self, index: int) -> str:
        """Names the image among those of all collections of scenes."""
        return f"{self.image_id(index)} of seed {self.seed}"

    def image_id(self, index: int) -> str:
        return f"{self.split}/{index:05d}"

    def pair_id(self, index: int, caption: int) -> str:
        return f"{self.image_id(index)}#{caption}"

    def open(self, index: int) -> Image:
        return draw_scene(self.scene(index), IMAGE_SIZE)

    def scene(self, index: int) -> Scene:
        """The scene of image `index`."""
        return sample_scene(self._generator(index, purpose="scene"))

    def captions(self, index: int) -> tuple[Caption, ...]:
        """The five captions of image `index`, with their claims."""
        return write_captions(self.scene(index), self._generator(index, purpose="captions"))

    def _generator(self, index: int, *, purpose: Purpose) -> np.random.Generator:
        if not 0 <= index < self.num_scenes:
            raise IndexError(f"there is no scene {index}: they are numbered from 0 to {self.num_scenes - 1}")
        return scene_generator(seed=self.seed, split=self.split, index=int(index), purpose=purpose)


def make_scenes(num_scenes: int = 2000, *, split: str = "train", seed: int = 0) -> Pairs:
    """Generate scenes with five captions each; all pairs match.

    Scene k is the same for any `num_scenes`. Region features are (36, 204), see `patch_features`; images are drawn at
    192 pixels when opened. For wrong pairs use `mismatched_scenes`, or `make_noise` as for any other collection.
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


@dataclass(frozen=True, eq=False)
class SceneTruth:
    """Which pairs are wrong, for evaluation only; wrong pairs that are not subtle are shuffled."""

    is_noisy: np.ndarray  # (m,) bool
    is_subtle: np.ndarray  # (m,) bool


def mismatched_scenes(
    num_scenes: int = 2000, *, split: str = "train", seed: int = 0, rate: float, subtle_share: float = 0.0
) -> tuple[Pairs, SceneTruth]:
    """Generate scenes with a fraction `rate` of wrong pairs.

    Of the wrong pairs a fraction `subtle_share` is subtle: one attribute or relation in the caption is wrong. The
    images of the others are shuffled, caption by caption. A shuffle can return a caption its own image, so the truth
    is computed from the result, and its mean can be slightly below `rate`. A caption that also fits its wrong image
    (about one in 4,000) counts as wrong.
    """
    for name, share in (("rate", rate), ("subtle_share", subtle_share)):
        if not 0 <= share <= 1:
            raise DataError(f"{name} is a fraction between 0 and 1, got {share}; 0.4 means 40 %")
    pairs = make_scenes(num_scenes, split=split, seed=seed)
    images = SceneImages(num_scenes, split=split, seed=seed)
    rng = scene_generator(seed=seed, split=pairs.split, index=0, purpose="mismatches")
    chosen = rng.permutation(len(pairs))[: round(rate * len(pairs))]
    num_subtle = round(subtle_share * len(chosen))
    subtle, shuffled = chosen[:num_subtle], chosen[num_subtle:]

    texts = list(pairs.texts)
    is_subtle = np.zeros(len(pairs), dtype=bool)
    is_subtle[subtle] = True
    for k in subtle:
        image, number = divmod(int(k), CAPTIONS_PER_SCENE)
        texts[k] = falsified(images.captions(image)[number], images.scene(image), rng).text
    image_of_text = pairs.image_of_text.copy()
    image_of_text[shuffled] = rng.permutation(image_of_text[shuffled])
    is_shuffled = image_of_text != pairs.image_of_text
    return replace(pairs, texts=texts, image_of_text=image_of_text), SceneTruth(is_subtle | is_shuffled, is_subtle)


@FORMATS.register("scenes")
class Scenes:
    """Generated images of shapes with five captions each: the path is the word 'scenes'."""

    @staticmethod
    def recognizes(path: Path) -> bool:
        return str(path) == "scenes" and not path.exists()

    @staticmethod
    def read(path: Path, *, split: str, num_scenes: int = 2000, seed: int = 0) -> Pairs:
        """Generate one split; nothing is read from `path`.

        Args:
            num_scenes: images of the split, with five captions each.
            seed: of the generator; scenes of another seed are other scenes.
        """
        return make_scenes(num_scenes, split=split, seed=seed)

    @staticmethod
    def example(folder: Path) -> tuple[Path, dict[str, Any]]:
        """Generated captions, not those of the other examples."""
        return Path("scenes"), {"num_scenes": 2}

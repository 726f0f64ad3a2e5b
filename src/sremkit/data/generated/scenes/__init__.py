"""Scenes: a generated collection of images of shapes with captions, for first experiments, tests and teaching.

    pairs = make_scenes(2000, split="train", seed=0)

There are no files: a scene is drawn from (seed, split, number) on demand. Each caption's claims are known, so one
detail of a caption can be made wrong, and whether a caption holds of an image can be computed.
"""

from sremkit.data.generated.scenes.collection import SceneImages, SceneTruth, make_scenes, mismatched_scenes

__all__ = ["SceneImages", "SceneTruth", "make_scenes", "mismatched_scenes"]

"""Scenes: a generated collection of pictures of shapes with captions, for trying out, testing and teaching.

    pairs = make_scenes(2000, split="train", seed=0)

No files: a scene is redrawn from (seed, split, number) whenever it is needed. Because each caption's claims
are known, a caption can be made wrong in one detail, and whether it holds of any picture can be told.
"""

from sremkit.data.scenes.claims import Claims, Mention, Relation, holds
from sremkit.data.scenes.collection import SceneImages, make_scenes
from sremkit.data.scenes.drawing import draw_scene
from sremkit.data.scenes.mismatches import SceneTruth, mismatched_scenes, subtle_mismatches
from sremkit.data.scenes.patches import patch_features
from sremkit.data.scenes.scene import Scene, Shape

__all__ = [
    "Claims",
    "Mention",
    "Relation",
    "Scene",
    "SceneImages",
    "SceneTruth",
    "Shape",
    "draw_scene",
    "holds",
    "make_scenes",
    "mismatched_scenes",
    "patch_features",
    "subtle_mismatches",
]

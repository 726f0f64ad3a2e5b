"""The generated scenes under the path 'scenes', so that commands and recipes can name them like a file."""

from __future__ import annotations

from pathlib import Path

from sremkit.data.formats import FORMATS
from sremkit.data.pairs import Pairs
from sremkit.data.scenes import make_scenes


@FORMATS.register("scenes")
class Scenes:
    """Generated pictures of shapes with five captions each: the path is the word 'scenes'."""

    @staticmethod
    def recognizes(path: Path) -> bool:
        return str(path) == "scenes" and not path.exists()

    @staticmethod
    def read(path: Path, *, split: str, num_scenes: int = 2000, seed: int = 0) -> Pairs:
        """Generate one split; nothing is read from `path`."""
        return make_scenes(num_scenes, split=split, seed=seed)

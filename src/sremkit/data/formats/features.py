"""What `srem features` extracted, ready to be trained on."""

from __future__ import annotations

from pathlib import Path

from sremkit.data.feature_folder import JOURNAL, MANIFEST, FeatureFolder
from sremkit.data.formats import FORMATS
from sremkit.data.pairs import OnError, Pairs


@FORMATS.register("features")
class Features:
    """Folder that `srem features` wrote: features.json, images.jsonl, pairs.jsonl and .npy files."""

    @staticmethod
    def recognizes(path: Path) -> bool:
        return (path / MANIFEST).is_file() or (path / JOURNAL).is_file()

    @staticmethod
    def read(path: Path, *, split: str, on_error: OnError = "raise", features: str | None = None) -> Pairs:
        """Read one split, or everything where the source had none.

        Args:
            on_error: makes no difference; pairs whose picture the extraction could not read are always left
                out, for it has reported them, and counted in `skipped`.
            features: "pooled" or "grid"; by default the one there is, and "pooled" where both are.
        """
        return FeatureFolder(path).read(split, features)

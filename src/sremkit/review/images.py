"""The images of an audit's rows, from the source that was audited; thumbnails are made once and kept in memory."""

from __future__ import annotations

import io
import threading
from collections import OrderedDict
from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from sremkit.audit.inputs import open_source, source_of_run
from sremkit.audit.result_table import ResultTable
from sremkit.audit.sharded.plan import list_shards
from sremkit.data.pairs import ImageSource
from sremkit.errors import DataError, UserError

if TYPE_CHECKING:
    from PIL.Image import Image

SIDES = {"small": 256, "large": 1024}  # pixels
CACHE_BYTES = 200_000_000
OPEN_SHARDS = 8


class ImageIndex:
    """Images of a source by their names in the table."""

    def __init__(self, images: ImageSource | None, names: Sequence[str]) -> None:
        self._images = images
        self._numbers: dict[str, int] = {}
        for number, name in enumerate(names):
            self._numbers.setdefault(name, number)

    def open(self, name: str | None) -> Image | None:
        if self._images is None or name is None or name not in self._numbers:
            return None
        return self._images.open(self._numbers[name])


class AuditImages:
    """Opens the image of a row by its name in the table, and of nothing else.

    Args:
        folder: of the audit.
        facts: "source" in the metadata of the table.
        path, image_root: where the pairs and the images are now, if they were moved.

    Attributes:
        note: why there are no images, else empty.
    """

    def __init__(
        self,
        folder: Path,
        facts: dict[str, Any],
        *,
        path: Path | None = None,
        image_root: Path | None = None,
    ) -> None:
        self.note = ""
        self._format, self._split = facts.get("format"), facts.get("split")
        self._options = {k: v for k, v in (facts.get("options") or {}).items() if v is not None}
        if image_root is not None:
            if not image_root.is_dir():
                raise UserError(f"--image-root {image_root} is no folder; name the folder of the images")
            self._options["image_root"] = str(image_root)
        self._path = Path(path or facts.get("path") or "")
        self._lock = threading.Lock()
        self._open_shard = lru_cache(maxsize=OPEN_SHARDS)(self._read_shard)
        parts = sorted((folder / "parts").glob("*.parquet"))
        self._starts = np.zeros(1, dtype=np.int64)
        if self._format in (None, "embeddings", "pairs"):
            self.note = "this audit was made of vectors, without images"
            return
        try:
            if parts:
                self._shards = {shard.name: shard for shard in list_shards(self._path)}
                self._names = [part.stem for part in parts]
                self._starts = np.cumsum([0, *(len(ResultTable(part)) for part in parts)])
                if self._starts[-1] != len(ResultTable(folder)):
                    raise DataError("the parts of the sharded audit have changed; make it again with `srem audit`")
                self._open_shard(self._names[0])
            else:
                self._open_shard(None)
        except (DataError, OSError) as problem:
            reason = str(problem).split(";")[0]  # without its remedies, which are those of a new audit
            self.note = (
                f"the images cannot be shown: {reason}; if they were moved, stop this and name the new place with "
                "--image-root, or that of the pairs with --pairs"
            )

    def open(self, row: int, name: str | None) -> Image | None:
        """The image of a row, which has this name in the table; None if it cannot be shown."""
        if self.note:
            return None
        shard = None
        if len(self._starts) > 1:
            shard = self._names[int(np.searchsorted(self._starts, row, side="right")) - 1]
        try:
            with self._lock:
                index = self._open_shard(shard)
            return index.open(name)
        except (DataError, OSError):
            return None

    def _read_shard(self, shard: str | None) -> ImageIndex:
        if self._format == "run":
            pairs = source_of_run(self._path).pairs
        else:
            path = self._path if shard is None else self._shards[shard].path
            pairs = open_source(path, format=self._format, split=self._split, **self._options).pairs
        if pairs.images is None:
            raise DataError(f"the images of {self._path} are not on this machine")
        return ImageIndex(pairs.images, pairs.image_ids)


class Thumbnails:
    """WebP thumbnails by row and size; the least recently used ones are forgotten."""

    def __init__(self, images: AuditImages) -> None:
        self._images = images
        self._lock = threading.Lock()
        self._made: OrderedDict[tuple[int, str], bytes] = OrderedDict()
        self._bytes = 0

    def get(self, row: int, name: str | None, size: str) -> bytes | None:
        """The image of a row, at most `SIDES[size]` pixels wide and high; None if it cannot be shown."""
        key = (row, size)
        with self._lock:
            if key in self._made:
                self._made.move_to_end(key)
                return self._made[key]
        data = self._make(row, name, SIDES[size])
        if data is None:  # tried again the next time: the disk of the images may be back
            return None
        with self._lock:
            if key not in self._made:
                self._made[key] = data
                self._bytes += len(data)
            while self._bytes > CACHE_BYTES:
                self._bytes -= len(self._made.popitem(last=False)[1])
        return data

    def _make(self, row: int, name: str | None, side: int) -> bytes | None:
        image = self._images.open(row, name)
        if image is None:
            return None
        image.thumbnail((side, side))
        data = io.BytesIO()
        image.save(data, format="WEBP", quality=82, method=2)
        return data.getvalue()

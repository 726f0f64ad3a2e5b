"""Which files a large collection consists of: tar shards, tables, or numbered parts of embeddings."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from sremkit.data.formats.webdataset import expand_ranges
from sremkit.errors import DataError, UserError

# img2dataset writes a Parquet file beside each archive; the archive holds the pictures, so it goes first.
KINDS = ((".tar",), (".parquet", ".pq"), (".csv", ".tsv"))


@dataclass(frozen=True)
class Shard:
    """One file of pairs, or one of image vectors with one of text vectors."""

    name: str  # unique among all shards; its part is called so
    path: Path
    text_path: Path | None = None  # the text vectors, if `path` holds image vectors

    @property
    def files(self) -> tuple[Path, ...]:
        return (self.path,) if self.text_path is None else (self.path, self.text_path)


def list_shards(path: str | Path) -> tuple[Shard, ...]:
    """The shards of a folder, of a pattern such as shard-{000..099}.tar, or a single file."""
    path = Path(path)
    if path.is_dir():
        for suffixes in KINDS:
            found = sorted(file for file in path.iterdir() if file.suffix.lower() in suffixes)
            if found:
                return _named(found)
        raise DataError(
            f"{path} holds no .tar, .parquet, .csv or .tsv files; give the folder of the shards, or audit it "
            "without --by-shard"
        )
    return _named(_existing(path))


def list_embeddings(image_emb: str | Path, text_emb: str | Path) -> tuple[Shard, ...]:
    """Numbered .npy parts: a folder, a pattern or a file for the images, and likewise for the texts."""
    images, texts = (_arrays(Path(path)) for path in (image_emb, text_emb))
    if len(images) != len(texts):
        raise UserError(
            f"{image_emb} holds {len(images)} parts and {text_emb} {len(texts)}; part k of both must hold the "
            "same pairs"
        )
    named = _named(images)
    return tuple(Shard(s.name, s.path, text) for s, text in zip(named, texts, strict=True))


def _arrays(path: Path) -> list[Path]:
    if not path.is_dir():
        return _existing(path)
    found = sorted(path.glob("*.npy"))
    if not found:
        raise DataError(f"{path} holds no .npy files; give the folder of the parts, or one file")
    return found


def _existing(pattern: Path) -> list[Path]:
    files = [Path(name) for name in expand_ranges(str(pattern))]
    missing = [file for file in files if not file.is_file()]
    if missing:
        raise DataError(
            f"{missing[0]} does not exist ({len(missing)} of {len(files)} shards); check the spelling"
        )
    return files


def _named(files: Sequence[Path]) -> tuple[Shard, ...]:
    """Named by the file, not by its number: with more shards, the old ones keep what is done for them."""
    count = Counter(file.stem for file in files)
    return tuple(
        Shard(file.stem if count[file.stem] == 1 else f"{file.stem}-{_short_hash(file)}", file)
        for file in files
    )


def _short_hash(file: Path) -> str:
    return hashlib.sha256(str(file.absolute()).encode()).hexdigest()[:8]

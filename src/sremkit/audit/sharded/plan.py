"""The plan of a sharded audit: its shards, its settings, where every file lies, and what is done already."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from sremkit.audit.embed import Encoders
from sremkit.audit.folder import SHARDS, begin_folder
from sremkit.audit.result_table import BEGUN, VERSION
from sremkit.audit.scoring.cutoff import CutoffRule
from sremkit.audit.scoring.types import ScoringSettings
from sremkit.data.formats.webdataset import expand_ranges
from sremkit.errors import DataError, UserError
from sremkit.io import digest, read_json_or_empty, write_json
from sremkit.training.checkpoint import is_valid, read_facts
from sremkit.version import __version__

MAX_TRAIN_PAIRS = 200_000  # about 5 GB while training on vectors of the default encoders
MIN_SHARD_SAMPLE = 16  # pairs that every shard may contribute to the sample
OVERSAMPLING = 4  # a shard may contribute so many times its even share, because shards differ in size
# img2dataset writes a Parquet file next to each tar file, which holds the images and therefore comes first.
SUFFIXES = ((".tar",), (".parquet", ".pq"), (".csv", ".tsv"))


@dataclass(frozen=True)
class Shard:
    """A file of pairs, or a file of image vectors with one of text vectors."""

    name: str  # unique; its part is called so
    path: Path
    text_path: Path | None = None  # the text vectors, if `path` holds image vectors


@dataclass(frozen=True, eq=False)
class ShardPlan:
    """A sharded audit."""

    out: Path
    shards: tuple[Shard, ...]
    encoders: Encoders
    settings: ScoringSettings
    cutoff: CutoffRule
    max_train_pairs: int = MAX_TRAIN_PAIRS  # size of the sample that the scorer is fitted to
    format: str | None = None
    split: str | None = None
    options: dict[str, Any] = field(default_factory=dict)
    workers: int | None = None  # processes that extract the features of a shard
    stamps: tuple[str, ...] = ()  # of each shard: equal for an equal file that is read and sampled equally
    key: str = ""  # of the whole: the scorer depends on all shards

    def __post_init__(self) -> None:
        if self.max_train_pairs < 1:
            raise UserError(f"--max-train-pairs must be 1 or more, got {self.max_train_pairs}")
        if not self.shards:
            raise UserError("there are no shards to audit")
        object.__setattr__(self, "stamps", tuple(self._stamp(shard) for shard in self.shards))
        facts = [self.stamps, asdict(self.settings), self.max_train_pairs, __version__]
        object.__setattr__(self, "key", digest(facts))

    @property
    def shard_sample(self) -> int:
        """Number of pairs that one shard may contribute to the sample."""
        even = self.max_train_pairs / len(self.shards)
        return min(self.max_train_pairs, max(MIN_SHARD_SAMPLE, int(OVERSAMPLING * even)))

    @property
    def model(self) -> Path:
        return self.out / "model"

    def folder(self, number: int) -> Path:
        return self.out / SHARDS / self.shards[number].name

    def part(self, number: int) -> Path:
        return self.out / "parts" / f"{self.shards[number].name}.parquet"

    def prepared(self, number: int) -> dict[str, Any] | None:
        """The facts of a shard whose features are extracted, else None."""
        facts = read_json_or_empty(self.folder(number) / "prepared.json")
        return facts if facts.get("stamp") == self.stamps[number] else None

    def scored(self, number: int) -> dict[str, Any] | None:
        """The facts of a shard whose part is written, else None."""
        facts = read_json_or_empty(self.folder(number) / "scored.json")
        if facts.get("key") != self._part_key(number) or not self.part(number).is_file():
            return None
        return facts

    def has_model(self) -> bool:
        """Whether the fitted scorer is there; one of 0.1 has no names of its own and is fitted again."""
        facts = read_facts(self.model) if is_valid(self.model) else {}
        return facts.get("key") == self.key and "names" in facts

    def save_prepared(self, number: int, facts: dict[str, Any]) -> None:
        write_json(self.folder(number) / "prepared.json", {"stamp": self.stamps[number], **facts})

    def save_scored(self, number: int, facts: dict[str, Any]) -> None:
        write_json(self.folder(number) / "scored.json", {"key": self._part_key(number), **facts})

    def begin(self) -> None:
        """Mark the folder as this audit's."""
        begin_folder(self.out, sharded=True)
        write_json(self.out / BEGUN, {"version": VERSION, "sharded": True, "key": self.key, "shards": len(self.shards)})

    def _part_key(self, number: int) -> str:
        return digest([self.key, self.stamps[number]])

    def _stamp(self, shard: Shard) -> str:
        files = [(file, file.stat()) for file in (shard.path, shard.text_path) if file is not None]
        states = [[str(file.absolute()), state.st_size, state.st_mtime_ns] for file, state in files]
        reading = [self.format, self.split, {name: str(value) for name, value in self.options.items()}]
        encoders = [self.encoders.images.description, self.encoders.texts.description]
        return digest([states, reading, encoders, self.settings.seed, self.shard_sample])


def list_shards(path: str | Path) -> tuple[Shard, ...]:
    """The shards of a folder, of a pattern such as shard-{000..099}.tar, or a single file."""
    hint = "holds no .tar, .parquet, .csv or .tsv files; give the folder of the shards, or audit it without --sharded"
    return _named(_files(Path(path), SUFFIXES, hint))


def list_embeddings(image_emb: str | Path, text_emb: str | Path) -> tuple[Shard, ...]:
    """Numbered .npy files: a folder, a pattern or a file for the images, and likewise for the texts."""
    hint = "holds no .npy files; give the folder of the parts, or one file"
    images, texts = (_files(Path(path), ((".npy",),), hint) for path in (image_emb, text_emb))
    if len(images) != len(texts):
        raise UserError(
            f"{image_emb} holds {len(images)} parts and {text_emb} {len(texts)}; part k of both must hold the "
            "same pairs"
        )
    return tuple(Shard(s.name, s.path, text) for s, text in zip(_named(images), texts, strict=True))


def _files(path: Path, suffixes: Sequence[tuple[str, ...]], hint: str) -> list[Path]:
    """The files of a folder with the first suffixes that any of them has, or those of a pattern, or a single one."""
    if path.is_dir():
        for some in suffixes:
            if found := sorted(file for file in path.iterdir() if file.suffix.lower() in some):
                return found
        raise DataError(f"{path} {hint}")
    files = [Path(name) for name in expand_ranges(str(path))]
    missing = [file for file in files if not file.is_file()]
    if missing:
        raise DataError(f"{missing[0]} does not exist ({len(missing)} of {len(files)} shards); check the spelling")
    return files


def _named(files: Sequence[Path]) -> tuple[Shard, ...]:
    """Name shards by file, not by number: when shards are added, the others keep what is done for them."""
    count = Counter(file.stem for file in files)
    return tuple(
        Shard(file.stem if count[file.stem] == 1 else f"{file.stem}-{digest(str(file.absolute()), length=8)}", file)
        for file in files
    )

"""Pairs of a pandas data frame or of a Hugging Face dataset as the input of an audit."""

from __future__ import annotations

import hashlib
import io
from collections.abc import Sequence
from pathlib import PurePath
from typing import TYPE_CHECKING, Any

from sremkit.audit.inputs import Source, join_splits, rows_of_table
from sremkit.data.csv_parquet import MemoryTable
from sremkit.data.formats.table import MemoryTableReader, collect
from sremkit.data.images import ImageFiles, decode_image
from sremkit.data.pairs import Problem
from sremkit.errors import UserError
from sremkit.extras import require

if TYPE_CHECKING:
    from PIL.Image import Image


def source_of_frame(frame: Any, *, name: str = "frame", **options: Any) -> Source:
    """Use the rows of a pandas data frame; options of `TableReader`, such as image= and text= for columns."""
    pa = require("pyarrow", extra="audit", purpose="read a data frame")
    if not hasattr(frame, "columns"):
        raise UserError(f"from_pandas needs a pandas data frame, got {type(frame).__name__}")
    names = [str(column) for column in frame.columns]
    if len(set(names)) < len(names):
        twice = next(name for name in names if names.count(name) > 1)
        raise UserError(f"{name} has several columns called '{twice}'; rename them")
    columns = {}
    for column in frame.columns:
        try:
            columns[str(column)] = pa.array(frame[column], from_pandas=True)
        except (pa.ArrowInvalid, pa.ArrowTypeError):  # values of several types
            columns[str(column)] = pa.array([None if value is None else str(value) for value in frame[column]])
    return _source(MemoryTable(pa.table(columns), name=name), "frame", **options)


def source_of_dataset(
    dataset: Any, *, image: str | None = None, name: str = "dataset", image_root: Any = None, **options: Any
) -> Source:
    """Use the rows of a `datasets.Dataset`; the column of images holds paths, or is of the type `datasets.Image`.

    Args:
        image: name of that column; by default the one of the type `datasets.Image`, or the one with a common name.
        options: other options of `TableReader`, such as text= and id=.
    """
    if not hasattr(dataset, "features"):
        named = f"dataset['{next(iter(dataset))}']" if isinstance(dataset, dict) and dataset else "dataset['train']"
        raise UserError(f"from_dataset needs one split of a dataset, such as {named}")
    library = require("datasets", extra="datasets", purpose="read a Hugging Face dataset")
    if isinstance(dataset, library.IterableDataset):
        raise UserError("from_dataset needs a dataset on disk or in memory, not a stream; load it with streaming=False")
    encoded = [column for column, kind in dataset.features.items() if isinstance(kind, library.Image)]
    if image is None and len(encoded) == 1:
        image = encoded[0]
    dropped = [column for column in encoded if column != image]
    if image is None or image not in encoded:
        table = dataset.remove_columns(dropped).with_format("arrow")[:]
        return _source(MemoryTable(table, name=name), "dataset", image=image, image_root=image_root, **options)
    undecoded = dataset.cast_column(image, library.Image(decode=False))
    images = EncodedImages(undecoded, image)
    pa = require("pyarrow", extra="audit", purpose="read a dataset")
    table = dataset.remove_columns([*dropped, image]).with_format("arrow")[:]
    table = table.append_column(image, pa.array(images.names, type=pa.string()))
    return _source(MemoryTable(table, name=name), "dataset", image=image, images=images, **options)


def _source(table: MemoryTable, format: str, *, split: str | None = None, **options: Any) -> Source:
    reader = MemoryTableReader(table, on_error="skip", keep_rows=True, **options)
    collection = collect(reader, reader.path, splits=None if split is None else [split])
    pairs, _, repeated_rows = join_splits(collection)
    assert collection.table is not None
    rows = rows_of_table(collection.table, pairs, repeated_rows)
    return Source(pairs, rows, {"path": table.name, "format": format, "split": split, "options": {}})


class EncodedImages(ImageFiles):
    """The images of a column of the type `datasets.Image`, by names that are the same for equal images.

    Attributes:
        names: the name of each row's image, None where there is none: its file name, or its row number.
    """

    def __init__(self, dataset: Any, column: str) -> None:
        super().__init__(None)
        self.dataset, self.column = dataset, column
        self.names: list[str | None] = []
        self.row_of_name: dict[str, int] = {}
        self.digest_of_name: dict[str, str] = {}
        name_of_digest: dict[str, str] = {}
        for row, entry in enumerate(dataset[column]):
            if entry is None or not (entry.get("bytes") or entry.get("path")):
                self.names.append(None)
                continue
            digest = hashlib.sha256(entry.get("bytes") or str(entry["path"]).encode()).hexdigest()
            if digest not in name_of_digest:
                name = PurePath(entry.get("path") or str(row)).name
                name = name if name not in self.row_of_name else f"{row}-{name}"
                name_of_digest[digest], self.row_of_name[name], self.digest_of_name[name] = name, row, digest
            self.names.append(name_of_digest[digest])

    def find_problem(self, name: str) -> Problem | None:
        return None

    def source(self, names: Sequence[str]) -> DatasetImages:
        return DatasetImages(
            self.dataset, self.column, names, [self.row_of_name[n] for n in names], self.digest_of_name
        )


class DatasetImages:
    """Images inside a dataset, decoded on demand."""

    def __init__(
        self, dataset: Any, column: str, names: Sequence[str], rows: Sequence[int], digests: dict[str, str]
    ) -> None:
        self.dataset, self.column, self.names, self.rows, self.digests = dataset, column, names, rows, digests

    def __len__(self) -> int:
        return len(self.rows)

    def name(self, index: int) -> str:
        return self.names[index]

    def digest(self, index: int) -> str:
        """A hash of the content."""
        return self.digests[self.names[index]]

    def open(self, index: int) -> Image:
        entry = self.dataset[self.rows[index]][self.column]
        file = io.BytesIO(entry["bytes"]) if entry.get("bytes") else entry["path"]
        return decode_image(file, name=self.names[index])

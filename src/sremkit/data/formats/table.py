"""Tables with one pair per row: CSV, TSV or Parquet with named columns."""

from __future__ import annotations

import difflib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from sremkit.data.csv_parquet import MemoryTable, ParquetTable, Row, SourceTable, TextTable, open_table, unique_names
from sremkit.data.features import MappedFeatures
from sremkit.data.format_utils import VALIDATION, choose_split, head
from sremkit.data.formats import EXAMPLE_TEXTS, FORMATS, WHOLE, Collection
from sremkit.data.images import PNG_PIXEL, ImageFiles
from sremkit.data.pairs import OnError, PairBuilder, Pairs, Problem, Problems
from sremkit.errors import DataError

SUFFIXES = (".csv", ".tsv", ".parquet", ".pq")
ON_WEB = ("the image is a web address", "download the images (img2dataset does it) and write their paths")
COMMON_NAMES = {
    "image": ("image", "image_path", "img", "img_path", "filepath", "file_path", "filename", "file_name",
              "path", "url", "image_url"),
    "text": ("text", "caption", "title", "sentence", "description", "alt", "alt_text"),
    "id": ("id", "uid", "key", "pair_id"),
    "split_column": ("split",),
}  # fmt: skip


class TableReader:
    """Makes pairs of the rows of a table, by split.

    Args:
        image, text, id, split_column: names of columns; common names are found without being given. Rows with the
            same image share it. Without an id column the row number, from 0, is the id.
        image_root: folder that relative image paths start from; by default the folder of the file.
        image_features, text_features: .npy files with a row for each row of the table.
        delimiter, quoting: what separates fields, and whether quotation marks enclose them.
        keep_rows: keep all columns of all rows in `source`.

    Attributes:
        splits: names of all splits in the table.
        source: the table, and which rows of the splits that `pairs` has returned are not pairs.
    """

    def __init__(
        self,
        path: Path,
        *,
        on_error: OnError = "raise",
        image: str | None = None,
        text: str | None = None,
        id: str | None = None,
        split_column: str | None = None,
        image_root: str | Path | None = None,
        image_features: str | Path | None = None,
        text_features: str | Path | None = None,
        delimiter: str | None = None,
        quoting: bool | None = None,
        keep_rows: bool = False,
    ) -> None:
        Problems(on_error)  # checks the option
        self.path, self.on_error = path, on_error
        self.table = self._open(path, delimiter=delimiter, quoting=quoting, keep_rows=keep_rows)
        self.image_features, self.text_features = image_features, text_features
        given = {"image": image, "text": text, "id": id, "split_column": split_column}
        self.columns = {role: _column(path, self.table.columns, role, name) for role, name in given.items()}
        for role in ("text", "image"):
            if self.columns[role] is None and (role == "text" or image_features is None):
                raise _no_column(path, self.table.columns, role)
        self.has_splits = self.columns["split_column"] is not None
        root = path.parent if image_root is None else image_root
        self.images = ImageFiles(root, required=image_features is None)
        self.splits: set[str] = set()
        names = unique_names(self.table.columns)
        roles = {role: k for role, k in self.columns.items() if k is not None and role != "split_column"}
        self.source = SourceTable(self.table, names, {role: names[k] for role, k in roles.items()})
        self._builders: dict[str, PairBuilder] = {}
        # Split (None for a malformed row, which may be of any), row number, where, reason, remedy.
        self._rejected: list[tuple[str | None, int, str, str, str]] = []
        self._on_web: list[tuple[str, Row, dict[str, object]]] = []  # rows that wait for the first image file

    def _open(self, path: Path, **options: Any) -> TextTable | ParquetTable | MemoryTable:
        return open_table(path, **options)

    def read(self, splits: Sequence[str] | None) -> None:
        """Read the whole table, and make pairs of the rows of these splits, by default all."""
        wanted = None if splits is None or not self.has_splits else {*splits}
        if wanted is not None and wanted.intersection(VALIDATION):
            wanted |= set(VALIDATION)  # which of these names the table uses is known at its end
        roles = [role for role, column in self.columns.items() if column is not None]
        for row in self.table.rows([column for column in self.columns.values() if column is not None]):
            problem, split = row.problem, None
            if problem is None:
                values = dict(zip(roles, row.values, strict=True))
                split = str(values["split_column"]) if self.has_splits else WHOLE
                self.splits.add(split)
                if (wanted is None or split in wanted) and not self._wait(split, row, values):
                    problem = self._add(self._builders.setdefault(split, PairBuilder()), row, values)
            if problem is not None:
                self._rejected.append((split, row.number, row.where, *problem))
                if self.on_error == "raise" and not self.has_splits:
                    return  # `pairs` raises it
        for split, row, values in self._on_web:
            problem = ON_WEB if self.images.has_files else None
            problem = problem or self._add(self._builders.setdefault(split, PairBuilder()), row, values)
            if problem is not None:
                self._rejected.append((split, row.number, row.where, *problem))

    def _wait(self, split: str, row: Row, values: dict[str, object]) -> bool:
        """Set a row with a web address aside: next to image files it cannot be used, alone it needs no image."""
        image = values.get("image")
        if self.on_error == "raise" or not isinstance(image, str) or not self.images.is_on_web(image.strip()):
            return False
        self._on_web.append((split, row, values))
        return True

    def pairs(self, split: str, name: str) -> Pairs:
        """The pairs of one split of the table, called `name` if the table has no splits."""
        builder = self._builders.get(split, PairBuilder())
        builder.problems = Problems(self.on_error)
        for of_split, number, where, reason, remedy in self._rejected:
            if of_split in (None, split):
                builder.problems.report(where, reason, remedy)
                self.source.problems[number] = (where, reason)
        sources = {
            "images": None if self.columns["image"] is None else self.images.source(builder.image_ids),
            "image_features": self._feature_rows(self.image_features, builder.image_rows),
            "text_features": self._feature_rows(self.text_features, builder.rows),
        }
        return builder.build(name=self.path.stem, split=split if self.has_splits else name, **sources)

    def _add(self, builder: PairBuilder, row: Row, values: dict[str, object]) -> Problem | None:
        pair_id = str(row.number)
        if "id" in values:
            pair_id = "" if values["id"] is None else str(values["id"]).strip()
            if not pair_id:
                return "the id is empty", "write one, or leave the id column out to number the rows"
        image_id = pair_id
        if "image" in values:
            image = values["image"]
            if not isinstance(image, str) or not image.strip():
                reason = "no image" if image is None or isinstance(image, str) else "the image is not a path"
                return reason, f"write the path of the image, or choose the column with {_option('image')}"
            image_id = image.strip()
            if problem := self.images.find_problem(image_id):
                return problem
        return builder.try_add(pair_id=pair_id, text=values["text"], image_id=image_id, row=row.number)

    def _feature_rows(self, file: str | Path | None, rows: Sequence[int]) -> MappedFeatures | None:
        if file is None:
            return None
        mapped = MappedFeatures(file, row_of_item=np.array(rows, dtype=np.int64))
        if mapped.num_file_rows != self.table.num_rows:
            raise DataError(
                f"{file} has {mapped.num_file_rows} rows, but {self.path} has {self.table.num_rows}; "
                "make a feature row for every row of the table, in its order"
            )
        return mapped


class MemoryTableReader(TableReader):
    """Makes pairs of the rows of a table in memory.

    Args:
        images: finds the images by their names; by default files below `image_root`, or the current folder.
        options: of `TableReader`.
    """

    def __init__(
        self,
        table: MemoryTable,
        *,
        images: ImageFiles | None = None,
        image_root: str | Path | None = None,
        **options: Any,
    ) -> None:
        self._given = table
        super().__init__(Path(table.name), image_root="" if image_root is None else image_root, **options)
        self.images = images or self.images

    def _open(self, path: Path, **options: Any) -> MemoryTable:
        return self._given


@FORMATS.register("table")
class TableFormat:
    """CSV, TSV or Parquet file with a column of image paths and a column of captions."""

    options = TableReader

    @staticmethod
    def recognizes(path: Path) -> bool:
        if path.suffix.lower() == ".txt":  # a table if tabs separate its columns
            return path.is_file() and b"\t" in head(path).split(b"\n")[0]
        return path.suffix.lower() in SUFFIXES and not path.is_dir()

    @staticmethod
    def read(path: Path, *, split: str, **options: Any) -> Pairs:
        """Read the rows of one split, or all rows if no column names their split; options of `TableReader`."""
        reader = TableReader(path, **options)
        reader.read([split])
        return reader.pairs(choose_split(split, reader.splits, path) if reader.has_splits else WHOLE, split)

    @staticmethod
    def read_splits(path: Path, *, splits: Sequence[str] | None, keep_rows: bool, **options: Any) -> Collection:
        """Read several splits, by default all, in one pass."""
        reader = TableReader(path, keep_rows=keep_rows, **options)
        return collect(reader, path, splits=splits, keep_rows=keep_rows)

    @staticmethod
    def example(folder: Path) -> tuple[Path, dict[str, Any]]:
        rows = ["image,text"]
        for k, text in enumerate(EXAMPLE_TEXTS):
            (folder / f"{k}.png").write_bytes(PNG_PIXEL)
            rows.append(f"{k}.png,{text}")
        (folder / "pairs.csv").write_text("\n".join(rows) + "\n")
        return folder / "pairs.csv", {}


def collect(
    reader: TableReader, path: Path, *, splits: Sequence[str] | None = None, keep_rows: bool = True
) -> Collection:
    """Read a table once, and return several splits of it, by default all."""
    names = [WHOLE]
    if not reader.has_splits and splits is not None and list(splits) != names:
        raise DataError(f"{path} has no split column; leave --split away (split= in Python)")
    reader.read(splits)
    if reader.has_splits:
        names = [choose_split(name, reader.splits, path) for name in splits or sorted(reader.splits)]
    if not names:
        raise DataError(f"{path} holds no pairs: no split was found in it")
    pairs = {name: reader.pairs(name, name) for name in names}
    return Collection(pairs, reader.has_splits, reader.source if keep_rows else None)


def _column(path: Path, columns: Sequence[str], role: str, name: str | None) -> int | None:
    """Number of the column called `name`, or of the only one with a common name; None if there is none."""
    listed = f"its columns are: {', '.join(columns)}"
    if name is not None:
        if name not in columns:
            near = difflib.get_close_matches(name, columns, n=1)
            hint = f"did you mean '{near[0]}'? " if near else ""
            raise DataError(f"{path} has no column '{name}'; {hint}{listed}")
        matches = [k for k, column in enumerate(columns) if column == name]
    else:
        matches = [k for k, column in enumerate(columns) if column.strip().lower() in COMMON_NAMES[role]]
    if len(matches) > 1:
        names = ", ".join(f"'{columns[k]}'" for k in matches)
        raise DataError(f"{path} has several columns for {role} ({names}); choose one with {_option(role)}; {listed}")
    return matches[0] if matches else None


def _no_column(path: Path, columns: Sequence[str], role: str) -> DataError:
    features = ", or give --image-emb (image_features= in Python)" if role == "image" else ""
    one = "; if it is several, separate them by commas or name what does with delimiter= in Python"
    return DataError(
        f"{path} has no column with a common name for the {role}; its columns are: {', '.join(columns)}; "
        f"name one with {_option(role)}{features}{one if len(columns) == 1 else ''}"
    )


def _option(role: str) -> str:
    """How a column is named on the command line and in Python."""
    return f"{role}= in Python" if role == "split_column" else f"--{role} ({role}= in Python)"

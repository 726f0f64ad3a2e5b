"""One row a pair: CSV, TSV or Parquet with named columns."""

from __future__ import annotations

import difflib
import os
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from sremkit.data.features import MappedFeatures
from sremkit.data.formats import ELSEWHERE, FORMATS
from sremkit.data.images import FileImages
from sremkit.data.pair_list import PairList
from sremkit.data.pairs import OnError, Pairs, Problems
from sremkit.data.splits import choose_split
from sremkit.data.tabular import Row, Table, open_table
from sremkit.data.text_files import head
from sremkit.errors import DataError

SUFFIXES = (".csv", ".tsv", ".parquet", ".pq")
USUAL_NAMES = {
    "image": ("image", "image_path", "img", "img_path", "filepath", "file_path", "filename", "file_name",
              "path", "url", "image_url"),
    "text": ("text", "caption", "title", "sentence", "description", "alt", "alt_text"),
    "id": ("id", "uid", "key", "pair_id"),
    "split_column": ("split",),
}  # fmt: skip
WEB = ("http://", "https://")


@FORMATS.register("table")
class TableFormat:
    """CSV, TSV or Parquet file with a column of picture paths and a column of captions."""

    @staticmethod
    def recognizes(path: Path) -> bool:
        if path.suffix.lower() == ".txt":  # a table if tabs separate its columns
            return path.is_file() and b"\t" in head(path).split(b"\n")[0]
        return path.suffix.lower() in SUFFIXES and not path.is_dir()

    @staticmethod
    def read(
        path: Path,
        *,
        split: str,
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
    ) -> Pairs:
        """Read the rows of one split, or all of them where no column says which split a row is in.

        Args:
            image, text, id, split_column: names of columns; usual names are found without being given.
                Rows with the same image share it. Without an id column the row number, from 0, is the id.
            image_root: what relative picture paths start from; by default the folder of the file.
            image_features, text_features: .npy files with a row for each row of the table.
            delimiter, quoting: what separates fields, and whether quotation marks enclose them.
        """
        problems = Problems(on_error)
        table = open_table(path, delimiter=delimiter, quoting=quoting)
        columns = find_columns(path, table, image=image, text=text, id=id, split_column=split_column)
        if columns["text"] is None:
            raise _no_column(path, table.columns, "text")
        if columns["image"] is None and image_features is None:
            raise _no_column(path, table.columns, "image")

        root = path.parent if image_root is None else Path(image_root)
        pictures = _Pictures(root, problems, needed=image_features is None)
        pairs, found = _collect(path, table, columns, split, pictures, problems)
        sources = {
            "images": pictures.source(pairs.image_ids) if columns["image"] is not None else None,
            "image_features": _rows_of(image_features, pairs.image_rows, path, table),
            "text_features": _rows_of(text_features, pairs.rows, path, table),
        }
        return pairs.pairs(name=path.stem, split=found, **sources)


def find_columns(path: Path, table: Table, **named: str | None) -> dict[str, int | None]:
    """Which column holds what: those that are named, and the usual names for the others."""
    return {what: _column(path, table.columns, what, named.get(what)) for what in USUAL_NAMES}


def _column(path: Path, columns: Sequence[str], what: str, name: str | None) -> int | None:
    """Number of the column called `name`, or of the only one with a usual name; None if there is none."""
    listed = f"its columns are: {', '.join(columns)}"
    if name is not None:
        if name not in columns:
            near = difflib.get_close_matches(name, columns, n=1)
            hint = f"did you mean '{near[0]}'? " if near else ""
            raise DataError(f"{path} has no column '{name}'; {hint}{listed}")
        matches = [k for k, column in enumerate(columns) if column == name]
    else:
        matches = [k for k, column in enumerate(columns) if column.strip().lower() in USUAL_NAMES[what]]
    if len(matches) > 1:
        names = ", ".join(f"'{columns[k]}'" for k in matches)
        raise DataError(
            f"{path} has several columns for {what} ({names}); choose one with {_option(what)}; {listed}"
        )
    return matches[0] if matches else None


def _no_column(path: Path, columns: Sequence[str], what: str) -> DataError:
    features = ", or give --image-emb (image_features= in Python)" if what == "image" else ""
    one = "; if it is several, separate them by commas or name what does with delimiter= in Python"
    return DataError(
        f"{path} has no column with a usual name for the {what}; its columns are: {', '.join(columns)}; "
        f"name one with {_option(what)}{features}{one if len(columns) == 1 else ''}"
    )


def _option(what: str) -> str:
    """How a column is named on the command line and in Python."""
    return f"{what}= in Python" if what == "split_column" else f"--{what} ({what}= in Python)"


def _collect(
    path: Path,
    table: Table,
    columns: dict[str, int | None],
    split: str,
    pictures: _Pictures,
    problems: Problems,
) -> tuple[PairList, str]:
    """The pairs of the split, and the name that the table has for it."""
    pairs = PairList(problems)
    present = [what for what, column in columns.items() if column is not None]
    wanted = (
        split if columns["split_column"] is None else _split_name(path, table, columns["split_column"], split)
    )
    for row in table.rows([k for k in columns.values() if k is not None], problems):
        values = dict(zip(present, row.values, strict=True))
        if str(values.get("split_column", wanted)) != wanted:
            continue
        pair_id = _identity(row, values, problems)
        if pair_id is None:
            continue
        image_id = pair_id
        if "image" in values:
            if not pictures.accepts(row.where, values["image"]):
                continue
            image_id = str(values["image"]).strip()
        pairs.add(row.where, pair_id=pair_id, text=values["text"], image_id=image_id, row=row.number)
    return pairs, wanted


def _split_name(path: Path, table: Table, column: int, asked: str) -> str:
    ignored = Problems("skip")  # bad rows are reported when the pairs themselves are read
    return choose_split(asked, {str(row.values[0]) for row in table.rows([column], ignored)}, path)


def _identity(row: Row, values: dict[str, object], problems: Problems) -> str | None:
    if "id" not in values:
        return str(row.number)
    value = values["id"]
    pair_id = "" if value is None else str(value).strip()
    if not pair_id:
        problems.found(
            row.where, "the id is empty", "write one, or leave the id column out to number the rows"
        )
    return pair_id or None


class _Pictures:
    """Finds the picture file of each image; what is on the web has an id, but cannot be opened from here.

    Args:
        needed: whether a row without its picture is bad; features can stand in for pictures.
    """

    def __init__(self, root: Path, problems: Problems, *, needed: bool) -> None:
        self.root = os.fspath(root)
        self.problems = problems
        self.needed = needed
        self._kind: dict[str, str] = {}  # image -> "file", "web" or "missing"

    def accepts(self, where: str, value: object) -> bool:
        """Whether a row with this image is good; reports it otherwise."""
        if not isinstance(value, str) or not value.strip():
            reason = "no image" if value is None or isinstance(value, str) else "the image is not a path"
            remedy = f"write the path of the picture, or choose the column with {_option('image')}"
            self.problems.found(where, reason, remedy)
            return False
        image = value.strip()
        kind = self._kind.get(image)
        if kind is None:
            on_disk = "file" if os.path.isfile(self._path(image)) else "missing"
            kind = self._kind[image] = "web" if image.startswith(WEB) else on_disk
        if kind == "missing" and self.needed:
            remedy = f"put it at {self._path(image)}, or {ELSEWHERE}"
            self.problems.found(where, "the picture is missing", remedy)
            return False
        return True

    def source(self, image_ids: Sequence[str]) -> FileImages | None:
        """The pictures, or None where not all of them are files."""
        kinds = {self._kind[image] for image in image_ids}
        if self.needed and kinds == {"file", "web"}:
            web = next(image for image in image_ids if self._kind[image] == "web")
            raise DataError(
                f"some images are files and others on the web, such as {web}; download those first"
            )
        return FileImages([self._path(image) for image in image_ids]) if kinds == {"file"} else None

    def _path(self, image: str) -> str:
        return os.path.join(self.root, image)


def _rows_of(
    features: str | Path | None, rows: Sequence[int], path: Path, table: Table
) -> MappedFeatures | None:
    if features is None:
        return None
    mapped = MappedFeatures(features, row_of_item=np.array(rows, dtype=np.int64))
    if mapped.num_file_rows != table.num_rows:
        raise DataError(
            f"{features} has {mapped.num_file_rows} rows, but {path} has {table.num_rows}; "
            "make a feature row for every row of the table, in its order"
        )
    return mapped
